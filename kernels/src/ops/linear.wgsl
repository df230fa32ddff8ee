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

// The product of one row of the matrix, with its bias.
fn biased(share: Share, n: u32, dot: f32) -> f32 {
    var value = dot;
    if (p.bias != NO_BIAS) {
        value += vector_at(p.bias + share.matrix + n);
    }
    return value;
}

// Stores one value of out, or adds it.
fn put(row: u32, n: u32, value: f32) {
    let at = row * p.out_stride + p.out_column + n;
    var sum = value;
    if (p.accumulate != 0u) {
        sum += out[at];
    }
    out[at] = sum;
}

// Adds what the product asks for and stores one value of out.
fn store(share: Share, row: u32, n: u32, dot: f32) {
    put(row, n, biased(share, n, dot));
}
