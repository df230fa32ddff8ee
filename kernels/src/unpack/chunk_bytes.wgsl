// A load for two octs.
struct Codes {
    a: vec4<u32>,
    b: vec4<u32>,
}

// Nothing is shared by the chunks of a span.
struct QuantSpan {
    none: u32,
}

fn quant_span(row: u32, octs: u32, span: u32) -> QuantSpan {
    return QuantSpan(0u);
}

fn next_quants(v: QuantSpan) -> QuantSpan {
    return v;
}

fn codes_of(row: u32, chunk: u32, span: QuantSpan) -> Codes {
    let at = row / 4u + 2u * chunk;
    return Codes(w[at], w[at + 1u]);
}

fn oct_of(codes: Codes, o: u32) -> Oct {
    let v = select(codes.b, codes.a, o < 2u);
    let pair = select(v.zw, v.xy, o % 2u == 0u);
    return bytes_oct(pair.x, pair.y);
}
