// A load an oct.
struct Codes {
    at: u32,
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
    return Codes(row / 4u + 4u * chunk);
}

fn oct_of(codes: Codes, o: u32) -> Oct {
    return halves_oct(w[codes.at + o]);
}
