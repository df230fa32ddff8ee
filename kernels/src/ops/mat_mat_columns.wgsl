// The workgroup is 8 lanes of one subgroup, each with ROWS rows of W of its own. All have the same 8 × GROUPS rows of x: of
// each group a lane loads four values of one row and hands them to the others. Nothing is summed over lanes.
//
// The form is what lavapipe's compiler makes fast code of. Sums do not fit the registers of a CPU, so the loop over four
// values of K is short enough for its instruction cache, with the loads of a group right before its products, which hide
// them. Each loop around it copies all sums once a round, so there is only one. Nobody returns early, and sums are stored in
// a loop: masks of lanes that have left, and a store spelt out for each sum, are most of a compiler's time otherwise.

@compute @workgroup_size(8)
fn main(at: Lanes) {
    let index = at.workgroup.x + at.workgroup.y * at.workgroups.x;
    let tiles = (p.n + 8u * ROWS - 1u) / (8u * ROWS);
    let share = share_of(index / tiles, 8u * GROUPS);
    let first = index % tiles * 8u * ROWS + at.lane;
    // Rows of both past the end repeat the last one and are not stored.
    //: for $r ROWS
    let row$r = (share.matrix + min(first + $ru * 8u, p.n - 1u)) * p.w_stride;
    //: for $g GROUPS
    //: for $i EIGHT
    var sum$r_$g_$i = 0.0;
    //: end
    //: end
    //: end
    let last = max(share.end, 1u) - 1u;
    //: for $g GROUPS
    let x$g = x_row(row_of(min(share.first + $gu * 8u + at.lane, last)));
    //: end
    //: for $r ROWS
    var quants$r = QuantSpan();
    var scales$r = ScaleSpan();
    //: end
    let quads = select((p.k + 3u) / 4u, 0u, leaves(at.lane, share));
    for (var chunk = 0u; 8u * chunk < quads; chunk++) {
        if (chunk % 4u == 0u) {
            //: for $r ROWS
            quants$r = quant_span(row$r, p.octs, chunk / 4u);
            scales$r = scale_span(row$r, p.octs, chunk / 4u);
            //: end
        }
        //: for $r ROWS
        let codes$r = codes_of(row$r, chunk, quants$r);
        //: end
        for (var quad = 8u * chunk; quad < min(8u * chunk + 8u, quads); quad++) {
            //: for $r ROWS
            var w$r = quad_of(codes$r, quad % 8u);
            if (HAS_SCALE) {
                let s = scale_in(scales$r, quad % 8u / (2u * SHARING));
                w$r = fma(w$r, s.x * UNIT, vec4<f32>(s.y));
            }
            //: end
            //: for $g GROUPS
            {
                let mine = x_inside(x$g, quad);
                //: for $i EIGHT
                {
                    let came = subgroupBroadcast(mine, $iu);
                    //: for $r ROWS
                    sum$r_$g_$i = fma(w$r.x, came.x, sum$r_$g_$i);
                    sum$r_$g_$i = fma(w$r.y, came.y, sum$r_$g_$i);
                    sum$r_$g_$i = fma(w$r.z, came.z, sum$r_$g_$i);
                    sum$r_$g_$i = fma(w$r.w, came.w, sum$r_$g_$i);
                    //: end
                }
                //: end
            }
            //: end
        }
        //: for $r ROWS
        quants$r = next_quants(quants$r);
        scales$r = next_scales(scales$r);
        //: end
    }
    var sums: array<f32, ROWS * 8u * GROUPS>;
    //: for $g GROUPS
    //: for $i EIGHT
    //: for $r ROWS
    sums[($gu * 8u + $iu) * ROWS + $ru] = sum$r_$g_$i;
    //: end
    //: end
    //: end
    for (var i = 0u; i < ROWS * 8u * GROUPS; i++) {
        let entry = share.first + i / ROWS;
        let n = first + i % ROWS * 8u;
        if (entry < share.end && n < p.n) {
            store(share, row_of(entry), n, sums[i]);
        }
    }
}
