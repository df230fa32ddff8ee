// max(x, 0)².
fn activation(x: f32) -> f32 {
    let positive = max(x, 0.0);
    return positive * positive;
}
