// Two words a group: eight, four or two a span.
struct ScaleSpan {
    s: vec4<u32>,
    o: vec4<u32>,
}

fn scale_span(row: u32, octs: u32, span: u32) -> ScaleSpan {
    let at = plane(row, octs, SCALES) + 32u / SCALE_OCTS * span;
    if (SCALE_OCTS == 4u) {
        let a = quad_at(at, SCALES_ALIGNED);
        let b = quad_at(at + 4u, SCALES_ALIGNED);
        return ScaleSpan(vec4<u32>(a.xz, b.xz), vec4<u32>(a.yw, b.yw));
    }
    if (SCALE_OCTS == 8u) {
        let a = quad_at(at, SCALES_ALIGNED);
        return ScaleSpan(a.xxzz, a.yyww);
    }
    let a = pair_at(at, SCALES_ALIGNED);
    return ScaleSpan(a.xxxx, a.yyyy);
}

fn next_scales(v: ScaleSpan) -> ScaleSpan {
    return ScaleSpan(next_word(v.s), next_word(v.o));
}

fn scale_in(v: ScaleSpan, half: u32) -> vec2<f32> {
    return bitcast<vec2<f32>>(vec2<u32>(v.s.x, v.o.x));
}
