// The block's four words: the factors, a word of low nibbles, half a word of upper bits.
struct ScaleSpan {
    factor: vec2<f32>,
    low: u32,
    high: u32,
}

fn scale_span(row: u32, octs: u32, span: u32) -> ScaleSpan {
    let v = quad_at(plane(row, octs, SCALES) + 4u * (span / 2u), SCALES_ALIGNED);
    let second = span % 2u;
    return ScaleSpan(unpack2x16float(v.x), select(v.y, v.z, second != 0u), v.w >> (16u * second));
}

fn next_scales(v: ScaleSpan) -> ScaleSpan {
    return ScaleSpan(v.factor, v.low >> 8u, v.high >> 4u);
}

fn scale_in(v: ScaleSpan, half: u32) -> vec2<f32> {
    let scale = (v.low & 15u) | ((v.high << 4u) & 48u);
    let minimum = ((v.low >> 4u) & 15u) | ((v.high << 2u) & 48u);
    return v.factor * vec2<f32>(f32(i32(scale)), -f32(i32(minimum)));
}
