// Four words for 256 values: f16 factors of scales and minima; 8 bytes of the low nibbles of a scale (low) and a
// minimum; 8 nibbles of the upper two bits of both.
fn scale_of(row: u32, octs: u32, oct: u32) -> vec2<f32> {
    let at = plane(row, octs, SCALES) + 4u * (oct / 32u);
    let group = (oct / 4u) % 8u;
    let factor = unpack2x16float(word_at(at));
    let low = word_at(at + 1u + group / 4u) >> (8u * (group % 4u));
    let high = word_at(at + 3u) >> (4u * group);
    let scale = (low & 15u) | ((high << 4u) & 48u);
    let minimum = ((low >> 4u) & 15u) | ((high << 2u) & 48u);
    return factor * vec2<f32>(f32(i32(scale)), -f32(i32(minimum)));
}
