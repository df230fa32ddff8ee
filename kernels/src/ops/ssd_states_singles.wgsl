fn state_at(at: u32, quad: u32) -> vec4<f32> {
    var four = vec4<f32>(0.0);
    for (var c = 0u; c < 4u; c++) {
        if (4u * quad + c < N) {
            four[c] = states[at + 4u * quad + c];
        }
    }
    return four;
}

fn put_state(at: u32, quad: u32, h: vec4<f32>) {
    for (var c = 0u; c < 4u; c++) {
        if (4u * quad + c < N) {
            states[at + 4u * quad + c] = h[c];
        }
    }
}
