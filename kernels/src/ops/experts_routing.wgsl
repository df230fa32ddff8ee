// A workgroup takes one choice, as the routing has it.
fn share_of(tile: u32, size: u32) -> Share {
    if (tile >= step[STEP_TOKENS] * p.top) {
        return Share();
    }
    return share_with(routing[tile / p.top * p.routing_stride + tile % p.top], tile, 1u);
}

fn row_of(entry: u32) -> u32 {
    return entry;
}
