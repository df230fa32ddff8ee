// Rows of x begin at whole vec4 and K is whole ones: x is `array<vec4<f32>>`. The quad is one of K's.
fn x_inside(row: u32, quad: u32) -> vec4<f32> {
    return x[row * (p.x_stride / 4u) + quad];
}
