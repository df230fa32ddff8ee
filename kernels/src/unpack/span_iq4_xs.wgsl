// Half a word of low nibbles, a byte of upper bits, and the factor.
struct ScaleSpan {
    d: f32,
    low: u32,
    high: u32,
}

fn scale_span(row: u32, octs: u32, span: u32) -> ScaleSpan {
    let v = pair_at(plane(row, octs, SCALES) + 2u * (span / 2u), SCALES_ALIGNED);
    let second = span % 2u;
    return ScaleSpan(unpack2x16float(v.y).x, v.x >> (16u * second), v.y >> (16u + 8u * second));
}

fn next_scales(v: ScaleSpan) -> ScaleSpan {
    return ScaleSpan(v.d, v.low >> 4u, v.high >> 2u);
}

fn scale_in(v: ScaleSpan, half: u32) -> vec2<f32> {
    let scale = (v.low & 15u) | ((v.high & 3u) << 4u);
    let d = v.d * f32(i32(scale) - 32);
    return vec2<f32>(d, -f32(BIAS) * d);
}
