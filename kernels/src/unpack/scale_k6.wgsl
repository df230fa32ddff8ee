// Four words of 16 signed bytes for 256 values; after all blocks an f16 for each.
fn scale_of(row: u32, octs: u32, oct: u32) -> vec2<f32> {
    let scales = plane(row, octs, SCALES);
    let block = oct / 32u;
    let group = (oct / 2u) % 16u;
    let packed = word_at(scales + 4u * block + group / 4u) << (24u - 8u * (group % 4u));
    let d = half_at(scales + 4u * (octs / 32u) + block / 2u, block % 2u) * f32(i32(packed) >> 24u);
    return vec2<f32>(d, -f32(BIAS) * d);
}
