// Value by value: N, P or the rows of xbc are no multiples of four. Values past N are zeros, those past P whatever
// stands there.
fn values(at: u32, quad: u32) -> vec4<f32> {
    var four = vec4<f32>(0.0);
    for (var c = 0u; c < 4u; c++) {
        if (4u * quad + c < N) {
            four[c] = xbc[at + 4u * quad + c];
        }
    }
    return four;
}

fn x_of(token: u32, head: u32, quad: u32) -> vec4<f32> {
    var four = vec4<f32>(0.0);
    for (var c = 0u; c < 4u; c++) {
        if (4u * quad + c < p.head_dim) {
            four[c] = xbc[token * p.xbc_stride + head * p.head_dim + 4u * quad + c];
        }
    }
    return four;
}
