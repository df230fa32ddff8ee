struct At {
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
}

// Row and first value; the others of this invocation follow at distances of WG.
fn place_of(at: At) -> vec2<u32> {
    let index = at.workgroup.x + at.workgroup.y * at.workgroups.x;
    return vec2<u32>(index / p.per_row, index % p.per_row * WG * EACH + at.lane);
}
