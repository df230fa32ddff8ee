// Two words a span.
struct ScaleSpan {
    d: f32,
    s: vec2<u32>,
}

fn scale_span(row: u32, octs: u32, span: u32) -> ScaleSpan {
    return ScaleSpan(0.5 * row_factor(row, octs), pair_at(plane(row, octs, SCALES) + 2u * span, SCALES_ALIGNED));
}

fn next_scales(v: ScaleSpan) -> ScaleSpan {
    return ScaleSpan(v.d, next_half(v.s));
}

fn scale_in(v: ScaleSpan, half: u32) -> vec2<f32> {
    return vec2<f32>(v.d * from_e4m3(vec4<u32>(v.s.x >> (8u * half))).x, 0.0);
}
