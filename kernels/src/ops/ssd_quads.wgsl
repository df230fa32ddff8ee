// Four values at a time: N, P and the rows of xbc are multiples of four.
fn values(at: u32, quad: u32) -> vec4<f32> {
    return xbc[at / 4u + quad];
}

fn x_of(token: u32, head: u32, quad: u32) -> vec4<f32> {
    return xbc[(token * p.xbc_stride + head * p.head_dim) / 4u + quad];
}
