// Codes are gathered as four unsigned bytes of a word. The middle ones are converted where they stand, and UNIT
// takes the powers of two away: a mask is cheaper than a shift and a mask. Signed conversions: they are one
// instruction everywhere.
const UNIT = vec4<f32>(1.0, 0.00390625, 0.0000152587890625, 1.0);

fn from_bytes(v: u32) -> vec4<f32> {
    return vec4<f32>(
        f32(i32(v & 0xFFu)), f32(i32(v & 0xFF00u)), f32(i32(v & 0xFF0000u)), f32(i32(v >> 24u)));
}
