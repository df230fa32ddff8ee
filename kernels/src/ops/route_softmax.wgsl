// Softmax over all experts: what is subtracted and divided by.
struct All {
    most: f32,
    sum: f32,
}

fn all_of(at: Lanes, row: u32) -> All {
    var key = 0u;
    for (var i = at.lane; i < EXPERTS; i += WG) {
        key = max(key, key_of(logit_at(row + i)));
    }
    let most = finite(max_lanes(at, key));
    var part = 0.0;
    for (var i = at.lane; i < EXPERTS; i += WG) {
        part += exp(logit_at(row + i) - most);
    }
    return All(most, sum_lanes(at, part));
}

fn score_of(logit: f32, all: All) -> f32 {
    return exp(logit - all.most) / all.sum;
}
