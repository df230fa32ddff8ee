// The workgroup is 8 lanes of one subgroup and has OUTS columns of out, for each of which it reads SIDES rows of W: two
// where there is a gate. Lanes stand side by side in a row, each with an oct of it, so that a row is one stream that a
// CPU's prefetcher follows; each has the sum of its octs, and they are added at the end.

@compute @workgroup_size(8)
fn main(at: Lanes) {
    let index = at.workgroup.x + at.workgroup.y * at.workgroups.x;
    let tiles = (p.n + OUTS - 1u) / OUTS;
    let share = share_of(index / tiles, COLS);
    let first = index % tiles * OUTS;
    if (leaves(at.lane, share)) {
        return;
    }
    // Rows and columns past the end repeat the last one and are not stored.
    //: for $s SIDES
    //: for $r OUTS
    let row$s_$r = (share.matrix + min(first + $ru, p.n - 1u) + $su * p.n) * p.w_stride;
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
    for (var start = 0u; start < p.octs; start += 8u) {
        // What stands past K counts as zero in x.
        let mine = start + at.lane;
        let oct = min(mine, p.octs - 1u);
        //: for $c COLS
        let lo$c = x_quad(col$c, 2u * mine);
        let hi$c = x_quad(col$c, 2u * mine + 1u);
        //: for $p PLAIN
        let x$c = Oct(lo$c, hi$c);
        //: end
        //: for $n NORMED
        let x$c = Oct(weighed(lo$c, 2u * mine), weighed(hi$c, 2u * mine + 1u));
        squares$c_$n += squares_of(lo$c) + squares_of(hi$c);
        //: end
        //: end
        //: for $s SIDES
        //: for $r OUTS
        {
            let q = oct_of(codes_of(row$s_$r, oct / 4u, quant_span(row$s_$r, p.octs, oct / 16u)), oct % 4u);
            //: for $c COLS
            let four$c = fma(q.hi, x$c.hi, q.lo * x$c.lo);
            sum$s_$r_$c += (four$c.x + four$c.y) + (four$c.z + four$c.w);
            //: end
        }
        //: end
        //: end
    }
    //: for $c COLS
    //: for $p PLAIN
    let root$c = 1.0;
    //: end
    //: for $n NORMED
    let root$c = root_of(subgroupAdd(squares$c_$n));
    //: end
    //: for $s SIDES
    //: for $r OUTS
    let all$s_$r_$c = root$c * subgroupAdd(sum$s_$r_$c);
    //: end
    //: end
    //: end
    //: for $r OUTS
    if (at.lane == $ru % 8u && first + $ru < p.n) {
        //: for $c COLS
        if (share.first + $cu < share.end) {
            //: for $p UNGATED
            store(share, to$c, first + $ru, all0_$r_$c);
            //: end
            //: for $g GATED
            store_gated(share, to$c, first + $ru, all$g_$r_$c, all1_$r_$c);
            //: end
        }
        //: end
    }
    //: end
}
