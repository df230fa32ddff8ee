// Writes the staged key and value of a token: blocks of 32 codes round(x·127/amax) and an f16 scale amax/127 each.
fn code(x: f32, inverse: f32) -> u32 {
    return bitcast<u32>(i32(round(x * inverse))) & 0xffu;
}

fn codes(a: vec4<f32>, largest: f32) -> u32 {
    let inverse = select(0.0, 127.0 / largest, largest > 1e-30);
    return code(a.x, inverse) | (code(a.y, inverse) << 8u) | (code(a.z, inverse) << 16u) | (code(a.w, inverse) << 24u);
}

fn store(lane: u32, base: u32, token: u32) {
    for (var b = lane; b < BLOCKS; b += WG) {
        var largest = vec2<f32>(0.0);
        for (var e = 32u * b; e < 32u * b + 32u; e++) {
            largest = max(largest, abs(vec2<f32>(key_row[e], value_row[e])));
        }
        scales[b] = largest;
        kv[base + 2u * PAGE * ROW_WORDS + token * BLOCKS + b] =
            pack2x16float(min(largest / 127.0, vec2<f32>(65504.0)));
    }
    workgroupBarrier();
    for (var i = lane; i < ROW_WORDS; i += WG) {
        let e = 4u * i;
        let largest = scales[i / 8u];
        let key = vec4<f32>(key_row[e], key_row[e + 1u], key_row[e + 2u], key_row[e + 3u]);
        let value = vec4<f32>(value_row[e], value_row[e + 1u], value_row[e + 2u], value_row[e + 3u]);
        kv[base + token * ROW_WORDS + i] = codes(key, largest.x);
        kv[base + (PAGE + token) * ROW_WORDS + i] = codes(value, largest.y);
    }
}
