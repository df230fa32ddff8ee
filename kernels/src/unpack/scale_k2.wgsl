// Five words for 256 values: 16 bytes of scale (low nibble) and minimum, then the f16 factors of both.
fn scale_of(row: u32, octs: u32, oct: u32) -> vec2<f32> {
    let at = plane(row, octs, SCALES) + 5u * (oct / 32u);
    let group = (oct / 2u) % 16u;
    let packed = word_at(at + group / 4u) >> (8u * (group % 4u));
    let factor = unpack2x16float(word_at(at + 4u));
    return factor * vec2<f32>(f32(i32(packed & 15u)), -f32(i32((packed >> 4u) & 15u)));
}
