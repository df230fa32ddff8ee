// softplus(dt + bias) for arguments of any size, within the limits.
fn delta_of(token: u32, head: u32) -> f32 {
    let v = dt[token * p.dt_stride + p.dt_column + head] + vectors[p.dt_bias + head];
    let u = exp(-abs(v));
    // ln(1 + u): f32 loses small u in the sum.
    let log1p = select(log(1.0 + u), u * (1.0 - u * (0.5 - u * (1.0 / 3.0))), u < 0.01);
    return clamp(max(v, 0.0) + log1p, p.low, p.high);
}
