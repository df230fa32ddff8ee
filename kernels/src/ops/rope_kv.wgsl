// Head norms, rope and the KV write of the tokens of a step
//
//   x' = x / sqrt(mean(x²) + eps) · (w + plus_one)                          queries and keys, where a norm is
//   v' = v / sqrt(mean(v²) + eps)                                           values, where their norm is
//   (a, b) -> (a·cos - b·sin, b·cos + a·sin)                                pairs (i, i + pairs) or (2i, 2i + 1)
//
// Values have columns of their own, or are the keys as they came: before their norm and rotation.
//
// Grid: one workgroup per (token, head): the query heads (when this dispatch does them), written in place; then the
// KV heads (unless another layer wrote them), key and value together because a q8_0 block of both shares a word. Physical pages outside the bound
// segment are left alone. Lanes own pairs, then words of the page row.
// Workgroup memory: key and value as f32, 8·Ep bytes, q8_0 scales, 4 bytes a lane: at most 4.6 KiB (E = 512, WG 128).

var<workgroup> key_row: array<f32, EP>;
var<workgroup> value_row: array<f32, EP>;
//: for $once Q8
var<workgroup> scales: array<vec2<f32>, BLOCKS>;
//: end

fn pair_of(i: u32) -> vec2<u32> {
    if (INTERLEAVED) {
        return vec2<u32>(2u * i, 2u * i + 1u);
    }
    return vec2<u32>(i, i + p.pairs);
}

fn rotated(x: vec2<f32>, token: u32, i: u32) -> vec2<f32> {
    let at = p.ropes + (token * p.pairs + i) * 2u;
    let c = bitcast<f32>(step[at]);
    let s = bitcast<f32>(step[at + 1u]);
    return vec2<f32>(x.x * c - x.y * s, x.y * c + x.x * s);
}

// 1 / root mean square of the head that starts at `start`, or 1 without a norm.
fn norm_scale(at: Lanes, start: u32, eps: f32) -> f32 {
    var squares = 0.0;
    for (var e = at.lane; e < E; e += WG) {
        squares += squares_of(qkv[start + e]);
    }
    return SHRINK * inverse_root(sum_lanes(at, squares) / f32(E), eps);
}

@compute @workgroup_size(WG)
fn main(at: Lanes) {
    let index = at.workgroup.x + at.workgroup.y * at.workgroups.x;
    let heads = p.queries + p.kv_heads;
    let token = index / heads;
    if (token >= step[STEP_TOKENS]) {
        return;
    }
    let head = index % heads;
    let is_query = head < p.queries;

    // Where a query head or a key head starts in the stacked row, and its norm.
    let kv_head = head - p.queries;
    let start = token * p.stride + select(p.heads + kv_head, head, is_query) * E;
    let normed = select(p.k_norm, p.q_norm, is_query) != 0u;
    let weight = select(p.k_weight, p.q_weight, is_query);
    let plus_one = select(p.k_plus_one, p.q_plus_one, is_query);
    var scale = 1.0;
    if (normed) {
        scale = norm_scale(at, start, select(p.k_eps, p.q_eps, is_query));
        // The sum must have read the head before any lane writes it.
        storageBarrier();
    }

    let position = step[p.positions + token];
    let slot = step[p.slots + token];
    let physical = step[p.table + slot * p.pages + (position / PAGE) % p.pages];
    let here = physical >= p.first_page && physical - p.first_page < p.segment_pages;
    if (!is_query && !here) {
        return;
    }

    for (var i = at.lane; i < E - p.pairs; i += WG) {
        // Pairs first, then the values that pass.
        let rotates = i < p.pairs;
        let kept = i + p.pairs;
        let e = select(vec2<u32>(kept, kept), pair_of(i), rotates);
        var v = vec2<f32>(qkv[start + e.x], qkv[start + e.y]);
        if (normed) {
            v *= scale * (vec2<f32>(vectors[weight + e.x], vectors[weight + e.y]) + plus_one);
        }
        if (rotates) {
            v = rotated(v, token, i);
        }
        if (is_query) {
            qkv[start + e.x] = v.x;
            qkv[start + e.y] = v.y;
        } else {
            key_row[e.x] = v.x;
            key_row[e.y] = v.y;
        }
    }
    if (is_query) {
        return;
    }
    let value_from = token * p.stride + (p.values + kv_head) * E;
    var value_scale = 1.0;
    if (p.v_norm != 0u) {
        value_scale = norm_scale(at, value_from, p.v_eps);
    }
    for (var e = at.lane; e < EP; e += WG) {
        if (e < E) {
            value_row[e] = qkv[value_from + e] * value_scale;
        } else {
            key_row[e] = 0.0;
            value_row[e] = 0.0;
        }
    }
    workgroupBarrier();

    let base = ((physical - p.first_page) * p.kv_heads + kv_head) * HEAD_WORDS;
    store(at.lane, base, position % PAGE);
}
