// An f16 for 32 values.
fn scale_of(row: u32, octs: u32, oct: u32) -> vec2<f32> {
    let block = oct / 4u;
    let d = half_at(plane(row, octs, SCALES) + block / 2u, block % 2u);
    return vec2<f32>(d, -f32(BIAS) * d);
}
