// A word an oct of e2m1 codes, byte b holds values b and b + 4. Four are decoded at once, as signed bytes: the doubled
// magnitudes 0 1 2 3 4 6 8 12, which are the code c, and c & 3 more from 4 on, and 2 more at 7; negated where the sign is
// set and the magnitude is not zero. Signed, so that a row of zeros adds nothing: a bias would leave what an f32 sum of it
// and its offset do not cancel.
fn e2m1_bytes(codes: u32) -> u32 {
    let c = codes & 0x07070707u;
    let from4 = (codes >> 2u) & 0x01010101u;
    let magnitude = c + (c & (from4 | (from4 << 1u))) + ((c & (c >> 1u) & from4) << 1u);
    let negative = ((codes & (c + 0x07070707u)) >> 3u) & 0x01010101u;
    return (magnitude ^ ((negative << 8u) - negative)) + negative;
}

fn nibbles_oct(q: u32) -> Oct {
    return Oct(from_signed(e2m1_bytes(q)), from_signed(e2m1_bytes(q >> 4u)));
}

fn quants_of(row: u32, octs: u32, oct: u32) -> Oct {
    return nibbles_oct(word_at(row + oct));
}
