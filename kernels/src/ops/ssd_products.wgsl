// Of the five kernels, the fourth: C_i·B_j for j ≤ i, of a block and a group of heads
//
// Grid: WG tiles of 4 × 4 of (block, group), those on and below the diagonal; a lane holds its tile in registers.
// Tokens past the block's are read as its last. Workgroup memory: none.

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(num_workgroups) workgroups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let index = workgroup.x + workgroup.y * workgroups.x;
    let item = (index % p.parts) * WG + lane;
    let number = index / (p.parts * p.heads);
    // Here `heads` are groups.
    let group = p.first_head + (index / p.parts) % p.heads;
    let i = item / (L / 4u) * 4u;
    let j = item % (L / 4u) * 4u;
    if (number >= p.blocks || j > i || i >= L) {
        return;
    }
    let block = block_of(number);
    if (i >= block.tokens) {
        return;
    }
    //: for $c QUAD
    let c_from$c = (block.first + min(i + $cu, block.tokens - 1u)) * p.xbc_stride + p.c_column + group * N;
    let b_from$c = (block.first + min(j + $cu, block.tokens - 1u)) * p.xbc_stride + p.b_column + group * N;
    var row$c = vec4<f32>(0.0);
    //: end
    for (var n = 0u; n < NQ; n++) {
        let b0 = values(b_from0, n);
        let b1 = values(b_from1, n);
        let b2 = values(b_from2, n);
        let b3 = values(b_from3, n);
        //: for $c QUAD
        let c$c = values(c_from$c, n);
        row$c += vec4<f32>(dot(c$c, b0), dot(c$c, b1), dot(c$c, b2), dot(c$c, b3));
        //: end
    }
    let to = p.products + ((number * p.groups + group) * L + i) * (L / 4u) + j / 4u;
    //: for $c QUAD
    scratch[to + $cu * (L / 4u)] = row$c;
    //: end
}
