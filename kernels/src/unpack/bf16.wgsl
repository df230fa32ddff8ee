// Four words an oct, two values each: the upper halves of f32.
const UNIT = vec4<f32>(1.0);

fn from_bf16(a: u32, b: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4<u32>(a << 16u, a & 0xFFFF0000u, b << 16u, b & 0xFFFF0000u));
}

fn quants_of(row: u32, octs: u32, oct: u32) -> Oct {
    let at = row + 4u * oct;
    return Oct(from_bf16(w[at], w[at + 1u]), from_bf16(w[at + 2u], w[at + 3u]));
}
