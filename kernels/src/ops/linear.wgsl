// What the products share: x by octs, and the store with bias and sum. Operands: w, x, out, vectors.

// Adds what the product asks for and stores one value of out.
fn store(row: u32, n: u32, dot: f32) {
    let at = row * p.out_stride + p.out_column + n;
    var value = dot;
    if (p.bias != NO_BIAS) {
        value += vectors[p.bias + n];
    }
    if (p.accumulate != 0u) {
        value += out[at];
    }
    out[at] = value;
}
