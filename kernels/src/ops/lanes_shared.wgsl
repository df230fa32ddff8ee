// Reductions over the lanes of a workgroup as a tree in workgroup memory; WG may be any number. Every lane gets the
// result. Workgroup memory: 4 bytes a lane. All calls stand in uniform control flow.
struct Lanes {
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
}

var<workgroup> lane_words: array<u32, WG>;

fn sum_lanes(at: Lanes, value: f32) -> f32 {
    workgroupBarrier();
    lane_words[at.lane] = bitcast<u32>(value);
    workgroupBarrier();
    for (var width = WG; width > 1u;) {
        let half = (width + 1u) / 2u;
        if (at.lane + half < width) {
            lane_words[at.lane] =
                bitcast<u32>(bitcast<f32>(lane_words[at.lane]) + bitcast<f32>(lane_words[at.lane + half]));
        }
        width = half;
        workgroupBarrier();
    }
    return bitcast<f32>(lane_words[0]);
}

fn max_lanes(at: Lanes, value: u32) -> u32 {
    workgroupBarrier();
    lane_words[at.lane] = value;
    workgroupBarrier();
    for (var width = WG; width > 1u;) {
        let half = (width + 1u) / 2u;
        if (at.lane + half < width) {
            lane_words[at.lane] = max(lane_words[at.lane], lane_words[at.lane + half]);
        }
        width = half;
        workgroupBarrier();
    }
    return lane_words[0];
}
