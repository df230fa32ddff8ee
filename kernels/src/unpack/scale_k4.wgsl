// Four words for 256 values: f16 factors of scales and minima; low nibbles of 8 scales; of 8 minima; the upper two
// bits of the scales (low half) and the minima.
fn scale_of(row: u32, octs: u32, oct: u32) -> vec2<f32> {
    let at = plane(row, octs, SCALES) + 4u * (oct / 32u);
    let group = (oct / 4u) % 8u;
    let factor = unpack2x16float(w[at]);
    let high = w[at + 3u] >> (2u * group);
    let scale = ((w[at + 1u] >> (4u * group)) & 15u) | ((high & 3u) << 4u);
    let low = ((w[at + 2u] >> (4u * group)) & 15u) | ((high >> 12u) & 48u);
    return factor * vec2<f32>(f32(i32(scale)), -f32(i32(low)));
}
