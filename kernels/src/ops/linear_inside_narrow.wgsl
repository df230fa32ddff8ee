// Any K and any stride, four single values. The quad begins before K ends.
fn x_inside(row: u32, quad: u32) -> vec4<f32> {
    let k = 4u * quad;
    return vec4<f32>(x_at(row, k), x_at(row, k + 1u), x_at(row, k + 2u), x_at(row, k + 3u));
}
