// Keys order as floats do, by bits: no comparison ever sees a NaN, which takes the place of the most negative finite
// float. Zeros of both signs are equal; 0 is below every key.
fn key_of(logit: f32) -> u32 {
    let bits = bitcast<u32>(logit);
    let size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) {
        return 0x00800000u;
    }
    if (size == 0u) {
        return 0x80000000u;
    }
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

fn bits_of(key: u32) -> u32 {
    return select(~key, key & 0x7fffffffu, (key >> 31u) == 1u);
}

// Finite: sums of exponentials take infinities as the largest float.
fn finite(key: u32) -> f32 {
    return bitcast<f32>(bits_of(clamp(key, 0x00800000u, 0xff7fffffu)));
}
