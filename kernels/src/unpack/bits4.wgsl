// A word an oct: byte b holds values b (low nibble) and b + 4.
fn nibbles_oct(q: u32) -> Oct {
    return Oct(from_bytes(q & 0x0F0F0F0Fu), from_bytes((q >> 4u) & 0x0F0F0F0Fu));
}

fn quants_of(row: u32, octs: u32, oct: u32) -> Oct {
    return nibbles_oct(word_at(row + oct));
}
