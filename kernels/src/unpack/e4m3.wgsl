// Two words an oct, e4m3 bytes in order.
const UNIT = vec4<f32>(1.0);

fn e4m3_bytes(v: u32) -> vec4<f32> {
    return from_e4m3(vec4<u32>(v, v >> 8u, v >> 16u, v >> 24u));
}

fn bytes_oct(a: u32, b: u32) -> Oct {
    return Oct(e4m3_bytes(a), e4m3_bytes(b));
}

fn quants_of(row: u32, octs: u32, oct: u32) -> Oct {
    let at = row + 2u * oct;
    return bytes_oct(word_at(at), word_at(at + 1u));
}
