// Pages of f16: a unit of 8 values is one vec4 of words.
fn eight(at: u32, d: f32) -> Eight {
    let w = kv[at];
    return Eight(
        vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y)),
        vec4<f32>(unpack2x16float(w.z), unpack2x16float(w.w)),
    );
}

fn scale_of(base: u32, key: u32, block: u32) -> vec2<f32> {
    return vec2<f32>(1.0);
}
