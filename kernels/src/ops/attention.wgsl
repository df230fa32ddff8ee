// Attention over pages with an online softmax, carried from dispatch to dispatch
//
//   s_rk = scale · q_r · k_k, capped;   m' = max(m, max_k s_rk);   l' = e^(m - m') l + Σ_k e^(s_rk - m')
//   acc' = e^(m - m') acc + Σ_k e^(s_rk - m') v_k;   out = acc / l, or 0 for a row that sees nothing
//   with sinks, where the division is:  m' = max(m, sink);   out = e^(m - m') acc / (e^(m - m') l + e^(sink - m'))
//
// Grid: one workgroup per (tile, split, KV head, part of its query heads). Its ROWS = TOKENS·HEADS query rows are
// (token of the tile, head of the part). Splits share the pages in reach evenly; each keeps a state of its own.
// One page (32 keys) at a time, two barriers each: scores, lanes own keys (and groups of rows); weights, lanes own
// parts of rows; values, lanes own 8 columns of VALUE_ROWS rows (and, when rows are few, every KEY_GROUPS-th quad
// of keys). Masks are finite: nothing relies on infinities, and keys outside the reach are never multiplied, so
// whatever unwritten cells hold stays there.
// Workgroup memory: queries ROWS·Ep·4 bytes (at most 8 KiB, at least 32 bytes a lane), scores and weights 128 bytes
// a row each, 12 bytes a row, 4 a lane: at most 13.3 KiB.
//
// Measured on lavapipe (Mesa 22.3, AVX2, subgroups of 8), GFLOP/s for each core of CPU time, at 8, 16, 32, 64 lanes:
//   9 x 3 x 64, f16, 64 tokens at 448    5.1  3.8  2.5  2.1     one token at 1,023    3.0  1.9  1.4  0.8
//   24 x 4 x 256, f16, the same          6.9  5.2  3.3  2.8                           7.4  4.8  3.0  2.4
//   16 x 8 x 128, f16, the same          7.5  5.5  3.5  3.0                           3.6  2.8  1.5  1.3
// f32 and q8_0 are within 10 % of f16. A lane of 8 has four keys, so a load of queries is used four times; fewer keys
// at once were slower by a tenth (2) and by half (1), and explicit multiply-adds changed nothing.

