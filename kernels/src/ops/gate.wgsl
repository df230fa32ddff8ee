@compute @workgroup_size(WG)
fn main(at: At) {
    let place = place_of(at);
    if (place.x >= step[p.count_word] * p.per_token) {
        return;
    }
    for (var j = 0u; j < EACH; j++) {
        let i = place.y + j * WG;
        if (i < p.width) {
            let source = place.x * p.x_stride + i;
            out[place.x * p.out_stride + i] = activation(x[source]) * x[source + p.width];
        }
    }
}
