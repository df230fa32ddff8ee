// Pages of floats: a unit of 8 values is two vec4.
fn eight(at: u32, d: f32) -> Eight {
    return Eight(bitcast<vec4<f32>>(kv[at]), bitcast<vec4<f32>>(kv[at + 1u]));
}

fn scale_of(base: u32, key: u32, block: u32) -> vec2<f32> {
    return vec2<f32>(1.0);
}
