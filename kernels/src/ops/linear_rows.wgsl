// A workgroup takes rows of x as they stand, all against one matrix.
fn share_of(tile: u32, size: u32) -> Share {
    return Share(tile * size, step[p.count_word], 0u);
}

fn row_of(entry: u32) -> u32 {
    return entry;
}

fn x_row(row: u32) -> u32 {
    return row;
}
