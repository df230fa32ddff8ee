// 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))). Past 20 the tanh is 1, and the cube stays finite.
fn activation(x: f32) -> f32 {
    let c = clamp(x, -20.0, 20.0);
    return 0.5 * x * (1.0 + steady_tanh(0.7978845608 * fma(0.044715 * c * c, c, c)));
}
