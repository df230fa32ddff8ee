// Two words a group: an f32 scale and an f32 offset.
fn scale_of(row: u32, octs: u32, oct: u32) -> vec2<f32> {
    let at = plane(row, octs, SCALES) + 2u * (oct / SCALE_OCTS);
    return bitcast<vec2<f32>>(vec2<u32>(word_at(at), word_at(at + 1u)));
}
