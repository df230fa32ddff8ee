// Sums over the lanes in workgroup memory: halves until FEW lanes are left, which the storing lane adds up.
struct Lanes {
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
}

const FEW: u32 = min(WG, 8u);

var<workgroup> partial: array<f32, WG * SUMS>;

fn add_lanes(at: Lanes, output: u32, value: f32) {
    partial[at.lane * SUMS + output] = value;
}

fn finish_lanes(at: Lanes) {
    workgroupBarrier();
    for (var width = WG / 2u; width >= FEW; width /= 2u) {
        for (var i = at.lane; i < width * SUMS; i += WG) {
            partial[i] += partial[i + width * SUMS];
        }
        workgroupBarrier();
    }
}

fn lane_sum(at: Lanes, output: u32) -> f32 {
    var sum = 0.0;
    for (var lane = 0u; lane < FEW; lane++) {
        sum += partial[lane * SUMS + output];
    }
    return sum;
}
