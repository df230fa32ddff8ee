// A word for two octs: nibble 2b holds the two bits of value b of each oct, nibble 2b + 1 those of value b + 4.
fn twos_oct(q: u32) -> Oct {
    return Oct(from_bytes(q & 0x03030303u), from_bytes((q >> 4u) & 0x03030303u));
}

fn quants_of(row: u32, octs: u32, oct: u32) -> Oct {
    return twos_oct(word_at(row + oct / 2u) >> (2u * (oct % 2u)));
}
