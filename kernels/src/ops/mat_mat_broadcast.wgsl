// The workgroup is 8 lanes of one subgroup: each lane loads one value of an oct of x and hands it to the others.
// Software drivers load lane by lane, so this is an eighth of the loads.
struct Lanes {
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(subgroup_invocation_id) lane: u32,
}

fn spread_x(at: Lanes, token: u32, oct: u32) -> Oct {
    let mine = x_at(token, 8u * oct + at.lane);
    return Oct(
        vec4<f32>(
            subgroupBroadcast(mine, 0u), subgroupBroadcast(mine, 1u), subgroupBroadcast(mine, 2u),
            subgroupBroadcast(mine, 3u)),
        vec4<f32>(
            subgroupBroadcast(mine, 4u), subgroupBroadcast(mine, 5u), subgroupBroadcast(mine, 6u),
            subgroupBroadcast(mine, 7u)));
}
