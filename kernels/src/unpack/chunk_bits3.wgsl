// Two loads a span of low bits, one of top bits.
struct Codes {
    q: vec2<u32>,
    t: u32,
}

struct QuantSpan {
    a: vec4<u32>,
    b: vec4<u32>,
    t: vec4<u32>,
}

fn quant_span(row: u32, octs: u32, span: u32) -> QuantSpan {
    let at = row / 4u + 2u * span;
    return QuantSpan(w[at], w[at + 1u], quad_at(plane(row, octs, SECOND_PLANE) + 4u * span, SECOND_ALIGNED));
}

fn next_quants(v: QuantSpan) -> QuantSpan {
    return QuantSpan(vec4<u32>(v.a.zw, v.b.xy), vec4<u32>(v.b.zw, v.a.xy), next_word(v.t));
}

fn codes_of(row: u32, chunk: u32, span: QuantSpan) -> Codes {
    return Codes(span.a.xy, span.t.x);
}

fn oct_of(codes: Codes, o: u32) -> Oct {
    return threes_oct(codes.q[o / 2u] >> (2u * (o % 2u)), codes.t >> o);
}
