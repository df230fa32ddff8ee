// Four values of a chunk.
fn quad_of(codes: Codes, quad: u32) -> vec4<f32> {
    let q = oct_of(codes, quad / 2u);
    return select(q.hi, q.lo, quad % 2u == 0u);
}
