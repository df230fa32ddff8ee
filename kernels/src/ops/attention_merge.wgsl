// out[t, h] = Σ e^(m_i - m) acc_i / Σ e^(m_i - m) l_i, with m the largest m_i; 0 where every l_i is 0
// With sinks: m = max(m_i, sink), and the divisor has e^(sink - m) besides.
//
// scratch is [splits][T][Hq] states of QUADS + 1 vec4: acc, then (m, l, 0, 0).
// Grid: `blocks` workgroups a token; a lane owns four values of one head. No workgroup memory.

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(num_workgroups) workgroups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let index = workgroup.x + workgroup.y * workgroups.x;
    let token = index / p.blocks;
    let item = (index % p.blocks) * WG + lane;
    let head = item / p.quads;
    if (token >= step[STEP_TOKENS] || head >= p.heads) {
        return;
    }
    let quad = item % p.quads;
    let size = p.quads + 1u;
    let first = (token * p.heads + head) * size;
    let stride = p.max_tokens * p.heads * size;

    var largest = scratch[first + p.quads].x;
    for (var i = 1u; i < p.splits; i++) {
        largest = max(largest, scratch[first + i * stride + p.quads].x);
    }
    var sum = 0.0;
    //: for $once SINKS
    let sink = vectors[p.sinks + head];
    largest = max(largest, sink);
    sum = exp(sink - largest);
    //: end
    var acc = vec4<f32>(0.0);
    for (var i = 0u; i < p.splits; i++) {
        let at = first + i * stride;
        let state = scratch[at + p.quads];
        let share = exp(state.x - largest);
        sum += share * state.y;
        acc += share * scratch[at + quad];
    }
    acc *= select(0.0, 1.0 / sum, sum > 0.0);
    let to = token * p.out_stride + head * p.head_dim;
    for (var e = 0u; e < 4u; e++) {
        if (quad * 4u + e < p.head_dim) {
            out[to + quad * 4u + e] = acc[e];
        }
    }
}
