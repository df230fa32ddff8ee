// out[t, c] = silu(bias[c] + Σ_j w[c, j]·x[t − (TAPS − 1) + j, c]) over the tokens of each sequence
//
// Grid: one workgroup per (TOKENS tokens of the step, WG channels), folded over two dimensions; an invocation walks its
// tokens with the last TAPS inputs of one channel in registers, so an input is loaded once. Where another sequence
// begins, it looks back: into the step while the tokens are of the same slot, then into the tail, and to zeros before
// position 0, whatever the tail holds. Workgroup memory: none. Tokens of slots that are not bound leave.

fn earlier(token: u32, slot: u32, back: u32, channel: u32) -> f32 {
    var inside = 0u;
    while (inside < min(back, token) && step[p.token_slots + token - inside - 1u] == slot) {
        inside++;
    }
    if (inside == back) {
        return x[(token - back) * p.x_stride + p.column + channel];
    }
    if (step[p.positions + token] < back) {
        return 0.0;
    }
    let row = (slot - p.first_slot) * (TAPS - 1u) + TAPS - 1u - (back - inside);
    return tails[row * p.channels + channel];
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(num_workgroups) workgroups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let index = workgroup.x + workgroup.y * workgroups.x;
    let channel = (index % p.parts) * WG + lane;
    let begin = (index / p.parts) * TOKENS;
    let end = min(begin + TOKENS, step[STEP_TOKENS]);
    if (channel >= p.channels || begin >= end) {
        return;
    }
    //: for $j TAPS
    let w$j = vectors[p.weight + channel * TAPS + $ju];
    var x$j = 0.0;
    //: end
    var bias = 0.0;
    if (p.has_bias == 1u) {
        bias = vectors[p.bias + channel];
    }
    var before = 0u;
    for (var token = begin; token < end; token++) {
        let slot = step[p.token_slots + token];
        let goes_on = token > begin && slot == before;
        before = slot;
        if (slot - p.first_slot >= p.slots) {
            continue;
        }
        if (goes_on) {
            //: shift
        } else {
            //: for $j PAST
            x$j = earlier(token, slot, TAPS - 1u - $ju, channel);
            //: end
        }
        //: newest
        var sum = bias;
        //: for $j TAPS
        sum += w$j * x$j;
        //: end
        // Below −80 the value is under 1e-33 whatever the exponential; the clamp keeps it finite.
        out[token * p.out_stride + channel] = sum / (1.0 + exp(min(-sum, 80.0)));
    }
}
