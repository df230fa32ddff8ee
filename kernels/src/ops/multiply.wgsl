@compute @workgroup_size(WG)
fn main(at: At) {
    let place = place_of(at);
    if (place.x >= step[p.count_word] * p.per_token) {
        return;
    }
    for (var j = 0u; j < EACH; j++) {
        let i = place.y + j * WG;
        if (i < p.width) {
            let to = place.x * p.x_stride + i;
            let factor = by[place.x * p.by_stride + p.by_column + select(i, 0u, BROADCAST)];
            if (OF_BY) {
                x[to] *= activation(factor);
            } else {
                x[to] = activation(x[to]) * factor;
            }
        }
    }
}
