@compute @workgroup_size(WG)
fn main(at: At) {
    let place = place_of(at);
    if (place.x >= step[p.count_word] * p.per_token) {
        return;
    }
    for (var j = 0u; j < EACH; j++) {
        let i = place.y + j * WG;
        if (i < p.width) {
            let row = place.x * p.x_stride;
            let g = min(x[row + i * STEP], p.limit);
            let up = clamp(x[row + select(i + p.width, i * STEP + 1u, STEP == 2u)], -p.limit, p.limit);
            // Below −80 the sigmoid is under 1e-34, and its exponential soon no number.
            let t = p.alpha * g;
            out[place.x * p.out_stride + i] =
                select((up + 1.0) * g / (1.0 + exp(min(-t, 80.0))), 0.0, t < -80.0);
        }
    }
}
