// An f32 for the row.
fn scale_of(row: u32, octs: u32, oct: u32) -> vec2<f32> {
    return vec2<f32>(bitcast<f32>(word_at(plane(row, octs, SCALES))), 0.0);
}
