// Of the five kernels, the third: H_i = e^(s_last) H_{i−1} + S_i over the blocks of a sequence, in order; H_{i−1}, what the
// block begins with, stands where S_i stood, and the last goes to the pool
//
// Grid: WG quads of values of (sequence, head). Workgroup memory: none.

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(num_workgroups) workgroups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let index = workgroup.x + workgroup.y * workgroups.x;
    let item = (index % p.parts) * WG + lane;
    let sequence = index / (p.parts * p.heads);
    let head = p.first_head + (index / p.parts) % p.heads;
    let row = item / NQ;
    let n = item % NQ;
    if (sequence >= step[p.sequence_count] || row >= p.head_dim) {
        return;
    }
    let run = run_of(sequence);
    if (run.slot >= p.slots) {
        return;
    }
    let pool = ((run.slot * p.all_heads + head) * p.head_dim + row) * N;
    var h = vec4<f32>(0.0);
    if (run.position > 0u) {
        h = state_at(pool, n);
    }
    let number = first_block(run, sequence);
    for (var i = 0u; i * L < run.tokens; i++) {
        let at = p.block_states + ((number + i) * p.all_heads + head) * p.quads * 4u * NQ + row * NQ + n;
        let last = run.first + min((i + 1u) * L, run.tokens) - 1u;
        let added = scratch[at];
        scratch[at] = h;
        h = h * scratch[last * p.all_heads + head].w + added;
    }
    put_state(pool, n, h);
}
