// A word a group: an f16 scale and an f16 offset.
fn pair_of(both: u32) -> vec2<f32> {
    return unpack2x16float(both);
}

fn scale_of(row: u32, octs: u32, oct: u32) -> vec2<f32> {
    return pair_of(word_at(plane(row, octs, SCALES) + oct / SCALE_OCTS));
}
