// Of the five kernels, the last: y_i = Σ_{j ≤ i} e^(s_i − s_j) Δ_j (C_i·B_j) x_j + e^(s_i) H C_i + D·x_i
//
// Grid: WG tiles of TOKENS tokens × 4 rows of (block, head), in registers. For what stands before the tile's first token
// f the exponential is taken in two steps, e^(s_i − s_f) and e^(s_f − s_j): both are at most 1, and the second is shared
// by the tokens of the tile. Workgroup memory: none.

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(num_workgroups) workgroups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let index = workgroup.x + workgroup.y * workgroups.x;
    let item = (index % p.parts) * WG + lane;
    let number = index / (p.parts * p.heads);
    let head = p.first_head + (index / p.parts) % p.heads;
    let quad = item % p.quads;
    let i = item / p.quads * TOKENS;
    if (number >= p.blocks || i >= L) {
        return;
    }
    let block = block_of(number);
    if (i >= block.tokens) {
        return;
    }
    let group = head / p.group_heads;
    let sums = block.first * p.all_heads + head;
    let h_from = p.block_states + ((number * p.all_heads + head) * p.quads + quad) * 4u * NQ;
    let w_from = p.products * 4u + (number * p.groups + group) * L * L;
    //: for $r TOKENS
    let i$r = min(i + $ru, block.tokens - 1u);
    let c_from$r = (block.first + i$r) * p.xbc_stride + p.c_column + group * N;
    let s$r = scratch[sums + i$r * p.all_heads].y;
    var y$r = vec4<f32>(0.0);
    //: end
    for (var n = 0u; n < NQ; n++) {
        let h0 = scratch[h_from + n];
        let h1 = scratch[h_from + NQ + n];
        let h2 = scratch[h_from + 2u * NQ + n];
        let h3 = scratch[h_from + 3u * NQ + n];
        //: for $r TOKENS
        let c$r = values(c_from$r, n);
        y$r += vec4<f32>(dot(c$r, h0), dot(c$r, h1), dot(c$r, h2), dot(c$r, h3));
        //: end
    }
    // The state has faded since the block began; up to the tile's first token for now.
    let to_first = exp(s0);
    //: for $r TOKENS
    y$r *= to_first;
    //: end
    for (var j = 0u; j < i; j += 4u) {
        //: for $c QUAD
        let from$c = scratch[sums + (j + $cu) * p.all_heads];
        let x$c = x_of(block.first + j + $cu, head, quad) * (exp(s0 - from$c.y) * from$c.x);
        //: end
        //: for $r TOKENS
        let w$r = scratch[(w_from + i$r * L + j) / 4u];
        y$r += w$r.x * x0 + w$r.y * x1 + w$r.z * x2 + w$r.w * x3;
        //: end
    }
    //: for $r TOKENS
    y$r *= exp(s$r - s0);
    //: end
    let d = vectors[p.d + head];
    for (var k = 0u; k < min(TOKENS, block.tokens - i); k++) {
        let x = x_of(block.first + i + k, head, quad);
        let one = scratch[sums + (i + k) * p.all_heads];
        let at = (i + k) % 4u;
        //: for $r TOKENS
        if (k <= $ru) {
            let w = scratch[(w_from + i$r * L + i + k) / 4u][at];
            y$r += (exp(s$r - one.y) * one.x * w + select(0.0, d, k == $ru)) * x;
        }
        //: end
    }
    //: for $r TOKENS
    if (i + $ru < block.tokens) {
        let to = (block.first + i$r) * p.out_stride + head * p.head_dim + 4u * quad;
        for (var c = 0u; c < 4u; c++) {
            if (4u * quad + c < p.head_dim) {
                out[to + c] = y$r[c];
            }
        }
    }
    //: end
}
