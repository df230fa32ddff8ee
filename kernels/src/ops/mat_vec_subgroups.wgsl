// Sums over the lanes of several subgroups of any size: each leaves one value an output in workgroup memory.
struct Lanes {
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_id) group: u32,
    @builtin(num_subgroups) groups: u32,
    @builtin(subgroup_invocation_id) place: u32,
}

var<workgroup> partial: array<f32, WG * SUMS>;

fn add_lanes(at: Lanes, output: u32, value: f32) {
    let sum = subgroupAdd(value);
    if (at.place == 0u) {
        partial[at.group * SUMS + output] = sum;
    }
}

fn finish_lanes(at: Lanes) {
    workgroupBarrier();
}

fn lane_sum(at: Lanes, output: u32) -> f32 {
    var sum = 0.0;
    for (var g = 0u; g < at.groups; g++) {
        sum += partial[g * SUMS + output];
    }
    return sum;
}
