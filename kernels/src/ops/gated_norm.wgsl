// x[r] = norm(x[r]·silu(z[r]))·w, or norm(x[r])·w·silu(z[r]); norm(u) = u / sqrt(mean(u²) + eps) over each group
//
// Grid: one workgroup per (row, group), folded over two dimensions. Lanes stride over the group in `Value`s, four
// floats where group, strides, the gate's column and the weight's offset are multiples of four. With the gate first its
// product stands in x between the two walks, which each lane takes over the same values. Workgroup memory: 4 bytes a
// lane. |u| is at most 10^27 or so: norm.wgsl.

// Below −80 the value is under 1e-33 whatever the exponential; the clamp keeps it finite.
fn silu(z: Value) -> Value {
    return z / (Value(1.0) + exp(min(-z, Value(80.0))));
}

@compute @workgroup_size(WG)
fn main(at: Lanes) {
    let index = at.workgroup.x + at.workgroup.y * at.workgroups.x;
    let row = index / p.groups;
    if (row >= step[STEP_TOKENS]) {
        return;
    }
    let group = index % p.groups;
    let start = row * p.x_stride + group * p.width;
    let gates = row * p.gate_stride + p.gate_column + group * p.width;
    let weights = p.weight + group * p.weight_step;
    var squares = 0.0;
    for (var i = at.lane; i < p.width; i += WG) {
        var v = x[start + i];
        if (GATE_FIRST) {
            v *= silu(gate[gates + i]);
            x[start + i] = v;
        }
        squares += squares_of(v);
    }
    let scale = SHRINK * inverse_root(sum_lanes(at, squares) / p.values, p.eps);
    for (var i = at.lane; i < p.width; i += WG) {
        var v = x[start + i] * scale * vectors[weights + i];
        if (!GATE_FIRST) {
            v *= silu(gate[gates + i]);
        }
        x[start + i] = v;
    }
}
