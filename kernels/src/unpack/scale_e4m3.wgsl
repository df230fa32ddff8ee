// A byte for 16 values: half of an e4m3, as codes are decoded doubled.
fn scale_of(row: u32, octs: u32, oct: u32) -> vec2<f32> {
    let block = oct / 2u;
    let code = w[plane(row, octs, SCALES) + block / 4u] >> (8u * (block % 4u));
    let d = 0.5 * from_e4m3(vec4<u32>(code)).x;
    return vec2<f32>(d, 0.0);
}
