// The workgroup is 8 lanes of one subgroup, each with ROWS rows of W of its own; all have the same COLS rows of x, of
// which a lane loads four values of a chunk of 32 and hands them to the others. Nothing is summed over lanes.
struct Lanes {
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(subgroup_invocation_id) lane: u32,
}

// Octs of a chunk that share a scale.
const SHARING: u32 = 4u / HALVES;

@compute @workgroup_size(8)
fn main(at: Lanes) {
    let index = at.workgroup.x + at.workgroup.y * at.workgroups.x;
    let tiles = (p.n + 8u * ROWS - 1u) / (8u * ROWS);
    let share = share_of(index / tiles, COLS);
    let first = index % tiles * 8u * ROWS + at.lane;
    if (leaves(at.lane, share)) {
        return;
    }
    // Rows and columns past the end repeat the last one and are not stored.
    //: for $r ROWS
    let row$r = (share.matrix + min(first + $ru * 8u, p.n - 1u)) * p.w_stride;
    //: for $c COLS
    var sum$r_$c = 0.0;
    //: end
    //: end
    //: for $c COLS
    let to$c = row_of(min(share.first + $cu, share.end - 1u));
    let col$c = x_row(to$c);
    //: end
    let chunks = (p.octs + 3u) / 4u;
    for (var start = 0u; start < chunks; start += 4u) {
        let end = min(start + 4u, chunks);
        //: for $r ROWS
        var quants$r = quant_span(row$r, p.octs, start / 4u);
        var scales$r = scale_span(row$r, p.octs, start / 4u);
        //: end
        for (var chunk = start; chunk < end; chunk++) {
            //: for $c COLS
            let mine$c = x_quad(col$c, 8u * chunk + at.lane);
            let x$c = array<vec4<f32>, 8>(
                subgroupBroadcast(mine$c, 0u), subgroupBroadcast(mine$c, 1u), subgroupBroadcast(mine$c, 2u),
                subgroupBroadcast(mine$c, 3u), subgroupBroadcast(mine$c, 4u), subgroupBroadcast(mine$c, 5u),
                subgroupBroadcast(mine$c, 6u), subgroupBroadcast(mine$c, 7u));
            //: for $h HALVES
            var total$c_$h = 0.0;
            //: end
            if (HAS_OFFSET) {
                let four$c = (mine$c.x + mine$c.y) + (mine$c.z + mine$c.w);
                //: for $h HALVES
                //: for $o SHARING
                total$c_$h += subgroupBroadcast(four$c, 2u * ($hu * SHARING + $ou))
                    + subgroupBroadcast(four$c, 2u * ($hu * SHARING + $ou) + 1u);
                //: end
                //: end
            }
            //: end
            //: for $r ROWS
            {
                let codes = codes_of(row$r, chunk, quants$r);
                //: for $h HALVES
                {
                    //: for $c COLS
                    var part$c = vec4<f32>(0.0);
                    //: end
                    //: for $o SHARING
                    {
                        let q = oct_of(codes, $hu * SHARING + $ou);
                        //: for $c COLS
                        part$c = fma(q.lo, x$c[2u * ($hu * SHARING + $ou)], part$c);
                        part$c = fma(q.hi, x$c[2u * ($hu * SHARING + $ou) + 1u], part$c);
                        //: end
                    }
                    //: end
                    let s = scale_in(scales$r, $hu);
                    let unit = s.x * UNIT;
                    //: for $c COLS
                    sum$r_$c = fma(unit.x, part$c.x, fma(unit.y, part$c.y, fma(unit.z, part$c.z, fma(unit.w, part$c.w, sum$r_$c))));
                    if (HAS_OFFSET) {
                        sum$r_$c = fma(s.y, total$c_$h, sum$r_$c);
                    }
                    //: end
                }
                //: end
                quants$r = next_quants(quants$r);
                scales$r = next_scales(scales$r);
            }
            //: end
        }
    }
    //: for $r ROWS
    if (first + $ru * 8u < p.n) {
        //: for $c COLS
        if (share.first + $cu < share.end) {
            store(share, to$c, first + $ru * 8u, sum$r_$c);
        }
        //: end
    }
    //: end
}
