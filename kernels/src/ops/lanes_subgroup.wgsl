// Reductions over the lanes of a workgroup: within subgroups of whatever size the adapter has, then over the
// subgroups in workgroup memory. Every lane gets the result. Workgroup memory: 4 bytes a lane (the worst case,
// subgroups of one). All calls stand in uniform control flow.
struct Lanes {
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_id) group: u32,
    @builtin(num_subgroups) groups: u32,
    @builtin(subgroup_invocation_id) place: u32,
}

var<workgroup> lane_words: array<u32, WG>;

fn sum_lanes(at: Lanes, value: f32) -> f32 {
    let part = subgroupAdd(value);
    if (at.groups == 1u) {
        return part;
    }
    workgroupBarrier();
    if (at.place == 0u) {
        lane_words[at.group] = bitcast<u32>(part);
    }
    workgroupBarrier();
    var total = 0.0;
    for (var g = 0u; g < at.groups; g++) {
        total += bitcast<f32>(lane_words[g]);
    }
    return total;
}

fn max_lanes(at: Lanes, value: u32) -> u32 {
    let part = subgroupMax(value);
    if (at.groups == 1u) {
        return part;
    }
    workgroupBarrier();
    if (at.place == 0u) {
        lane_words[at.group] = part;
    }
    workgroupBarrier();
    var total = 0u;
    for (var g = 0u; g < at.groups; g++) {
        total = max(total, lane_words[g]);
    }
    return total;
}
