// Writes the staged key and value of a token: words are floats.
fn store(lane: u32, base: u32, token: u32) {
    for (var i = lane; i < ROW_WORDS; i += WG) {
        kv[base + token * ROW_WORDS + i] = bitcast<u32>(key_row[i]);
        kv[base + (PAGE + token) * ROW_WORDS + i] = bitcast<u32>(value_row[i]);
    }
}
