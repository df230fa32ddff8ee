// Of the five kernels, the first: Δ, s_t = Σ_{u ≤ t} Δ_u·a within the block, e^(s_last − s_t) Δ_t and e^(s_t), as one vec4
//
// Grid: WG heads of a block. A lane walks its block twice. Workgroup memory: none.

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(num_workgroups) workgroups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let index = workgroup.x + workgroup.y * workgroups.x;
    let local = (index % p.parts) * WG + lane;
    let number = index / p.parts;
    if (number >= p.blocks || local >= p.heads) {
        return;
    }
    let block = block_of(number);
    let head = p.first_head + local;
    let a = vectors[p.a + head];
    var sum = 0.0;
    for (var t = 0u; t < block.tokens; t++) {
        let delta = delta_of(block.first + t, head);
        sum += delta * a;
        scratch[(block.first + t) * p.all_heads + head] = vec4<f32>(delta, sum, 0.0, exp(sum));
    }
    for (var t = 0u; t < block.tokens; t++) {
        let at = (block.first + t) * p.all_heads + head;
        let one = scratch[at];
        scratch[at].z = exp(sum - one.y) * one.x;
    }
}
