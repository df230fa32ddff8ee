// A workgroup takes a tile of the sorted choices, all of one expert.
fn share_of(tile: u32, size: u32) -> Share {
    if (tile >= routing[0]) {
        return Share();
    }
    let at = HEADER + 4u * tile;
    return share_with(routing[at], p.list + routing[at + 1u], routing[at + 2u]);
}

fn row_of(entry: u32) -> u32 {
    return routing[entry];
}
