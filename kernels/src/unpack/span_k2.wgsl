// Two of a block's four words of scales, and the factors.
struct ScaleSpan {
    factor: vec2<f32>,
    s: vec2<u32>,
}

fn scale_span(row: u32, octs: u32, span: u32) -> ScaleSpan {
    let at = plane(row, octs, SCALES) + 5u * (span / 2u);
    return ScaleSpan(unpack2x16float(word_at(at + 4u)), pair_at(at + 2u * (span % 2u), false));
}

fn next_scales(v: ScaleSpan) -> ScaleSpan {
    return ScaleSpan(v.factor, next_half(v.s));
}

fn scale_in(v: ScaleSpan, half: u32) -> vec2<f32> {
    let packed = v.s.x >> (8u * half);
    return v.factor * vec2<f32>(f32(i32(packed & 15u)), -f32(i32((packed >> 4u) & 15u)));
}
