// The workgroup is 8 lanes of one subgroup, each with OUTS columns of out of its own and, for each, SIDES rows of W: two
// where there is a gate. All have the same COLS rows of x, of which a lane loads four values of a chunk of 32 and hands
// them to the others. Nothing is summed over lanes but the squares of a norm.
//
// Rows side by side are more streams than a CPU's prefetcher follows, and each is short. So every chunk also loads a few
// words of the next workgroup's rows, one a line and in order, which bring them into the cache by the time they are used.
// Past the end of the matrix such a load is out of bounds, gives whatever the device gives there, and is not looked at.

@compute @workgroup_size(8)
fn main(at: Lanes) {
    let index = at.workgroup.x + at.workgroup.y * at.workgroups.x;
    let tiles = (p.n + 8u * OUTS - 1u) / (8u * OUTS);
    let share = share_of(index / tiles, COLS);
    let first = index % tiles * 8u * OUTS + at.lane;
    if (leaves(at.lane, share)) {
        return;
    }
    // Rows and columns past the end repeat the last one and are not stored.
    //: for $s SIDES
    //: for $r OUTS
    let row$s_$r = (share.matrix + min(first + $ru * 8u, p.n - 1u) + $su * p.n) * p.w_stride;
    //: for $c COLS
    var sum$s_$r_$c = 0.0;
    //: end
    //: end
    //: end
    //: for $c COLS
    let to$c = row_of(min(share.first + $cu, share.end - 1u));
    let col$c = x_row(to$c);
    //: for $n NORMED
    var squares$c_$n = 0.0;
    //: end
    //: end
    // The rows of the next workgroup, which follow in memory: each lane has lines of its own to ask for.
    let after = min((index % tiles + 1u) * 8u * OUTS, p.n - 1u) + at.lane / (8u / SIDES) * p.n;
    let ahead = (share.matrix + after) * (p.w_stride / 4u) + at.lane % (8u / SIDES) * TOUCH_QUADS;
    var touched = 0u;
    let chunks = (p.octs + 3u) / 4u;
    for (var start = 0u; start < chunks; start += 4u) {
        let end = min(start + 4u, chunks);
        //: for $s SIDES
        //: for $r OUTS
        var quants$s_$r = quant_span(row$s_$r, p.octs, start / 4u);
        var scales$s_$r = scale_span(row$s_$r, p.octs, start / 4u);
        //: end
        //: end
        for (var chunk = start; chunk < end; chunk++) {
            //: for $t TOUCHES
            touched ^= w[ahead + (chunk * TOUCHES + $tu) * (8u / SIDES) * TOUCH_QUADS].x;
            //: end
            //: for $c COLS
            //: for $p PLAIN
            let mine$c = x_quad(col$c, 8u * chunk + at.lane);
            //: end
            //: for $n NORMED
            let came$c = x_quad(col$c, 8u * chunk + at.lane);
            let mine$c = weighed(came$c, 8u * chunk + at.lane);
            squares$c_$n += squares_of(came$c);
            //: end
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
            //: for $s SIDES
            //: for $r OUTS
            {
                let codes = codes_of(row$s_$r, chunk, quants$s_$r);
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
                    let s = scale_in(scales$s_$r, $hu);
                    let unit = s.x * UNIT;
                    //: for $c COLS
                    sum$s_$r_$c = fma(unit.x, part$c.x,
                        fma(unit.y, part$c.y, fma(unit.z, part$c.z, fma(unit.w, part$c.w, sum$s_$r_$c))));
                    if (HAS_OFFSET) {
                        sum$s_$r_$c = fma(s.y, total$c_$h, sum$s_$r_$c);
                    }
                    //: end
                }
                //: end
                quants$s_$r = next_quants(quants$s_$r);
                scales$s_$r = next_scales(scales$s_$r);
            }
            //: end
            //: end
        }
    }
    // It never is: what nobody wants would not be loaded.
    if (touched == 0x9E3779B9u && p.octs == 0u) {
        sum0_0_0 += 1.0;
    }
    //: for $n NORMED
    //: for $c COLS
    let root$c_$n = root_of(subgroupAdd(squares$c_$n));
    //: for $s SIDES
    //: for $r OUTS
    sum$s_$r_$c *= root$c_$n;
    //: end
    //: end
    //: end
    //: end
    //: for $r OUTS
    if (first + $ru * 8u < p.n) {
        //: for $c COLS
        if (share.first + $cu < share.end) {
            //: for $p UNGATED
            store(share, to$c, first + $ru * 8u, sum0_$r_$c);
            //: end
            //: for $g GATED
            store_gated(share, to$c, first + $ru * 8u, sum$g_$r_$c, sum1_$r_$c);
            //: end
        }
        //: end
    }
    //: end
}
