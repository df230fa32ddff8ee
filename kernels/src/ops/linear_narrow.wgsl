// Any K and any stride, by octs.
fn x_oct(row: u32, oct: u32) -> Oct {
    let k = 8u * oct;
    return Oct(
        vec4<f32>(x_at(row, k), x_at(row, k + 1u), x_at(row, k + 2u), x_at(row, k + 3u)),
        vec4<f32>(x_at(row, k + 4u), x_at(row, k + 5u), x_at(row, k + 6u), x_at(row, k + 7u)));
}
