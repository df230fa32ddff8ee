// One workgroup computes ROWS rows of W for COLS rows of x; lanes share K, GRANULE octs at a time.
@compute @workgroup_size(WG)
fn main(at: Lanes) {
    let index = at.workgroup.x + at.workgroup.y * at.workgroups.x;
    let groups = (p.n + OUTS - 1u) / OUTS;
    let share = share_of(index / groups, COLS);
    let first = index % groups * OUTS;
    if (leaves(at.lane, share)) {
        return;
    }
    // Rows past the end repeat the last one and are not stored. Those of a gate's other side stand p.n further on.
    //: for $r ROWS
    let row$r = (share.matrix + min(first + $ru % OUTS, p.n - 1u) + $ru / OUTS * p.n) * p.w_stride;
    //: for $c COLS
    var sum$r_$c = 0.0;
    //: end
    //: end
    //: for $c COLS
    let col$c = x_row(row_of(min(share.first + $cu, share.end - 1u)));
    //: for $n NORMED
    var squares$c_$n = 0.0;
    //: end
    //: end
    for (var oct = at.lane * GRANULE; oct < p.octs; oct += WG * GRANULE) {
        //: for $c COLS
        //: for $g GRANULE
        //: for $p PLAIN
        let x$c_$g = x_oct(col$c, oct + $gu);
        //: end
        //: for $n NORMED
        let came$c_$g = x_oct(col$c, oct + $gu);
        let x$c_$g = Oct(weighed(came$c_$g.lo, 2u * (oct + $gu)), weighed(came$c_$g.hi, 2u * (oct + $gu) + 1u));
        squares$c_$n += squares_of(came$c_$g.lo) + squares_of(came$c_$g.hi);
        //: end
        let lo$c_$g = x$c_$g.lo * UNIT;
        let hi$c_$g = x$c_$g.hi * UNIT;
        //: end
        var total$c = 0.0;
        if (HAS_OFFSET) {
            //: for $g GRANULE
            total$c += dot(x$c_$g.lo + x$c_$g.hi, vec4<f32>(1.0));
            //: end
        }
        //: end
        //: for $r ROWS
        {
            //: for $c COLS
            var part$c = vec4<f32>(0.0);
            //: end
            //: for $g GRANULE
            let q$g = quants_of(row$r, p.octs, oct + $gu);
            //: for $c COLS
            part$c = fma(q$g.lo, lo$c_$g, fma(q$g.hi, hi$c_$g, part$c));
            //: end
            //: end
            let s = scale_of(row$r, p.octs, oct);
            //: for $c COLS
            sum$r_$c = fma(s.x, (part$c.x + part$c.y) + (part$c.z + part$c.w), sum$r_$c);
            if (HAS_OFFSET) {
                sum$r_$c = fma(s.y, total$c, sum$r_$c);
            }
            //: end
        }
        //: end
    }
    //: for $r ROWS
    //: for $c COLS
    add_lanes(at, $ru * COLS + $cu, sum$r_$c);
    //: end
    //: end
    //: for $n NORMED
    //: for $c COLS
    add_lanes(at, ROWS * COLS + $cu, squares$c_$n);
    //: end
    //: end
    finish_lanes(at);
    for (var o = at.lane; o < OUTS * COLS; o += WG) {
        let n = first + o / COLS;
        let entry = share.first + o % COLS;
        if (n < p.n && entry < share.end) {
            //: for $p PLAIN
            let root = 1.0;
            //: end
            //: for $n NORMED
            let root = root_of(lane_sum(at, ROWS * COLS + o % COLS));
            //: end
            //: for $p UNGATED
            store(share, row_of(entry), n, root * lane_sum(at, o));
            //: end
            //: for $g GATED
            store_gated(share, row_of(entry), n, root * lane_sum(at, o), root * lane_sum(at, o + OUTS * COLS));
            //: end
        }
    }
}
