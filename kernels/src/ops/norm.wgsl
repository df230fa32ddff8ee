// Norms without overflow: squares are of x·2^-32, so that |x| up to 10^27 or so has a sum of squares in f32. Powers of
// two round nothing.
//
// 1 / sqrt(squares + eps·2^-64), of such squares (their mean or their sum): the norm of x·2^-32, which may be 2^-61 or
// more and counts as that where it is less. So zeros stay zeros also without an epsilon.
//
// Where the squares are no number or past the largest all the same, so is the result: 1 / sqrt(∞) would make zeros of
// a row, and zeros look like an answer. The test looks at bits, which fast math leaves alone.
const SHRINK: f32 = 2.3283064365386963e-10;
const LEAST: f32 = 2.350988701644575e-38;

fn inverse_root(squares: f32, eps: f32) -> f32 {
    let bits = bitcast<u32>(squares);
    let root = inverseSqrt(max(squares + eps * (SHRINK * SHRINK), LEAST));
    return select(root, bitcast<f32>(bits | 0x00400000u), (bits & 0x7f800000u) == 0x7f800000u);
}
