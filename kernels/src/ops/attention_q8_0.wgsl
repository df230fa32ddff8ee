// Pages of q8_0: a unit of 8 codes is a vec2 of words; the scales of 32 keys and 32 values share a word.
fn codes(w: u32) -> vec4<f32> {
    return vec4<f32>(vec4<i32>(vec4<u32>(w << 24u, w << 16u, w << 8u, w)) >> vec4<u32>(24u));
}

fn eight(at: u32, d: f32) -> Eight {
    let w = kv[at];
    return Eight(codes(w.x) * d, codes(w.y) * d);
}

// Of keys and of values.
fn scale_of(base: u32, key: u32, block: u32) -> vec2<f32> {
    let word = key * BLOCKS + block;
    let pair = kv[base + 2u * PAGE * ROW_STEP + word / 2u];
    return unpack2x16float(select(pair.x, pair.y, word % 2u == 1u));
}
