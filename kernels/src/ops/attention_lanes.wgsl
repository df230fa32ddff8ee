// The attention of attention.wgsl where a workgroup is one subgroup: no workgroup memory and no barriers. Formulas,
// grid, states and masks are the same.
//
// Queries stand in registers, 8 columns over the lanes, and are handed round by broadcasts. One page at a time, in
// groups of WG keys: a lane owns a key for the scores, and UNITS of 8 columns for the values, whose weights are handed
// round. Every load of keys or values is used for all ROWS rows. The largest score is looked for once a page; sums
// stay in their lanes until the end. Up to 2,048 products a key are spelled out; larger tiles take the other form.
//
// Measured on lavapipe (Mesa 22.3, AVX2, subgroups of 8) on a busy machine, both forms in one run, GFLOP/s of the best
// of five, this form against the one with workgroup memory:
//   one token at 1,023, f16     9 x 3 x 64   10.9 and 3.4      24 x 4 x 256   13.8 and 7.2     4 x 1 x 256   14.9 and 5.1
//   64 tokens at 448, f16       9 x 3 x 64   17.2 and 2.5      24 x 4 x 256    6.4 and 3.2     4 x 1 x 256    6.2 and 4.0
//   the same, q8_0              9 x 3 x 64   18.0 and 2.1

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(num_workgroups) workgroups: vec3<u32>,
        @builtin(subgroup_invocation_id) lane: u32) {
    let at = reach_of(workgroup.x + workgroup.y * workgroups.x);
    if (at.idle) {
        return;
    }
    let first_head = at.kv_head * p.group + at.part * HEADS;
    let state_base = (at.split * p.max_tokens + at.first_token) * p.heads + first_head;

    //: for $r ROWS
    let real$r = $r / HEADS < at.tokens && at.part * HEADS + $r % HEADS < p.group;
    let query$r = (at.first_token + $r / HEADS) * p.qkv_stride + (first_head + $r % HEADS) * E + lane;
    let state$r = (state_base + ($r / HEADS) * p.heads + $r % HEADS) * (QUADS + 1u);
    //: for $u UNITS
    var q$r_$u = 0.0;
    if (real$r && $u * 8u + lane < E && lane < 8u) {
        q$r_$u = qkv[query$r + $u * 8u] * p.scale;
    }
    //: end
    var largest$r = MASKED;
    var sum$r = 0.0;
    //: for $j LANE_UNITS
    var lo$r_$j = vec4<f32>(0.0);
    var hi$r_$j = vec4<f32>(0.0);
    //: end
    //: end
    if (!at.fresh) {
        //: for $r ROWS
        if (real$r) {
            let carried$r = scratch[state$r + QUADS];
            largest$r = carried$r.x;
            sum$r = select(0.0, carried$r.y, lane == 0u);
            //: for $j LANE_UNITS
            lo$r_$j = scratch[state$r + 2u * min(lane + $j * WG, UNITS - 1u)];
            hi$r_$j = scratch[state$r + 2u * min(lane + $j * WG, UNITS - 1u) + 1u];
            //: end
        }
        //: end
    }

    for (var page = at.page_begin; page < at.page_end; page++) {
        let physical = step[at.table + page % p.pages];
        if (physical < p.first_page || physical - p.first_page >= p.segment_pages) {
            continue;
        }
        let base = ((physical - p.first_page) * p.kv_heads + at.kv_head) * HEAD_STEP;
        let page_start = page * PAGE;
        let near = max(at.key_first, page_start) - page_start;
        let far = min(at.key_end - page_start, PAGE) - 1u;

        // Scores. A loop that ends at its end: a test at its start would cost these lanes one more turn.
        //: for $r ROWS
        //: for $g GROUPS
        var s$r_$g = MASKED;
        //: end
        //: end
        var group = near / WG;
        loop {
            let key = group * WG + lane;
            //: for $r ROWS
            var t$r = 0.0;
            //: end
            var d = 1.0;
            //: for $u UNITS
            {
                if ($u % BLOCK_UNITS == 0u) {
                    d = scale_of(base, key, $u / BLOCK_UNITS).x;
                }
                let x = eight(base + key * ROW_STEP + $u * UNIT_STEP, d);
                //: for $r ROWS
                t$r += subgroupBroadcast(q$r_$u, 0u) * x.lo.x;
                t$r += subgroupBroadcast(q$r_$u, 1u) * x.lo.y;
                t$r += subgroupBroadcast(q$r_$u, 2u) * x.lo.z;
                t$r += subgroupBroadcast(q$r_$u, 3u) * x.lo.w;
                t$r += subgroupBroadcast(q$r_$u, 4u) * x.hi.x;
                t$r += subgroupBroadcast(q$r_$u, 5u) * x.hi.y;
                t$r += subgroupBroadcast(q$r_$u, 6u) * x.hi.z;
                t$r += subgroupBroadcast(q$r_$u, 7u) * x.hi.w;
                //: end
            }
            //: end
            let position = page_start + key;
            let inside = key >= near && key <= far;
            //: for $r ROWS
            {
                let query = at.first_position + $r / HEADS;
                let seen = inside && position <= query && (p.window == 0u || position + p.window > query);
                let score = select(MASKED, capped(t$r), seen);
                //: for $g GROUPS
                s$r_$g = select(s$r_$g, score, group == $g);
                //: end
            }
            //: end
            continuing {
                group += 1u;
                break if group > far / WG;
            }
        }

        // Weights.
        //: for $r ROWS
        {
            var m = s$r_0;
            //: for $g GROUPS
            m = max(m, s$r_$g);
            //: end
            m = max(subgroupMax(m), largest$r);
            let fade = exp(largest$r - m);
            largest$r = m;
            sum$r *= fade;
            //: for $j LANE_UNITS
            lo$r_$j *= fade;
            hi$r_$j *= fade;
            //: end
            //: for $g GROUPS
            s$r_$g = select(0.0, exp(s$r_$g - m), s$r_$g > 0.5 * MASKED);
            sum$r += s$r_$g;
            //: end
        }
        //: end

        // Values.
        group = near / WG;
        loop {
            // A weight outside the reach is zero; its value is that of a key inside, because 0·NaN is NaN.
            //: for $b SCALES
            let v$b = scale_of(base, clamp(group * WG + lane, near, far), $b).y;
            //: end
            //: for $r ROWS
            var w$r = s$r_0;
            //: for $g GROUPS
            w$r = select(w$r, s$r_$g, group == $g);
            //: end
            //: end
            //: for $k WG
            {
                let cell = base + (PAGE + clamp(group * WG + $k, near, far)) * ROW_STEP;
                //: for $j LANE_UNITS
                let unit$j = min(lane + $j * WG, UNITS - 1u);
                var d$j = 1.0;
                //: for $b SCALES
                d$j = select(d$j, subgroupBroadcast(v$b, $ku), unit$j / BLOCK_UNITS == $b);
                //: end
                let x$j = eight(cell + unit$j * UNIT_STEP, d$j);
                //: end
                //: for $r ROWS
                let c$r = subgroupBroadcast(w$r, $ku);
                //: for $j LANE_UNITS
                lo$r_$j += c$r * x$j.lo;
                hi$r_$j += c$r * x$j.hi;
                //: end
                //: end
            }
            //: end
            continuing {
                group += 1u;
                break if group > far / WG;
            }
        }
    }

    //: for $r ROWS
    sum$r = subgroupAdd(sum$r);
    if (real$r) {
        var inverse = select(0.0, 1.0 / sum$r, sum$r > 0.0);
        //: for $once SINKS
        // The sink is one more score, of no value. It joins here and nowhere else: states carry keys alone.
        let sink = vectors[p.sinks + first_head + $r % HEADS];
        let top = max(largest$r, sink);
        let kept = exp(largest$r - top);
        inverse = kept / (kept * sum$r + exp(sink - top));
        //: end
        let to = (at.first_token + $r / HEADS) * p.out_stride + (first_head + $r % HEADS) * E;
        //: for $j LANE_UNITS
        if (lane + $j * WG < UNITS) {
            let unit = lane + $j * WG;
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
        if (!at.finish && lane == 0u) {
            scratch[state$r + QUADS] = vec4<f32>(largest$r, sum$r, 0.0, 0.0);
        }
    }
    //: end
}
