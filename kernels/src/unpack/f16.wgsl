// Four words an oct, two values each.
const UNIT = vec4<f32>(1.0);

fn halves_oct(v: vec4<u32>) -> Oct {
    return Oct(
        vec4<f32>(unpack2x16float(v.x), unpack2x16float(v.y)), vec4<f32>(unpack2x16float(v.z), unpack2x16float(v.w)));
}

fn quants_of(row: u32, octs: u32, oct: u32) -> Oct {
    let at = row + 4u * oct;
    return halves_oct(vec4<u32>(word_at(at), word_at(at + 1u), word_at(at + 2u), word_at(at + 3u)));
}
