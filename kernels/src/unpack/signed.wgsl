// Signed bytes of a word, converted as the top byte of one: the sign comes with it.
const UNIT = vec4<f32>(5.9604644775390625e-8);

fn from_signed(v: u32) -> vec4<f32> {
    return vec4<f32>(
        f32(i32(v << 24u)), f32(i32((v << 16u) & 0xFF000000u)), f32(i32((v << 8u) & 0xFF000000u)),
        f32(i32(v & 0xFF000000u)));
}
