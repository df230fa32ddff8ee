@compute @workgroup_size(WG)
fn main(at: At) {
    let place = place_of(at);
    if (place.x >= step[p.count_word] * p.per_token) {
        return;
    }
    var factor = p.factor;
    if (VECTOR) {
        factor *= vectors[p.vector];
    }
    for (var j = 0u; j < EACH; j++) {
        let i = place.y + j * WG;
        if (i < p.width) {
            x[place.x * p.stride + i] *= factor;
        }
    }
}
