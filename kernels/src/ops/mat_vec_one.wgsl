// Sums over the lanes when the workgroup is one subgroup: no workgroup memory, no barrier. The lane that stores an
// output keeps its sum.
struct Lanes {
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(subgroup_invocation_id) lane: u32,
}

var<private> kept: array<f32, KEPT>;

fn add_lanes(at: Lanes, output: u32, value: f32) {
    let sum = subgroupAdd(value);
    if (at.lane == output % WG) {
        kept[output / WG] = sum;
    }
}

fn finish_lanes(at: Lanes) {}

fn lane_sum(at: Lanes, output: u32) -> f32 {
    return kept[output / WG];
}
