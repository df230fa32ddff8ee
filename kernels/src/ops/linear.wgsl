// What the products share: what a workgroup works on, and the store with bias and sum. Operands: w, x, out, vectors.
//
// `share_of(tile, size)` gives the tile of a workgroup of `size` entries, `row_of` the row of out of an entry, `x_row`
// the row of x that belongs to a row of out.
struct Share {
    // Entries first to end - 1; those past `size` are not looked at.
    first: u32,
    end: u32,
    // The row of w where the matrix begins.
    matrix: u32,
}

// Adds what the product asks for and stores one value of out.
fn store(share: Share, row: u32, n: u32, dot: f32) {
    let at = row * p.out_stride + p.out_column + n;
    var value = dot;
    if (p.bias != NO_BIAS) {
        value += vectors[p.bias + share.matrix + n];
    }
    if (p.accumulate != 0u) {
        value += out[at];
    }
    out[at] = value;
}
