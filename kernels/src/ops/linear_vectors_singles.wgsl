fn vector_at(i: u32) -> f32 {
    return vectors[i];
}
