
fn scale_of(row: u32, octs: u32, oct: u32) -> vec2<f32> {
    let block = oct / 2u;
    let code = word_at(plane(row, octs, SCALES) + block / 4u) >> (8u * (block % 4u));
    return vec2<f32>(0.5 * from_e4m3(vec4<u32>(code)).x * row_factor(row, octs), 0.0);
}
