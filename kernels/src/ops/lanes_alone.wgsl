// A workgroup that is 8 lanes of one subgroup.
struct Lanes {
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(subgroup_invocation_id) lane: u32,
}

// Octs of a chunk that share a scale.
const SHARING: u32 = 4u / HALVES;
