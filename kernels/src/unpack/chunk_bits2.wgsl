// Two loads a span.
struct Codes {
    q: vec2<u32>,
}

struct QuantSpan {
    a: vec4<u32>,
    b: vec4<u32>,
}

fn quant_span(row: u32, octs: u32, span: u32) -> QuantSpan {
    let at = row / 4u + 2u * span;
    return QuantSpan(w[at], w[at + 1u]);
}

fn next_quants(v: QuantSpan) -> QuantSpan {
    return QuantSpan(vec4<u32>(v.a.zw, v.b.xy), vec4<u32>(v.b.zw, v.a.xy));
}

fn codes_of(row: u32, chunk: u32, span: QuantSpan) -> Codes {
    return Codes(span.a.xy);
}

fn oct_of(codes: Codes, o: u32) -> Oct {
    return twos_oct(codes.q[o / 2u] >> (2u * (o % 2u)));
}
