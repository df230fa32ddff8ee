// An f16 scale and an f16 minimum for 32 values.
fn scale_of(row: u32, octs: u32, oct: u32) -> vec2<f32> {
    return unpack2x16float(word_at(plane(row, octs, SCALES) + oct / 4u));
}
