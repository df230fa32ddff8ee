// Of the five kernels, the second: S = Σ_t e^(s_last − s_t) Δ_t x_t B_tᵀ of a block and a head
//
// Grid: WG tiles of 4 rows × 4 values of (block, head). Workgroup memory: none.

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(num_workgroups) workgroups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let index = workgroup.x + workgroup.y * workgroups.x;
    let item = (index % p.parts) * WG + lane;
    let number = index / (p.parts * p.heads);
    let head = p.first_head + (index / p.parts) % p.heads;
    let quad = item / NQ;
    let n = item % NQ;
    if (number >= p.blocks || 4u * quad >= p.head_dim) {
        return;
    }
    let block = block_of(number);
    if (block.tokens == 0u) {
        return;
    }
    let b_column = p.b_column + head / p.group_heads * N;
    //: for $c QUAD
    var h$c = vec4<f32>(0.0);
    //: end
    for (var t = 0u; t < block.tokens; t++) {
        let token = block.first + t;
        let x = x_of(token, head, quad) * scratch[token * p.all_heads + head].z;
        let b = values(token * p.xbc_stride + b_column, n);
        //: for $c QUAD
        h$c += x[$c] * b;
        //: end
    }
    let to = p.block_states + ((number * p.all_heads + head) * p.quads + quad) * 4u * NQ + n;
    //: for $c QUAD
    scratch[to + $cu * NQ] = h$c;
    //: end
}
