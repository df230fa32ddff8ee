// Four values of a chunk, which are a load of their own.
fn quad_of(codes: Codes, quad: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(w[codes.at + quad]);
}
