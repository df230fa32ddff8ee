@compute @workgroup_size(WG)
fn main(at: At) {
    let place = place_of(at);
    if (place.x >= step[p.count_word]) {
        return;
    }
    for (var j = 0u; j < EACH; j++) {
        let i = place.y + j * WG;
        if (i < p.width) {
            let to = place.x * p.x_stride + i;
            x[to] = p.cap * steady_tanh(x[to] / p.cap);
        }
    }
}
