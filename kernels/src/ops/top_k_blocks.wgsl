// Stage 1 of top-k: candidates are the logits of one block of a row.

fn block_of(index: u32) -> u32 {
    return index % p.groups;
}

fn first_of(index: u32) -> u32 {
    return (index / p.groups) * p.stride + block_of(index) * BLOCK;
}

fn count_of(index: u32) -> u32 {
    return min(BLOCK, p.vocab - block_of(index) * BLOCK);
}

fn fetch(start: u32, i: u32) -> Pair {
    // Ids are relative to the row, whose first logit stands at a multiple of the stride.
    return Pair(start % p.stride + i, key_of(x[start + i]));
}

fn terms_of(index: u32) -> u32 {
    return count_of(index);
}

fn term(start: u32, i: u32, largest: f32) -> f32 {
    let bits = bitcast<u32>(x[start + i]);
    let spoilt = (bits & 0x7fffffffu) > 0x7f800000u || bits == 0x7f800000u;
    return select(exp(finite(key_of(x[start + i])) - largest), SPOILT, spoilt);
}

fn word_of(key: u32) -> u32 {
    return key;
}

fn sum_head(largest: u32) -> u32 {
    return largest;
}

fn sum_word(largest: u32, sum: f32) -> u32 {
    return bitcast<u32>(sum);
}
