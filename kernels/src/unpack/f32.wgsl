// Eight words an oct.
const UNIT = vec4<f32>(1.0);

fn quants_of(row: u32, octs: u32, oct: u32) -> Oct {
    let at = row + 8u * oct;
    return Oct(
        bitcast<vec4<f32>>(vec4<u32>(word_at(at), word_at(at + 1u), word_at(at + 2u), word_at(at + 3u))),
        bitcast<vec4<f32>>(vec4<u32>(word_at(at + 4u), word_at(at + 5u), word_at(at + 6u), word_at(at + 7u))));
}
