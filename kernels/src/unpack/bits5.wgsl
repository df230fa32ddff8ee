// Low bits: a word an oct, byte b holds values b and b + 4. Top bits: a word for four octs; nibble 2b of it holds
// bit b of each oct, nibble 2b + 1 bit b + 4.
fn fives_oct(q: u32, t: u32) -> Oct {
    return Oct(
        from_bytes((q & 0x0F0F0F0Fu) | ((t << 4u) & 0x10101010u)),
        from_bytes(((q >> 4u) & 0x0F0F0F0Fu) | (t & 0x10101010u)));
}

fn quants_of(row: u32, octs: u32, oct: u32) -> Oct {
    let q = word_at(row + oct);
    let t = word_at(plane(row, octs, SECOND_PLANE) + oct / 4u) >> (oct % 4u);
    return fives_oct(q, t);
}
