// x = act(x), in place. Operands: x.
@compute @workgroup_size(WG)
fn main(at: At) {
    let place = place_of(at);
    if (place.x >= step[p.count_word] * p.times) {
        return;
    }
    for (var j = 0u; j < EACH; j++) {
        let i = place.y + j * WG;
        if (i < p.width) {
            let to = place.x * p.stride + i;
            x[to] = activation(x[to]);
        }
    }
}
