// State space, token by token: h = e^(Δ·a) h + Δ·x Bᵀ;   y = h C + D·x;   Δ = softplus(dt + bias)
//
// Grid: one workgroup per (sequence, head, ROWS rows of the state), folded over two dimensions. A lane holds VALUES
// values of each row in registers, every WG-th, for the whole of the step: the state is read once and written once.
// Rows are numbered in OCTS of WIDTH. Two barriers for TOKENS tokens. Sums over N:
//   staged   left in workgroup memory for TOKENS tokens and added up together; needs no subgroups. WIDTH is 1
//   spread   the workgroup is one subgroup of WIDTH lanes: each loads one x of an oct and hands it to the others, and
//            keeps one sum. Software drivers load and store lane by lane, so this is an eighth of both
// Workgroup memory: 2·TOKENS words, staged ROWS·(WG + 1)·TOKENS more.
//
// Measured on lavapipe (Mesa 22.3, AVX2, subgroups of 8) on a machine that others kept busy, so times vary by a factor of
// two between runs: CPU milliseconds of a layer, "blocks" the best of 16 to 128.
//                                      spread   five kernels (blocks)   streaming (blocks)
//   H 64, P 64, N 128, G 8, T 128           50              110 (64)            210 (16)
//   the same, T 512                        378              685 (32)          1,040 (16)
//   the same, T 2,048                    2,275            3,795 (64)         see below
//   H 8, P 32, N 32, G 2, T 512              5               15 (64)             20 (16)
//   the same, T 2,048                       25               55 (32)             80 (16)
// Each row is of one run; T 2,048 of the first size is in windows of 256 tokens, which the others were measured without.
// Without windows it took 3,285 to 3,815 and lost to five kernels (2,597 to 2,690): rows of xbc are 24 KiB apart, and B
// and C of so many tokens do not stay in the second cache. Of the first size at T 512, staged took 760 and spread 313.
// With nothing else to do the machine took 1,078 at T 2,048, five kernels 1,643 (64), streaming 2,118 (64) and 2,295 (16):
// `benches/results/flat_prefill.md`.

//: for $i STAGED
var<workgroup> parts: array<f32, TOKENS * ROWS * (WG + 1u)>;
//: end
var<workgroup> factors: array<vec2<f32>, TOKENS>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(num_workgroups) workgroups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let index = workgroup.x + workgroup.y * workgroups.x;
    let sequence = index / (p.heads * p.parts);
    if (sequence >= step[p.sequence_count]) {
        return;
    }
    var run = run_of(sequence);
    if (run.slot >= p.slots || run.tokens <= p.first_token) {
        return;
    }
    run.first += p.first_token;
    run.tokens = min(run.tokens - p.first_token, p.window);
    run.position += p.first_token;
    let slice = index % p.parts;
    let head = p.first_head + (index / p.parts) % p.heads;
    let group = head / p.group_heads;
    let a = vectors[p.a + head];
    let d = vectors[p.d + head];
    let base = (run.slot * p.all_heads + head) * p.head_dim;

    //: for $k VALUES
    let n$k = min(lane + $ku * WG, N - 1u);
    let real$k = EVEN || lane + $ku * WG < N;
    //: end
    //: for $o OCTS
    // The row whose x this lane loads, in the spread form.
    let mine$o = min(slice * ROWS + $ou * WIDTH + lane % WIDTH, p.head_dim - 1u);
    //: for $w WIDTH
    let row$o_$w = min(slice * ROWS + $ou * WIDTH + $wu, p.head_dim - 1u);
    //: for $k VALUES
    var h$o_$w_$k = 0.0;
    //: end
    //: end
    //: end
    if (run.position > 0u) {
        //: for $o OCTS
        //: for $w WIDTH
        //: for $k VALUES
        h$o_$w_$k = states[(base + row$o_$w) * N + n$k];
        //: end
        //: end
        //: end
    }

    for (var begin = 0u; begin < run.tokens; begin += TOKENS) {
        let count = min(TOKENS, run.tokens - begin);
        for (var t = lane; t < count; t += WG) {
            let delta = delta_of(run.first + begin + t, head);
            factors[t] = vec2<f32>(delta, exp(delta * a));
        }
        workgroupBarrier();
        for (var t = 0u; t < count; t++) {
            let start = (run.first + begin + t) * p.xbc_stride;
            let x_start = start + head * p.head_dim;
            let b_start = start + p.b_column + group * N;
            let c_start = start + p.c_column + group * N;
            let delta = factors[t].x;
            let fade = factors[t].y;
            //: for $o OCTS
            let x$o = xbc[x_start + mine$o];
            //: for $w WIDTH
            //: for $i STAGED
            let x$o_$w = x$o * delta;
            //: end
            //: for $i SPREAD
            let x$o_$w = subgroupBroadcast(x$o, $wu) * delta;
            //: end
            var sum$o_$w = 0.0;
            //: end
            //: end
            //: for $k VALUES
            {
                let b = xbc[b_start + n$k];
                let c = select(0.0, xbc[c_start + n$k], real$k);
                //: for $o OCTS
                //: for $w WIDTH
                h$o_$w_$k = h$o_$w_$k * fade + x$o_$w * b;
                sum$o_$w += h$o_$w_$k * c;
                //: end
                //: end
            }
            //: end
            //: for $i STAGED
            //: for $o OCTS
            parts[(t * ROWS + $ou) * (WG + 1u) + lane] = sum$o_0;
            //: end
            //: end
            //: for $i SPREAD
            //: for $o OCTS
            var y$o = 0.0;
            //: for $w WIDTH
            {
                let y = subgroupAdd(sum$o_$w);
                y$o = select(y$o, y, lane == $wu);
            }
            //: end
            if (slice * ROWS + $ou * WIDTH + lane < p.head_dim) {
                out[(run.first + begin + t) * p.out_stride + head * p.head_dim + mine$o] = y$o + d * x$o;
            }
            //: end
            //: end
        }
        workgroupBarrier();
        //: for $i STAGED
        for (var i = lane; i < count * ROWS; i += WG) {
            let row = slice * ROWS + i % ROWS;
            if (row < p.head_dim) {
                let token = run.first + begin + i / ROWS;
                var y = d * xbc[token * p.xbc_stride + head * p.head_dim + row];
                for (var l = 0u; l < WG; l++) {
                    y += parts[i * (WG + 1u) + l];
                }
                out[token * p.out_stride + head * p.head_dim + row] = y;
            }
        }
        //: end
    }

    //: for $o OCTS
    //: for $w WIDTH
    if (slice * ROWS + $ou * WIDTH + $wu < p.head_dim) {
        //: for $k VALUES
        if (real$k) {
            states[(base + row$o_$w) * N + n$k] = h$o_$w_$k;
        }
        //: end
    }
    //: end
    //: end
}
