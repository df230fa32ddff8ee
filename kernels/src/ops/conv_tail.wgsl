// tail'[j, c] = the input TAPS − 1 − j tokens before the next one, j in 0..TAPS − 1: the newest last
//
// Grid: one workgroup per (sequence of the step, WG channels), folded over two dimensions; an invocation owns a channel
// and reads everything before it writes, because a step shorter than the tail shifts it. Inputs before position 0 are
// zeros. Workgroup memory: none. Sequences in slots that are not bound leave.

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(num_workgroups) workgroups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let index = workgroup.x + workgroup.y * workgroups.x;
    let channel = (index % p.parts) * WG + lane;
    let sequence = index / p.parts;
    if (channel >= p.channels || sequence >= step[p.sequence_count]) {
        return;
    }
    let entry = p.sequences + sequence * 4u;
    let first = step[entry];
    let tokens = step[entry + 1u];
    let slot = step[entry + 2u] - p.first_slot;
    let position = step[entry + 3u];
    if (slot >= p.slots) {
        return;
    }
    let base = slot * (TAPS - 1u) * p.channels + channel;
    //: for $j PAST
    var x$j = 0.0;
    if (tokens + $ju >= TAPS - 1u) {
        x$j = x[(first + tokens + $ju - (TAPS - 1u)) * p.x_stride + p.column + channel];
    } else if (position + tokens + $ju >= TAPS - 1u) {
        x$j = tails[base + (tokens + $ju) * p.channels];
    }
    //: end
    //: for $j PAST
    tails[base + $ju * p.channels] = x$j;
    //: end
}
