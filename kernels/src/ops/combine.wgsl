// out[t] (+)= sum over i of weight[t, i] * x[t * top + i], in the order of i. Operands: x, routing, out.
@compute @workgroup_size(WG)
fn main(at: At) {
    let place = place_of(at);
    let token = place.x;
    if (token >= step[STEP_TOKENS]) {
        return;
    }
    // Columns past the end repeat the last one and are not stored.
    //: for $j EACH
    let column$j = min(place.y + $ju * WG, p.width - 1u);
    var sum$j = 0.0;
    //: end
    for (var i = 0u; i < p.top; i++) {
        let weight = bitcast<f32>(routing[token * p.routing_stride + p.top + i]);
        let row = (token * p.top + i) * p.x_stride;
        //: for $j EACH
        sum$j = fma(weight, x[row + column$j], sum$j);
        //: end
    }
    //: for $j EACH
    if (place.y + $ju * WG < p.width) {
        let to = token * p.out_stride + column$j;
        if (p.accumulate != 0u) {
            sum$j += out[to];
        }
        out[to] = sum$j;
    }
    //: end
}
