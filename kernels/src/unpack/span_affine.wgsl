// A word a group: four, two or one a span.
struct ScaleSpan {
    s: vec4<u32>,
}

fn scale_span(row: u32, octs: u32, span: u32) -> ScaleSpan {
    let at = plane(row, octs, SCALES) + 16u / SCALE_OCTS * span;
    if (SCALE_OCTS == 4u) {
        return ScaleSpan(quad_at(at, SCALES_ALIGNED));
    }
    if (SCALE_OCTS == 8u) {
        return ScaleSpan(pair_at(at, SCALES_ALIGNED).xxyy);
    }
    return ScaleSpan(vec4<u32>(word_at(at)));
}

fn next_scales(v: ScaleSpan) -> ScaleSpan {
    return ScaleSpan(next_word(v.s));
}

fn scale_in(v: ScaleSpan, half: u32) -> vec2<f32> {
    return pair_of(v.s.x);
}
