// Two words an oct, signed bytes in order, converted as the top byte of a word: the sign comes with it.
const UNIT = vec4<f32>(5.9604644775390625e-8);

fn from_signed(v: u32) -> vec4<f32> {
    return vec4<f32>(
        f32(i32(v << 24u)), f32(i32((v << 16u) & 0xFF000000u)), f32(i32((v << 8u) & 0xFF000000u)),
        f32(i32(v & 0xFF000000u)));
}

fn quants_of(row: u32, octs: u32, oct: u32) -> Oct {
    let at = row + 2u * oct;
    return Oct(from_signed(w[at]), from_signed(w[at + 1u]));
}
