// Two of a block's four words of scales, and the factor.
struct ScaleSpan {
    d: f32,
    s: vec2<u32>,
}

fn scale_span(row: u32, octs: u32, span: u32) -> ScaleSpan {
    let scales = plane(row, octs, SCALES);
    let block = span / 2u;
    return ScaleSpan(
        half_at(scales + 4u * (octs / 32u) + block / 2u, block % 2u), pair_at(scales + 2u * span, SCALES_ALIGNED));
}

fn next_scales(v: ScaleSpan) -> ScaleSpan {
    return ScaleSpan(v.d, next_half(v.s));
}

fn scale_in(v: ScaleSpan, half: u32) -> vec2<f32> {
    let d = v.d * f32(i32(v.s.x << (24u - 8u * half)) >> 24u);
    return vec2<f32>(d, -f32(BIAS) * d);
}
