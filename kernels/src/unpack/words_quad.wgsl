// The matrix is read by four words where that can be: w is `array<vec4<u32>>`. Rows begin at whole ones.
fn word_at(at: u32) -> u32 {
    return w[at / 4u][at % 4u];
}

// Four words from `at` on, in one load if that is `aligned`.
fn quad_at(at: u32, aligned: bool) -> vec4<u32> {
    if (aligned) {
        return w[at / 4u];
    }
    return vec4<u32>(word_at(at), word_at(at + 1u), word_at(at + 2u), word_at(at + 3u));
}

// Two words from `at` on, which is even if `aligned`.
fn pair_at(at: u32, aligned: bool) -> vec2<u32> {
    if (aligned) {
        let v = w[at / 4u];
        return select(v.xy, v.zw, at % 4u != 0u);
    }
    return vec2<u32>(word_at(at), word_at(at + 1u));
}

// The next 16 bits of two words, and of four words the next word.
fn next_half(v: vec2<u32>) -> vec2<u32> {
    return vec2<u32>((v.x >> 16u) | (v.y << 16u), v.y >> 16u);
}

fn next_word(v: vec4<u32>) -> vec4<u32> {
    return v.yzwx;
}
