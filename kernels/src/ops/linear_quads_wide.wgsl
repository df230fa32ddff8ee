// Rows of x begin at whole vec4 and K is whole ones: x is `array<vec4<f32>>`. What stands past K counts as zero.
fn x_quad(row: u32, quad: u32) -> vec4<f32> {
    let quads = p.k / 4u;
    return select(vec4<f32>(0.0), x[row * (p.x_stride / 4u) + min(quad, quads - 1u)], quad < quads);
}
