// 1 / (1 + exp(−x)). The clamp keeps the exponential finite.
fn activation(x: f32) -> f32 {
    return 1.0 / (1.0 + exp(min(-x, 80.0)));
}
