// Three words for 256 values: low nibbles of 16 scales, then their upper two bits; biased by 32. After all blocks an
// f16 for each.
fn scale_of(row: u32, octs: u32, oct: u32) -> vec2<f32> {
    let scales = plane(row, octs, SCALES);
    let block = oct / 32u;
    let group = (oct / 2u) % 16u;
    let low = (word_at(scales + 3u * block + group / 8u) >> (4u * (group % 8u))) & 15u;
    let high = (word_at(scales + 3u * block + 2u) >> (2u * group)) & 3u;
    let d = half_at(scales + 3u * (octs / 32u) + block / 2u, block % 2u) * f32(i32(low | (high << 4u)) - 32);
    return vec2<f32>(d, -f32(BIAS) * d);
}
