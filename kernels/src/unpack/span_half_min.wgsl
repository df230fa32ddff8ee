// Four words a span.
struct ScaleSpan {
    s: vec4<u32>,
}

fn scale_span(row: u32, octs: u32, span: u32) -> ScaleSpan {
    return ScaleSpan(quad_at(plane(row, octs, SCALES) + 4u * span, SCALES_ALIGNED));
}

fn next_scales(v: ScaleSpan) -> ScaleSpan {
    return ScaleSpan(next_word(v.s));
}

fn scale_in(v: ScaleSpan, half: u32) -> vec2<f32> {
    return unpack2x16float(v.s.x);
}
