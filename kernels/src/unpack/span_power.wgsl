// A word a span.
struct ScaleSpan {
    e: u32,
}

fn scale_span(row: u32, octs: u32, span: u32) -> ScaleSpan {
    return ScaleSpan(word_at(plane(row, octs, SCALES) + span));
}

fn next_scales(v: ScaleSpan) -> ScaleSpan {
    return ScaleSpan(v.e >> 8u);
}

fn scale_in(v: ScaleSpan, half: u32) -> vec2<f32> {
    let e = v.e & 0xFFu;
    return vec2<f32>(bitcast<f32>(select(e << 23u, 0x00400000u, e == 0u)), 0.0);
}
