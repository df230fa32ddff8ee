// A word an oct of codes, byte b holds values b and b + 4; a code is an index into 16 values, kept here as bytes
// raised by 127.
fn iq4_value(code: u32) -> u32 {
    let low = select(0x3E2C1700u, 0x75695C4Eu, (code & 4u) != 0u);
    let high = select(0xA5988C80u, 0xF0D8C4B4u, (code & 4u) != 0u);
    return (select(low, high, (code & 8u) != 0u) >> (8u * (code & 3u))) & 0xFFu;
}

fn iq4_values(codes: u32) -> vec4<f32> {
    return vec4<f32>(
        f32(i32(iq4_value(codes & 15u))), f32(i32(iq4_value((codes >> 8u) & 15u) << 8u)),
        f32(i32(iq4_value((codes >> 16u) & 15u) << 16u)), f32(i32(iq4_value((codes >> 24u) & 15u))));
}

fn nibbles_oct(q: u32) -> Oct {
    return Oct(iq4_values(q), iq4_values(q >> 4u));
}

fn quants_of(row: u32, octs: u32, oct: u32) -> Oct {
    return nibbles_oct(word_at(row + oct));
}
