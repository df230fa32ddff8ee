// A load a chunk of low bits, one a span of top bits.
struct Codes {
    q: vec4<u32>,
    t: u32,
}

struct QuantSpan {
    t: vec4<u32>,
}

fn quant_span(row: u32, octs: u32, span: u32) -> QuantSpan {
    return QuantSpan(quad_at(plane(row, octs, SECOND_PLANE) + 4u * span, SECOND_ALIGNED));
}

fn next_quants(v: QuantSpan) -> QuantSpan {
    return QuantSpan(next_word(v.t));
}

fn codes_of(row: u32, chunk: u32, span: QuantSpan) -> Codes {
    return Codes(w[row / 4u + chunk], span.t.x);
}

fn oct_of(codes: Codes, o: u32) -> Oct {
    return fives_oct(codes.q[o], codes.t >> o);
}
