// Two words an oct, unsigned bytes in order.
fn bytes_oct(a: u32, b: u32) -> Oct {
    return Oct(from_bytes(a), from_bytes(b));
}

fn quants_of(row: u32, octs: u32, oct: u32) -> Oct {
    let at = row + 2u * oct;
    return bytes_oct(word_at(at), word_at(at + 1u));
}
