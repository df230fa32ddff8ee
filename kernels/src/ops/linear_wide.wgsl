// K is whole octs and rows of x begin at whole vec4: x is `array<vec4<f32>>`.
fn x_oct(row: u32, oct: u32) -> Oct {
    let at = row * (p.x_stride / 4u) + 2u * oct;
    return Oct(x[at], x[at + 1u]);
}
