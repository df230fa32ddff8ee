// Lanes a multiple of LANES apart have the same columns; two turns in memory, so that one barrier a token is enough.
var<workgroup> key_sums: array<Own, 2u * WG>;
var<workgroup> query_sums: array<Own, 2u * WG>;
var<workgroup> length_sums: array<vec3<f32>, 2u * WG / LANES>;

fn total(at: Lanes, turn: u32, mine: Sums) -> Sums {
    let base = (turn & 1u) * WG;
    key_sums[base + at.lane] = mine.key;
    query_sums[base + at.lane] = mine.query;
    if (at.lane % LANES == 0u) {
        length_sums[(base + at.lane) / LANES] = mine.lengths;
    }
    workgroupBarrier();
    var sums = Sums();
    for (var lane = base + at.lane % LANES; lane < base + WG; lane += LANES) {
        sums.key += key_sums[lane];
        sums.query += query_sums[lane];
        sums.lengths += length_sums[lane / LANES];
    }
    return sums;
}
