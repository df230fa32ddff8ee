// A load a span.
struct Codes {
    q: u32,
}

struct QuantSpan {
    q: vec4<u32>,
}

fn quant_span(row: u32, octs: u32, span: u32) -> QuantSpan {
    return QuantSpan(w[row / 4u + span]);
}

fn next_quants(v: QuantSpan) -> QuantSpan {
    return QuantSpan(next_word(v.q));
}

fn codes_of(row: u32, chunk: u32, span: QuantSpan) -> Codes {
    return Codes(span.q.x);
}

fn oct_of(codes: Codes, o: u32) -> Oct {
    return ones_oct(codes.q >> o);
}
