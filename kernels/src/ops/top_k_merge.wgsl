// Stage 2 of top-k: candidates are the pairs that stage 1 left for a row, its blocks one after the other.

fn first_of(index: u32) -> u32 {
    return index * p.blocks * (p.k + 1u) * 2u;
}

fn count_of(index: u32) -> u32 {
    return p.blocks * p.k;
}

fn fetch(start: u32, i: u32) -> Pair {
    let at = start + 2u * (i + i / p.k);
    return Pair(x[at], x[at + 1u]);
}

fn terms_of(index: u32) -> u32 {
    return p.blocks;
}

fn term(start: u32, i: u32, largest: f32) -> f32 {
    let at = start + 2u * (i * (p.k + 1u) + p.k);
    let sum = bitcast<f32>(x[at + 1u]);
    return select(sum * exp(finite(x[at]) - largest), SPOILT, sum < 0.0);
}

fn word_of(key: u32) -> u32 {
    // Nothing is left of a vocabulary smaller than k: the most negative float.
    return select(bits_of(key), 0xff7fffffu, key == 0u);
}

fn sum_head(largest: u32) -> u32 {
    return 0u;
}

fn sum_word(largest: u32, sum: f32) -> u32 {
    return select(bitcast<u32>(finite(largest) + log(max(sum, 1.0))), NAN, sum < 0.0);
}
