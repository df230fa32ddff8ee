// A word an oct of e2m1 codes, byte b holds values b and b + 4. Four are decoded at once, as signed bytes: the doubled
// magnitudes 0 1 2 3 4 6 8 12 by their bits, negated where the sign is set and the magnitude is not zero. Signed, so that
// a row of zeros adds nothing: a bias would leave what an f32 sum of it and its offset do not cancel.
fn e2m1_bytes(codes: u32) -> u32 {
    let b0 = codes & 0x01010101u;
    let b1 = (codes >> 1u) & 0x01010101u;
    let b2 = (codes >> 2u) & 0x01010101u;
    let not1 = b1 ^ 0x01010101u;
    let not2 = b2 ^ 0x01010101u;
    let magnitude = ((b2 & b1) << 3u) | ((b2 & (not1 | b0)) << 2u) | (((not2 & b1) | (b2 & not1 & b0)) << 1u) | (not2 & b0);
    let negative = (codes >> 3u) & (b0 | b1 | b2);
    return (magnitude ^ (negative * 0xFFu)) + negative;
}

fn nibbles_oct(q: u32) -> Oct {
    return Oct(from_signed(e2m1_bytes(q)), from_signed(e2m1_bytes(q >> 4u)));
}

fn quants_of(row: u32, octs: u32, oct: u32) -> Oct {
    return nibbles_oct(word_at(row + oct));
}
