// An invocation decodes an oct of a row.
@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = workgroup.x + workgroup.y * workgroups.x;
    let token = index / p.per_row;
    let oct = index % p.per_row * WG + lane;
    if (token >= step[STEP_TOKENS] || oct >= p.octs) {
        return;
    }
    let id = step[p.ids + token];
    // Ids of other shards wrap to large numbers below the first row.
    let row = id - p.first_row;
    if (row >= p.rows) {
        return;
    }
    let v = values_of(row * p.w_stride, p.octs, oct);
    let to = token * p.out_stride + 8u * oct;
    let live = min(p.width - 8u * oct, 8u);
    for (var i = 0u; i < min(live, 4u); i++) {
        out[to + i] = v.lo[i] * p.scale;
    }
    for (var i = 4u; i < live; i++) {
        out[to + i] = v.hi[i - 4u] * p.scale;
    }
}
