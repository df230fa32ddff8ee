// Four words an oct, two values each.
const UNIT = vec4<f32>(1.0);

fn quants_of(row: u32, octs: u32, oct: u32) -> Oct {
    let at = row + 4u * oct;
    return Oct(
        vec4<f32>(unpack2x16float(w[at]), unpack2x16float(w[at + 1u])),
        vec4<f32>(unpack2x16float(w[at + 2u]), unpack2x16float(w[at + 3u])));
}
