// Any K and any stride, one value at a time: x is `array<f32>`; what stands past K, whatever it is, counts as zero.
fn x_at(row: u32, k: u32) -> f32 {
    return select(0.0, x[row * p.x_stride + min(k, p.k - 1u)], k < p.k);
}
