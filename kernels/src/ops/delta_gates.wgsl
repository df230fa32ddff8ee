// What both forms of the gated delta rule share: where a workgroup stands, decay and step size of a token.
//
// Both read q and k times SHRINK, and make them of length one by the `inverse_root` of the squares of that: norm.wgsl.

struct Place {
    // First token of the sequence in the step, tokens, and whether it starts from nothing.
    first: u32,
    tokens: u32,
    fresh: bool,
    // Head and first column.
    head: u32,
    column: u32,
    // Word of row 0 of the head's state.
    state: u32,
    // Column of q in qkv.
    query: u32,
    // False for workgroups past the count, and for sequences whose states are not bound here.
    here: bool,
}

fn place_of(index: u32) -> Place {
    let sequence = index / p.items;
    var place = Place();
    if (sequence >= step[p.count_word]) {
        return place;
    }
    let entry = p.sequences + sequence * 4u;
    let slot = step[entry + 2u];
    if (slot < p.first_slot || slot - p.first_slot >= p.slots) {
        return place;
    }
    let item = p.first_item + index % p.items;
    place.first = step[entry];
    place.tokens = step[entry + 1u];
    place.fresh = step[entry + 3u] == 0u;
    place.head = item / p.slices;
    place.column = item % p.slices * COLUMNS;
    place.state = ((slot - p.first_slot) * p.heads + place.head) * EK * p.value_dim;
    // The modulus does nothing to heads that stand together, and is all there is to those that take turns.
    place.query = place.head / p.group * EK % p.k_column;
    place.here = true;
    return place;
}

// log(1 + e^x) = max(x, 0) + log(1 + y), y = e^-|x|, and log(1 + y) = 2 artanh(y / (2 + y)): the series ends below
// 1e-8, where `log` of a number near 1 may be off by 5e-7.
fn softplus(x: f32) -> f32 {
    let y = exp(max(-abs(x), -80.0));
    let t = y / (2.0 + y);
    let u = t * t;
    let series = 1.0 + u * (1.0 / 3.0 + u * (0.2 + u * (1.0 / 7.0 + u * (1.0 / 9.0 + u * (1.0 / 11.0 + u / 13.0)))));
    return max(x, 0.0) + 2.0 * t * series;
}

// Decay factor and bias of a head.
fn rate_of(head: u32) -> vec2<f32> {
    return vec2<f32>(vectors[p.a + head], vectors[p.dt_bias + head]);
}

// Decay's logarithm and β of a token.
fn gates(token: u32, head: u32, rate: vec2<f32>) -> vec2<f32> {
    let row = token * p.ab_stride + head;
    let g = rate.x * softplus(ab[row + p.a_column] + rate.y);
    // The clamp keeps the exponential finite.
    return vec2<f32>(g, 1.0 / (1.0 + exp(min(-ab[row + p.b_column], 80.0))));
}

// The decay itself; below −80 nothing is left of a state.
fn decay(g: f32) -> f32 {
    return exp(max(g, -80.0));
}
