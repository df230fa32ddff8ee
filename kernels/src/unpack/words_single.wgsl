// The matrix is read by single words: w is `array<u32>`.
fn word_at(at: u32) -> u32 {
    return w[at];
}
