// Writes the staged key and value of a token: words are pairs of f16, clamped so that none becomes infinite.
fn halves(x: vec2<f32>) -> u32 {
    return pack2x16float(clamp(x, vec2<f32>(-65504.0), vec2<f32>(65504.0)));
}

fn store(lane: u32, base: u32, token: u32) {
    for (var i = lane; i < ROW_WORDS; i += WG) {
        let e = 2u * i;
        kv[base + token * ROW_WORDS + i] = halves(vec2<f32>(key_row[e], key_row[e + 1u]));
        kv[base + (PAGE + token) * ROW_WORDS + i] = halves(vec2<f32>(value_row[e], value_row[e + 1u]));
    }
}
