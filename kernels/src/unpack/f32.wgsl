// Eight words an oct.
const UNIT = vec4<f32>(1.0);

fn quants_of(row: u32, octs: u32, oct: u32) -> Oct {
    let at = row + 8u * oct;
    return Oct(
        bitcast<vec4<f32>>(vec4<u32>(w[at], w[at + 1u], w[at + 2u], w[at + 3u])),
        bitcast<vec4<f32>>(vec4<u32>(w[at + 4u], w[at + 5u], w[at + 6u], w[at + 7u])));
}
