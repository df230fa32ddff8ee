// Two words a span.
struct ScaleSpan {
    d: vec2<u32>,
}

fn scale_span(row: u32, octs: u32, span: u32) -> ScaleSpan {
    return ScaleSpan(pair_at(plane(row, octs, SCALES) + 2u * span, SCALES_ALIGNED));
}

fn next_scales(v: ScaleSpan) -> ScaleSpan {
    return ScaleSpan(next_half(v.d));
}

fn scale_in(v: ScaleSpan, half: u32) -> vec2<f32> {
    let d = unpack2x16float(v.d.x).x;
    return vec2<f32>(d, -f32(BIAS) * d);
}
