// tanh without infinities: past 10 it is 1 in f32, and e^20 is far from the largest float. Near zero the quotient
// would lose digits, and the series takes over: its first term left out is 2e-8 of the value at 0.1. A NaN stays one,
// which `min` and `sign` might make a number of: the bits tell.
fn steady_tanh(x: f32) -> f32 {
    let a = min(abs(x), 10.0);
    let e = exp(2.0 * a);
    let far = (e - 1.0) / (e + 1.0);
    let s = a * a;
    let near = a * fma(s, fma(s, fma(s, -0.053968254, 0.13333333), -0.33333334), 1.0);
    return select(sign(x) * select(far, near, a < 0.1), x, (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u);
}
