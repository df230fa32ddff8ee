// A load a chunk of low bits, two a span of top bits.
struct Codes {
    q: vec4<u32>,
    t: vec2<u32>,
}

struct QuantSpan {
    a: vec4<u32>,
    b: vec4<u32>,
}

fn quant_span(row: u32, octs: u32, span: u32) -> QuantSpan {
    let at = plane(row, octs, SECOND_PLANE) + 8u * span;
    return QuantSpan(quad_at(at, SECOND_ALIGNED), quad_at(at + 4u, SECOND_ALIGNED));
}

fn next_quants(v: QuantSpan) -> QuantSpan {
    return QuantSpan(vec4<u32>(v.a.zw, v.b.xy), vec4<u32>(v.b.zw, v.a.xy));
}

fn codes_of(row: u32, chunk: u32, span: QuantSpan) -> Codes {
    return Codes(w[row / 4u + chunk], span.a.xy);
}

fn oct_of(codes: Codes, o: u32) -> Oct {
    return sixes_oct(codes.q[o], codes.t[o / 2u] >> (2u * (o % 2u)));
}
