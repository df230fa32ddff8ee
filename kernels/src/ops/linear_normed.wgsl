// Four values of a row of x on their way in: times the norm's weight, and by 2^-32, so that rows as large as a norm takes
// have sums in f32. The root is taken of all of them at the end.
fn weighed(x: vec4<f32>, quad: u32) -> vec4<f32> {
    return x * (SHRINK * (vectors[p.weight + min(quad, p.k / 4u - 1u)] + p.plus_one));
}

// What the sums of weighed values are multiplied by, from the squares of the values as they came.
fn root_of(squares: f32) -> f32 {
    return inverse_root(squares / f32(p.k), p.eps);
}