var<workgroup> queries: array<vec4<f32>, QUERY_QUADS>;
var<workgroup> scores: array<f32, ROWS * PAGE>;
var<workgroup> weights: array<vec4<f32>, ROWS * 8u>;
var<workgroup> largest: array<f32, 2u * ROWS>;
var<workgroup> fade: array<f32, ROWS>;
var<workgroup> sums: array<f32, WG>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(num_workgroups) workgroups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let at = reach_of(workgroup.x + workgroup.y * workgroups.x);
    if (at.idle) {
        return;
    }

    // A lane's place: in the scores, and in the values.
    let key_lane = lane % KEY_LANES;
    let score_row = (lane / KEY_LANES) * SCORE_ROWS;
    let unit_lane = lane % UNIT_LANES;
    let value_row = ((lane / UNIT_LANES) % ROW_GROUPS) * VALUE_ROWS;
    let key_group = lane / (UNIT_LANES * ROW_GROUPS);
    let works = key_group < KEY_GROUPS;

    for (var i = lane; i < ROWS * QUADS; i += WG) {
        let row = i / QUADS;
        let e = (i % QUADS) * 4u;
        let head = at.part * HEADS + row % HEADS;
        var q = vec4<f32>(0.0);
        if (row / HEADS < at.tokens && head < p.group) {
            let start = (at.first_token + row / HEADS) * p.qkv_stride + (at.kv_head * p.group + head) * E + e;
            for (var c = 0u; c < 4u; c++) {
                if (e + c < E) {
                    q[c] = qkv[start + c] * p.scale;
                }
            }
        }
        queries[i] = q;
    }

    // A lane's rows of the values, whether they exist, and where their state stands.
    let state_base = (at.split * p.max_tokens + at.first_token) * p.heads;
    //: for $r VALUE_ROWS
    let row$r = min(value_row + $r, ROWS - 1u);
    let head$r = at.part * HEADS + row$r % HEADS;
    let real$r = works && key_group == 0u && value_row + $r < ROWS && row$r / HEADS < at.tokens && head$r < p.group;
    let state$r = (state_base + (row$r / HEADS) * p.heads + at.kv_head * p.group + head$r) * (QUADS + 1u);
    var sum$r = 0.0;
    //: for $j LANE_UNITS
    var lo$r_$j = vec4<f32>(0.0);
    var hi$r_$j = vec4<f32>(0.0);
    //: end
    if (real$r && !at.fresh) {
        sum$r = scratch[state$r + QUADS].y;
        //: for $j LANE_UNITS
        lo$r_$j = scratch[state$r + 2u * min(unit_lane + $j * UNIT_LANES, UNITS - 1u)];
        hi$r_$j = scratch[state$r + 2u * min(unit_lane + $j * UNIT_LANES, UNITS - 1u) + 1u];
        //: end
    }
    //: end
    for (var row = lane; row < ROWS; row += WG) {
        let head = at.part * HEADS + row % HEADS;
        var m = MASKED;
        if (!at.fresh && row / HEADS < at.tokens && head < p.group) {
            let state = (state_base + (row / HEADS) * p.heads + at.kv_head * p.group + head) * (QUADS + 1u);
            m = scratch[state + QUADS].x;
        }
        largest[row] = m;
    }
    workgroupBarrier();

    var turn = 0u;
    for (var page = at.page_begin; page < at.page_end; page++) {
        let physical = step[at.table + page % p.pages];
        if (physical < p.first_page || physical - p.first_page >= p.segment_pages) {
            continue;
        }
        let base = ((physical - p.first_page) * p.kv_heads + at.kv_head) * HEAD_STEP;

        // Scores.
        //: for $k LANE_KEYS
        let key$k = key_lane + $k * KEY_LANES;
        //: for $r SCORE_ROWS
        var s$r_$k = 0.0;
        //: end
        //: end
        for (var block = 0u; block < BLOCKS; block++) {
            //: for $k LANE_KEYS
            let d$k = scale_of(base, key$k, block).x;
            //: end
            for (var j = 0u; j < BLOCK_UNITS; j++) {
                let unit = block * BLOCK_UNITS + j;
                //: for $k LANE_KEYS
                let x$k = eight(base + key$k * ROW_STEP + unit * UNIT_STEP, d$k);
                //: end
                //: for $r SCORE_ROWS
                let at$r = min(score_row + $r, ROWS - 1u) * QUADS + 2u * unit;
                let q_lo$r = queries[at$r];
                let q_hi$r = queries[at$r + 1u];
                //: for $k LANE_KEYS
                s$r_$k += dot(q_lo$r, x$k.lo) + dot(q_hi$r, x$k.hi);
                //: end
                //: end
            }
        }
        //: for $k LANE_KEYS
        {
            let position = page * PAGE + key$k;
            let inside = position >= at.key_first && position < at.key_end;
            //: for $r SCORE_ROWS
            if (score_row + $r < ROWS) {
                let query = at.first_position + (score_row + $r) / HEADS;
                let seen = inside && position <= query && (p.window == 0u || position + p.window > query);
                scores[(score_row + $r) * PAGE + key$k] = select(MASKED, capped(s$r_$k), seen);
            }
            //: end
        }
        //: end
        workgroupBarrier();

        // Weights.
        for (var i = lane; i < ROWS * WEIGHT_PARTS; i += WG) {
            let row = i / WEIGHT_PARTS;
            let old = largest[turn * ROWS + row];
            var m = old;
            for (var k = 0u; k < PAGE; k++) {
                m = max(m, scores[row * PAGE + k]);
            }
            for (var n = 0u; n < 8u / WEIGHT_PARTS; n++) {
                let quad = (i % WEIGHT_PARTS) * (8u / WEIGHT_PARTS) + n;
                let at = row * PAGE + quad * 4u;
                let s = vec4<f32>(scores[at], scores[at + 1u], scores[at + 2u], scores[at + 3u]);
                weights[row * 8u + quad] =
                    select(vec4<f32>(0.0), exp(s - m), s > vec4<f32>(0.5 * MASKED));
            }
            if (i % WEIGHT_PARTS == 0u) {
                largest[(1u - turn) * ROWS + row] = m;
                fade[row] = exp(old - m);
            }
        }
        turn = 1u - turn;
        workgroupBarrier();

        // Values.
        if (works) {
            let page_start = page * PAGE;
            let near = max(at.key_first, page_start) - page_start;
            let far = min(at.key_end - page_start, PAGE) - 1u;
            //: for $r VALUE_ROWS
            let fade$r = fade[row$r];
            sum$r *= fade$r;
            //: for $j LANE_UNITS
            lo$r_$j *= fade$r;
            hi$r_$j *= fade$r;
            //: end
            //: end
            for (var quad = near / 4u + key_group; quad <= far / 4u; quad += KEY_GROUPS) {
                //: for $r VALUE_ROWS
                let w$r = weights[row$r * 8u + quad];
                sum$r += w$r.x + w$r.y + w$r.z + w$r.w;
                //: end
                //: for $c QUAD
                {
                    // A weight outside the reach is zero; its value is that of a key inside, because 0·NaN is NaN.
                    let key = clamp(quad * 4u + $c, near, far);
                    //: for $j LANE_UNITS
                    let unit$j = min(unit_lane + $j * UNIT_LANES, UNITS - 1u);
                    let d$j = scale_of(base, key, unit$j / BLOCK_UNITS).y;
                    let x$j = eight(base + (PAGE + key) * ROW_STEP + unit$j * UNIT_STEP, d$j);
                    //: for $r VALUE_ROWS
                    lo$r_$j += w$r[$c] * x$j.lo;
                    hi$r_$j += w$r[$c] * x$j.hi;
                    //: end
                    //: end
                }
                //: end
            }
        }
    }

    // The key groups of a row share its maximum, so their parts only add. Queries are done with.
    if (KEY_GROUPS > 1u) {
        queries[2u * lane] = lo0_0;
        queries[2u * lane + 1u] = hi0_0;
        sums[lane] = sum0;
        workgroupBarrier();
        if (key_group == 0u) {
            for (var g = 1u; g < KEY_GROUPS; g++) {
                let other = lane + g * UNIT_LANES * ROW_GROUPS;
                lo0_0 += queries[2u * other];
                hi0_0 += queries[2u * other + 1u];
                sum0 += sums[other];
            }
        }
    }

    //: for $r VALUE_ROWS
    if (real$r) {
        var inverse = select(0.0, 1.0 / sum$r, sum$r > 0.0);
        //: for $once SINKS
        // The sink is one more score, of no value. It joins here and nowhere else: states carry keys alone.
        let sink$r = vectors[p.sinks + at.kv_head * p.group + head$r];
        let top$r = max(largest[turn * ROWS + row$r], sink$r);
        let kept$r = exp(largest[turn * ROWS + row$r] - top$r);
        inverse = kept$r / (kept$r * sum$r + exp(sink$r - top$r));
        //: end
        let to = (at.first_token + row$r / HEADS) * p.out_stride + (at.kv_head * p.group + head$r) * E;
        //: for $j LANE_UNITS
        if (unit_lane + $j * UNIT_LANES < UNITS) {
            let unit = unit_lane + $j * UNIT_LANES;
            if (at.finish) {
                for (var c = 0u; c < 4u; c++) {
                    if (8u * unit + c < E) {
                        out[to + 8u * unit + c] = lo$r_$j[c] * inverse;
                    }
                    if (8u * unit + 4u + c < E) {
                        out[to + 8u * unit + 4u + c] = hi$r_$j[c] * inverse;
                    }
                }
            } else {
                scratch[state$r + 2u * unit] = lo$r_$j;
                scratch[state$r + 2u * unit + 1u] = hi$r_$j;
            }
        }
        //: end
        if (!at.finish && unit_lane == 0u) {
            scratch[state$r + QUADS] = vec4<f32>(largest[turn * ROWS + row$r], sum$r, 0.0, 0.0);
        }
    }
    //: end
}
