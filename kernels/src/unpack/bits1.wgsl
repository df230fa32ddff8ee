// A word for four octs: nibble 2b holds bit b of each oct, nibble 2b + 1 bit b + 4.
fn quants_of(row: u32, octs: u32, oct: u32) -> Oct {
    let q = w[row + oct / 4u] >> (oct % 4u);
    return Oct(from_bytes(q & 0x01010101u), from_bytes((q >> 4u) & 0x01010101u));
}
