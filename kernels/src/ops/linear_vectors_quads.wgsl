fn vector_at(i: u32) -> f32 {
    return vectors[i / 4u][i % 4u];
}
