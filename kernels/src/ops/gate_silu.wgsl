// x·sigmoid(x). Below −80 the value is under 1e-33 whatever the exponential; the clamp keeps it finite.
fn activation(x: f32) -> f32 {
    return x / (1.0 + exp(min(-x, 80.0)));
}
