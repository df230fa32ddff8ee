// Low bits: a word for two octs, nibble 2b holds the two bits of value b of each oct, nibble 2b + 1 those of b + 4.
// Top bits: a word for four octs; nibble 2b holds bit b of each oct, nibble 2b + 1 bit b + 4.
fn threes_oct(q: u32, t: u32) -> Oct {
    return Oct(
        from_bytes((q & 0x03030303u) | ((t << 2u) & 0x04040404u)),
        from_bytes(((q >> 4u) & 0x03030303u) | ((t >> 2u) & 0x04040404u)));
}

fn quants_of(row: u32, octs: u32, oct: u32) -> Oct {
    let q = word_at(row + oct / 2u) >> (2u * (oct % 2u));
    let t = word_at(plane(row, octs, SECOND_PLANE) + oct / 4u) >> (oct % 4u);
    return threes_oct(q, t);
}
