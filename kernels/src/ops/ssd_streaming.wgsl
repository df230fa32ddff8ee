// State space in blocks of L tokens, in order, with the state in workgroup memory
//
//   s_i = Σ_{t ≤ i} Δ_t·a within the block;   w_ij = e^(s_i − s_j) Δ_j C_i·B_j for j ≤ i, else 0
//   y_i = Σ_j w_ij x_j + e^(s_i) H C_i + D·x_i;   H' = e^(s_last) H + Σ_t e^(s_last − s_t) Δ_t x_t B_tᵀ
//
// Every exponent is a difference s_i − s_j with j ≤ i (or s_i itself), at most 0. What s has lost to rounding is lost to
// the exponent: 6e-8 of |s_last| at most, so 1e-4 where a block fades by e^-1600.
//
// Grid: one workgroup per (sequence, head, 4·QUADS rows of the state), folded over two dimensions; five barriers a block.
// The weights are computed again by each slice of a head: L·N operations a token beside the slice's 16·QUADS·N.
// Workgroup memory in vec4s: 4·QUADS·NQ of state, L·QUADS of x, L²/4 of weights, and 3·L floats: at most 16 KiB, which
// limits QUADS. Nothing grows with T.
// Measured on lavapipe only, where it is the slowest of the three forms: see the token-sequential one. On GPUs, whose
// default it is, neither it nor its block has been measured.

var<workgroup> state: array<vec4<f32>, 4u * QUADS * NQ>;
var<workgroup> inputs: array<vec4<f32>, L * QUADS>;
var<workgroup> weights: array<f32, L * L>;
var<workgroup> deltas: array<f32, L>;
var<workgroup> sums: array<f32, L>;
// Δ·a, later what a token adds to the state: e^(s_last − s_t) Δ_t.
var<workgroup> terms: array<f32, L>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(num_workgroups) workgroups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let index = workgroup.x + workgroup.y * workgroups.x;
    let sequence = index / (p.heads * p.parts);
    if (sequence >= step[p.sequence_count]) {
        return;
    }
    let run = run_of(sequence);
    if (run.slot >= p.slots) {
        return;
    }
    let slice = index % p.parts;
    let head = p.first_head + (index / p.parts) % p.heads;
    let group = head / p.group_heads;
    let a = vectors[p.a + head];
    let d = vectors[p.d + head];
    let base = (run.slot * p.all_heads + head) * p.head_dim;

    for (var i = lane; i < 4u * QUADS * NQ; i += WG) {
        let row = slice * 4u * QUADS + i / NQ;
        var h = vec4<f32>(0.0);
        if (run.position > 0u && row < p.head_dim) {
            h = state_at((base + row) * N, i % NQ);
        }
        state[i] = h;
    }

    for (var begin = 0u; begin < run.tokens; begin += L) {
        let count = min(L, run.tokens - begin);
        let first = run.first + begin;
        for (var t = lane; t < count; t += WG) {
            let delta = delta_of(first + t, head);
            deltas[t] = delta;
            terms[t] = delta * a;
        }
        for (var i = lane; i < count * QUADS; i += WG) {
            inputs[i] = x_of(first + i / QUADS, head, slice * QUADS + i % QUADS);
        }
        workgroupBarrier();
        for (var t = lane; t < count; t += WG) {
            var sum = 0.0;
            for (var u = 0u; u <= t; u++) {
                sum += terms[u];
            }
            sums[t] = sum;
        }
        workgroupBarrier();

        let last = sums[count - 1u];
        for (var t = lane; t < count; t += WG) {
            terms[t] = exp(last - sums[t]) * deltas[t];
        }
        // Tokens past the count are read as its last: their weights stay 0.
        for (var item = lane; item < count * (L / 4u); item += WG) {
            let i = item / (L / 4u);
            let j = item % (L / 4u) * 4u;
            //: for $c QUAD
            var w$c = 0.0;
            //: end
            if (j <= i) {
                let c_from = (first + i) * p.xbc_stride + p.c_column + group * N;
                //: for $c QUAD
                let b_from$c = (first + min(j + $cu, count - 1u)) * p.xbc_stride + p.b_column + group * N;
                //: end
                for (var n = 0u; n < NQ; n++) {
                    let c = values(c_from, n);
                    //: for $c QUAD
                    w$c += dot(c, values(b_from$c, n));
                    //: end
                }
                let s = sums[i];
                //: for $c QUAD
                if (j + $cu <= i) {
                    w$c *= exp(s - sums[j + $cu]) * deltas[j + $cu];
                } else {
                    w$c = 0.0;
                }
                //: end
            }
            //: for $c QUAD
            weights[i * L + j + $cu] = w$c;
            //: end
        }
        workgroupBarrier();

        for (var item = lane; item < (L / TOKENS) * QUADS; item += WG) {
            let quad = item % QUADS;
            let i = item / QUADS * TOKENS;
            if (i >= count) {
                continue;
            }
            //: for $r TOKENS
            let i$r = min(i + $ru, count - 1u);
            let c_from$r = (first + i$r) * p.xbc_stride + p.c_column + group * N;
            var y$r = vec4<f32>(0.0);
            //: end
            for (var n = 0u; n < NQ; n++) {
                let h0 = state[(4u * quad) * NQ + n];
                let h1 = state[(4u * quad + 1u) * NQ + n];
                let h2 = state[(4u * quad + 2u) * NQ + n];
                let h3 = state[(4u * quad + 3u) * NQ + n];
                //: for $r TOKENS
                let c$r = values(c_from$r, n);
                y$r += vec4<f32>(dot(c$r, h0), dot(c$r, h1), dot(c$r, h2), dot(c$r, h3));
                //: end
            }
            //: for $r TOKENS
            y$r = y$r * exp(sums[i$r]) + d * inputs[i$r * QUADS + quad];
            //: end
            for (var j = 0u; j < min(i + TOKENS, count); j++) {
                let x = inputs[j * QUADS + quad];
                //: for $r TOKENS
                y$r += weights[i$r * L + j] * x;
                //: end
            }
            let row = 4u * (slice * QUADS + quad);
            //: for $r TOKENS
            if (i + $ru < count) {
                let to = (first + i$r) * p.out_stride + head * p.head_dim + row;
                for (var c = 0u; c < 4u; c++) {
                    if (row + c < p.head_dim) {
                        out[to + c] = y$r[c];
                    }
                }
            }
            //: end
        }
        workgroupBarrier();

        let fade = exp(last);
        for (var item = lane; item < QUADS * NQ; item += WG) {
            let quad = item / NQ;
            let n = item % NQ;
            //: for $c QUAD
            var h$c = state[(4u * quad + $cu) * NQ + n] * fade;
            //: end
            for (var t = 0u; t < count; t++) {
                let x = inputs[t * QUADS + quad] * terms[t];
                let b = values((first + t) * p.xbc_stride + p.b_column + group * N, n);
                //: for $c QUAD
                h$c += x[$c] * b;
                //: end
            }
            //: for $c QUAD
            state[(4u * quad + $cu) * NQ + n] = h$c;
            //: end
        }
        workgroupBarrier();
    }

    for (var i = lane; i < 4u * QUADS * NQ; i += WG) {
        let row = slice * 4u * QUADS + i / NQ;
        if (row < p.head_dim) {
            put_state((base + row) * N, i % NQ, state[i]);
        }
    }
}
