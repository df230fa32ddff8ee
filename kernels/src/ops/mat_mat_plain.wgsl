// Every lane loads the octs of x it needs.
struct Lanes {
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
}

fn spread_x(at: Lanes, token: u32, oct: u32) -> Oct {
    return x_oct(token, oct);
}
