// Two words an oct, e4m3 bytes in order.
const UNIT = vec4<f32>(1.0);

fn e4m3_bytes(v: u32) -> vec4<f32> {
    return from_e4m3(vec4<u32>(v, v >> 8u, v >> 16u, v >> 24u));
}

fn quants_of(row: u32, octs: u32, oct: u32) -> Oct {
    let at = row + 2u * oct;
    return Oct(e4m3_bytes(w[at]), e4m3_bytes(w[at + 1u]));
}
