// What the experts' products share. Operands: w, x, out, vectors, and the routing or the sorted table.

// `count` entries from `first` on against an expert's rows; nothing when another shard has them.
fn share_with(id: u32, first: u32, count: u32) -> Share {
    // Ids below the first one wrap around to large numbers.
    let expert = id - p.first_expert;
    if (expert >= p.shard_experts) {
        return Share();
    }
    return Share(first, first + count, expert * p.matrix_rows + p.out_column);
}

// Rows of out are choices; those of x are choices or tokens.
fn x_row(row: u32) -> u32 {
    return select(row / p.top, row, p.x_choices != 0u);
}
