// A byte for 16 values, half of an e4m3 as codes are decoded doubled; after all blocks an f32 for the row.
fn row_factor(row: u32, octs: u32) -> f32 {
    return bitcast<f32>(word_at(plane(row, octs, SCALES) + (octs + 7u) / 8u));
}
