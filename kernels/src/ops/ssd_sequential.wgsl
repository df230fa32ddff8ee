// State space, token by token: h = e^(Δ·a) h + Δ·x Bᵀ;   y = h C + D·x;   Δ = softplus(dt + bias)
//
// Grid: one workgroup per (sequence, head, ROWS rows of the state), folded over two dimensions. A lane holds VALUES
// values of each row in registers, every WG-th, for the whole of the step: the state is read once and written once.
// Sums over N are left in workgroup memory for TOKENS tokens and added up together, so that there are two barriers for
// TOKENS tokens and no need of subgroups. Workgroup memory: (ROWS·(WG + 1) + 2)·TOKENS words.
// MEASURED

var<workgroup> parts: array<f32, TOKENS * ROWS * (WG + 1u)>;
var<workgroup> factors: array<vec2<f32>, TOKENS>;

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

    //: for $k VALUES
    let n$k = min(lane + $ku * WG, N - 1u);
    let real$k = EVEN || lane + $ku * WG < N;
    //: end
    //: for $r ROWS
    let row$r = min(slice * ROWS + $ru, p.head_dim - 1u);
    //: for $k VALUES
    var h$r_$k = 0.0;
    //: end
    //: end
    if (run.position > 0u) {
        //: for $r ROWS
        //: for $k VALUES
        h$r_$k = states[(base + row$r) * N + n$k];
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
            let x_from = start + head * p.head_dim;
            let b_from = start + p.b_column + group * N;
            let c_from = start + p.c_column + group * N;
            let delta = factors[t].x;
            let fade = factors[t].y;
            //: for $r ROWS
            let x$r = xbc[x_from + row$r] * delta;
            var sum$r = 0.0;
            //: end
            //: for $k VALUES
            {
                let b = xbc[b_from + n$k];
                let c = select(0.0, xbc[c_from + n$k], real$k);
                //: for $r ROWS
                h$r_$k = h$r_$k * fade + x$r * b;
                sum$r += h$r_$k * c;
                //: end
            }
            //: end
            //: for $r ROWS
            parts[(t * ROWS + $ru) * (WG + 1u) + lane] = sum$r;
            //: end
        }
        workgroupBarrier();
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
    }

    //: for $r ROWS
    if (slice * ROWS + $ru < p.head_dim) {
        //: for $k VALUES
        if (real$k) {
            states[(base + row$r) * N + n$k] = h$r_$k;
        }
        //: end
    }
    //: end
}
