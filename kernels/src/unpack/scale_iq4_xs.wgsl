// Two words for 256 values: low nibbles of 8 scales; an f16 and the upper two bits of the scales; biased by 32.
fn scale_of(row: u32, octs: u32, oct: u32) -> vec2<f32> {
    let at = plane(row, octs, SCALES) + 2u * (oct / 32u);
    let group = (oct / 4u) % 8u;
    let second = word_at(at + 1u);
    let scale = ((word_at(at) >> (4u * group)) & 15u) | (((second >> (16u + 2u * group)) & 3u) << 4u);
    let d = unpack2x16float(second).x * f32(i32(scale) - 32);
    return vec2<f32>(d, -f32(BIAS) * d);
}
