// out[r] = x[r] / sqrt(mean(x[r]²) + eps) · (w + plus_one), or out[r] += the same
//
// Grid: one workgroup a row, or a group of one, folded over two dimensions. Lanes stride over it in `Value`s, four
// floats where width, strides and the weight's offset are multiples of four. It is read twice: the second time from
// cache. Workgroup memory: 4 bytes a lane. |x| is at most 10^27 or so: norm.wgsl.

@compute @workgroup_size(WG)
fn main(at: Lanes) {
    let index = at.workgroup.x + at.workgroup.y * at.workgroups.x;
    let row = index / p.groups;
    if (row >= step[p.count_word]) {
        return;
    }
    let group = (index % p.groups) * p.width;
    let start = row * p.x_stride + group;
    var squares = 0.0;
    for (var i = at.lane; i < p.width; i += WG) {
        squares += squares_of(x[start + i]);
    }
    let scale = SHRINK * inverse_root(sum_lanes(at, squares) / p.values, p.eps);
    let to = row * p.out_stride + group;
    for (var i = at.lane; i < p.width; i += WG) {
        let v = x[start + i] * scale * (vectors[p.weight + i] + p.plus_one);
        if (ACCUMULATE) {
            out[to + i] += v;
        } else {
            out[to + i] = v;
        }
    }
}
