// Registers only: a lane keeps ROWS rows of W, all lanes the same TOKENS rows of x.
struct Lanes {
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
}

@compute @workgroup_size(WG)
fn main(at: Lanes) {
    let index = at.workgroup.x + at.workgroup.y * at.workgroups.x;
    let tiles = (p.n + WG * ROWS - 1u) / (WG * ROWS);
    let share = share_of(index / tiles, TOKENS);
    let first = index % tiles * WG * ROWS + at.lane;
    if (leaves(at.lane, share)) {
        return;
    }
    // Rows and tokens past the end repeat the last one and are not stored.
    //: for $r ROWS
    let row$r = (share.matrix + min(first + $ru * WG, p.n - 1u)) * p.w_stride;
    //: for $t TOKENS
    var sum$r_$t = 0.0;
    //: end
    //: end
    //: for $t TOKENS
    let to$t = row_of(min(share.first + $tu, share.end - 1u));
    let token$t = x_row(to$t);
    //: end
    for (var oct = 0u; oct < p.octs; oct++) {
        //: for $r ROWS
        let w$r = values_of(row$r, p.octs, oct);
        //: end
        //: for $t TOKENS
        {
            let shared_x = x_oct(token$t, oct);
            //: for $r ROWS
            sum$r_$t = fma(w$r.lo.x, shared_x.lo.x, sum$r_$t);
            sum$r_$t = fma(w$r.lo.y, shared_x.lo.y, sum$r_$t);
            sum$r_$t = fma(w$r.lo.z, shared_x.lo.z, sum$r_$t);
            sum$r_$t = fma(w$r.lo.w, shared_x.lo.w, sum$r_$t);
            sum$r_$t = fma(w$r.hi.x, shared_x.hi.x, sum$r_$t);
            sum$r_$t = fma(w$r.hi.y, shared_x.hi.y, sum$r_$t);
            sum$r_$t = fma(w$r.hi.z, shared_x.hi.z, sum$r_$t);
            sum$r_$t = fma(w$r.hi.w, shared_x.hi.w, sum$r_$t);
            //: end
        }
        //: end
    }
    //: for $r ROWS
    if (first + $ru * WG < p.n) {
        //: for $t TOKENS
        if (share.first + $tu < share.end) {
            store(share, to$t, first + $ru * WG, sum$r_$t);
        }
        //: end
    }
    //: end
}
