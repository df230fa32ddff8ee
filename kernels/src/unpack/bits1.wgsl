// A word for four octs: nibble 2b holds bit b of each oct, nibble 2b + 1 bit b + 4.
fn ones_oct(q: u32) -> Oct {
    return Oct(from_bytes(q & 0x01010101u), from_bytes((q >> 4u) & 0x01010101u));
}

fn quants_of(row: u32, octs: u32, oct: u32) -> Oct {
    return ones_oct(word_at(row + oct / 4u) >> (oct % 4u));
}
