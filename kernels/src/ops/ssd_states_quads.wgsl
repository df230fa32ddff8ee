fn state_at(at: u32, quad: u32) -> vec4<f32> {
    return states[at / 4u + quad];
}

fn put_state(at: u32, quad: u32, h: vec4<f32>) {
    states[at / 4u + quad] = h;
}
