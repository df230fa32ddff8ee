struct ScaleSpan {
    none: u32,
}

fn scale_span(row: u32, octs: u32, span: u32) -> ScaleSpan {
    return ScaleSpan(0u);
}

fn next_scales(v: ScaleSpan) -> ScaleSpan {
    return v;
}

fn scale_in(v: ScaleSpan, half: u32) -> vec2<f32> {
    return vec2<f32>(1.0, 0.0);
}
