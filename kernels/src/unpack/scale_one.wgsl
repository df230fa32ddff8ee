// Plain floats.
fn scale_of(row: u32, octs: u32, oct: u32) -> vec2<f32> {
    return vec2<f32>(1.0, 0.0);
}
