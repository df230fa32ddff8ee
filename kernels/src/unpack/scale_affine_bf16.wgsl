// A word a group: a bf16 scale and a bf16 offset, the upper halves of f32.
fn pair_of(both: u32) -> vec2<f32> {
    return bitcast<vec2<f32>>(vec2<u32>(both << 16u, both & 0xFFFF0000u));
}

fn scale_of(row: u32, octs: u32, oct: u32) -> vec2<f32> {
    return pair_of(word_at(plane(row, octs, SCALES) + oct / SCALE_OCTS));
}
