// The k largest logits of each row, largest first, ties to the lower id, and the log of the sum of their exponentials
//
// Stage 1: one workgroup per (row, block of BLOCK logits) leaves k (id, key) pairs and (largest key, sum of
// e^(x - largest)) in scratch, [row][block][k + 1][2] words. Stage 2: one workgroup per row does the same with all
// pairs of the row and writes (id, logit) pairs and (0, log-sum-exp), [row][k + 1][2] words.
//
// A key is an u32 that orders as the float does: no comparison ever sees a NaN, which takes the place of the most
// negative finite float. Key 0 is nothing; its id is NONE. Each round takes the largest pair behind the last winner.
// A lane holds its own best and looks for the next only when it won, so k rounds cost little more than one.
// (On lavapipe, 49,152 logits: k = 40 takes twice as long as k = 1; without cells it took 30 times as long.)
// A NaN or +inf spoils its row: the sum takes SPOILT for it, far below what all other terms can add up to, and the
// log-sum-exp of a negative sum is the word of a NaN. Both tests look at bits, which fast math leaves alone.
// Workgroup memory: 4 bytes a lane and 8 a cell; at most 4.5 KiB (128 lanes of 4 cells).

const NONE: u32 = 0xffffffffu;
const NAN: u32 = 0x7fc00000u;
const SPOILT: f32 = -1e28;

struct Pair {
    id: u32,
    key: u32,
}

fn before(a: Pair, b: Pair) -> bool {
    return a.key > b.key || (a.key == b.key && a.id < b.id);
}

// The best of each cell of each lane, so that a winner costs its lane one cell and not all of its candidates.
var<workgroup> cells: array<Pair, WG * CELLS>;

// The best pair behind `last` in a cell of a lane. The candidates of a lane are lane, lane + WG, ..; a cell is `size`
// of them in a row.
fn best_of_cell(start: u32, lane: u32, count: u32, size: u32, cell: u32, last: Pair) -> Pair {
    var best = Pair(NONE, 0u);
    let end = min(count, (cell + 1u) * size * WG);
    for (var i = lane + cell * size * WG; i < end; i += WG) {
        let pair = fetch(start, i);
        if (before(last, pair) && before(pair, best)) {
            best = pair;
        }
    }
    return best;
}

@compute @workgroup_size(WG)
fn main(at: Lanes) {
    let index = at.workgroup.x + at.workgroup.y * at.workgroups.x;
    let row = index / p.groups;
    if (row >= step[STEP_LOGIT_ROWS]) {
        return;
    }
    let start = first_of(index);
    let count = count_of(index);
    let to = index * (p.k + 1u) * 2u;

    let size = ((count + WG - 1u) / WG + CELLS - 1u) / CELLS;
    var mine = Pair(NONE, 0u);
    var cell = 0u;
    for (var c = 0u; c < CELLS; c++) {
        let best = best_of_cell(start, at.lane, count, size, c, Pair(0u, NONE));
        cells[c * WG + at.lane] = best;
        if (before(best, mine)) {
            mine = best;
            cell = c;
        }
    }
    var largest = 0u;
    for (var round = 0u; round < p.k; round++) {
        let key = max_lanes(at, mine.key);
        let id = ~max_lanes(at, select(0u, ~mine.id, mine.key == key));
        if (round == 0u) {
            largest = key;
        }
        if (at.lane == 0u) {
            out[to + 2u * round] = id;
            out[to + 2u * round + 1u] = word_of(key);
        }
        if (mine.id == id && key != 0u && round + 1u < p.k) {
            cells[cell * WG + at.lane] = best_of_cell(start, at.lane, count, size, cell, Pair(id, key));
            mine = Pair(NONE, 0u);
            for (var c = 0u; c < CELLS; c++) {
                let best = cells[c * WG + at.lane];
                if (before(best, mine)) {
                    mine = best;
                    cell = c;
                }
            }
        }
    }

    var sum = 0.0;
    for (var i = at.lane; i < terms_of(index); i += WG) {
        sum += term(start, i, finite(largest));
    }
    sum = sum_lanes(at, sum);
    if (at.lane == 0u) {
        out[to + 2u * p.k] = sum_head(largest);
        out[to + 2u * p.k + 1u] = sum_word(largest, sum);
    }
}
