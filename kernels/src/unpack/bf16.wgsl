// Four words an oct, two values each: the upper halves of f32.
const UNIT = vec4<f32>(1.0);

fn from_bf16(a: u32, b: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4<u32>(a << 16u, a & 0xFFFF0000u, b << 16u, b & 0xFFFF0000u));
}

fn halves_oct(v: vec4<u32>) -> Oct {
    return Oct(from_bf16(v.x, v.y), from_bf16(v.z, v.w));
}

fn quants_of(row: u32, octs: u32, oct: u32) -> Oct {
    let at = row + 4u * oct;
    return halves_oct(vec4<u32>(word_at(at), word_at(at + 1u), word_at(at + 2u), word_at(at + 3u)));
}
