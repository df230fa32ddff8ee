// Chooses TOP of EXPERTS experts for each token and weighs them. Operands: logits, routing, vectors.
//
// A key is what `key_of` makes of a biased score. Two are below all others: an expert whose group is out still comes
// before one that is chosen already, so that no expert is ever chosen twice.
const CHOSEN: u32 = 0u;
const OUT: u32 = 1u;
const NONE: u32 = 0xffffffffu;

// Of the experts lane, lane + WG, ..
var<private> keys: array<u32, EACH>;
// Of the picks lane, lane + WG, ..
var<private> picks: array<u32, KEPT>;
var<private> scores: array<f32, KEPT>;

fn biased(row: u32, expert: u32, all: All) -> f32 {
    let score = score_of(logit_at(row + expert), all);
    if (p.bias != NO_BIAS) {
        return score + vectors[p.bias + expert];
    }
    return score;
}

// The best of a lane's experts; of equal keys the first, which has the smallest id.
fn best_of(lane: u32) -> vec2<u32> {
    var best = vec2<u32>(NONE, 0u);
    for (var j = 0u; lane + j * WG < EXPERTS; j++) {
        if (keys[j] > best.y) {
            best = vec2<u32>(lane + j * WG, keys[j]);
        }
    }
    return best;
}

@compute @workgroup_size(WG)
fn main(at: Lanes) {
    let token = at.workgroup.x + at.workgroup.y * at.workgroups.x;
    if (token >= step[STEP_TOKENS]) {
        return;
    }
    let row = token * p.logits_stride;
    let all = all_of(at, row);
    rank_groups(at, row, all);
    for (var j = 0u; at.lane + j * WG < EXPERTS; j++) {
        let expert = at.lane + j * WG;
        keys[j] = select(OUT, key_of(biased(row, expert, all)), stands(expert));
    }

    var mine = best_of(at.lane);
    for (var i = 0u; i < TOP; i++) {
        let key = max_lanes(at, mine.y);
        let id = ~max_lanes(at, select(0u, ~mine.x, mine.y == key));
        if (mine.x == id) {
            keys[id / WG] = CHOSEN;
            mine = best_of(at.lane);
        }
        if (i % WG == at.lane) {
            picks[i / WG] = id;
        }
    }

    var part = 0.0;
    for (var j = 0u; at.lane + j * WG < TOP; j++) {
        scores[j] = score_of(logit_at(row + picks[j]), all);
        part += scores[j];
    }
    var factor = p.scale;
    if (p.normalise != 0u) {
        factor /= sum_lanes(at, part) + 1e-20;
    }
    let to = token * p.routing_stride;
    for (var j = 0u; at.lane + j * WG < TOP; j++) {
        let i = at.lane + j * WG;
        routing[to + i] = picks[j];
        var weight = scores[j] * factor;
        if (p.expert_scale != NO_BIAS) {
            weight *= vectors[p.expert_scale + picks[j]];
        }
        routing[to + TOP + i] = bitcast<u32>(weight);
    }
}
