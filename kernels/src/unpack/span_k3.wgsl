// A word of low nibbles, half a word of upper bits, and the factor.
struct ScaleSpan {
    d: f32,
    low: u32,
    high: u32,
}

fn scale_span(row: u32, octs: u32, span: u32) -> ScaleSpan {
    let scales = plane(row, octs, SCALES);
    let block = span / 2u;
    let at = scales + 3u * block;
    return ScaleSpan(
        half_at(scales + 3u * (octs / 32u) + block / 2u, block % 2u), word_at(at + span % 2u),
        word_at(at + 2u) >> (16u * (span % 2u)));
}

fn next_scales(v: ScaleSpan) -> ScaleSpan {
    return ScaleSpan(v.d, v.low >> 8u, v.high >> 4u);
}

fn scale_in(v: ScaleSpan, half: u32) -> vec2<f32> {
    let scale = ((v.low >> (4u * half)) & 15u) | (((v.high >> (2u * half)) & 3u) << 4u);
    let d = v.d * f32(i32(scale) - 32);
    return vec2<f32>(d, -f32(BIAS) * d);
}
