// Gated delta rule, token by token: every lane keeps ROWS rows of OWN neighbouring columns of the state in registers.
//
//   u = e^g Sᵀk;   d = β (v − u);   o = (e^g Sᵀq + d (k·q)) / sqrt(Ek);   S = e^g S + k dᵀ
//
// A token needs one pass over the state and one reduction over the lanes of a column: of Sᵀk, Sᵀq, k·k, q·q and
// k·q at once, with k and q as they are; the factors that give them length one are applied to the sums. The state is
// read and written once a sequence.
//
// Grid: one workgroup per (sequence, head, slice of OWN·LANES columns), heads and slices from the first item on.
// Lanes over columns are neighbours; lanes LANES apart share a column and have ROWS rows each.
// Workgroup memory: none where a lane has whole columns, else 16·OWN bytes a lane and 32 a part (two turns of sums, so
// that a token needs one barrier). Limits: 6 storage buffers.

struct Sums {
    key: Own,
    query: Own,
    // k·k, q·q, k·q
    lengths: vec3<f32>,
}

// An element of q or k, shrunk; 0 past the last row.
fn element(at: u32, row: u32) -> f32 {
    if (EXACT || row < EK) {
        return qkv[at + row] * SHRINK;
    }
    return 0.0;
}

@compute @workgroup_size(WG)
fn main(at: Lanes) {
    let place = place_of(at.workgroup.x + at.workgroup.y * at.workgroups.x);
    if (!place.here) {
        return;
    }
    // Columns past the last compute what it does, and are not stored.
    let part = at.lane / LANES;
    let column = place.column + at.lane % LANES * OWN;
    let row = part * ROWS;
    let value = p.v_column + place.head * p.value_dim;
    let rate = rate_of(place.head);

    //: for $o GROUPS
    //: for $i EACH
    var s$o_$i = Own();
    //: end
    //: end
    if (!place.fresh) {
        //: for $o GROUPS
        //: for $i EACH
        if (EXACT || row + $ou * EACH + $iu < EK) {
            s$o_$i = load_state(place.state + (row + $ou * EACH + $iu) * p.value_dim, column);
        }
        //: end
        //: end
    }
    for (var t = 0u; t < place.tokens; t++) {
        let token = place.first + t;
        let query = token * p.qkv_stride + place.query;
        let key = query + p.k_column;
        let gate = gates(token, place.head, rate);
        var mine = Sums();
        //: for $o GROUPS
SPREAD
        //: for $i EACH
        mine.key += k$o_$i * s$o_$i;
        mine.query += q$o_$i * s$o_$i;
        //: end
        //: end
        let sums = total(at, t, mine);
        let fade = decay(gate.x);
        let k_factor = inverse_root(sums.lengths.x, p.eps);
        let q_factor = inverse_root(sums.lengths.y, p.eps) * p.scale;
        let d = gate.y * (load_value(token * p.qkv_stride + value, column) - fade * k_factor * sums.key);
        if (part == 0u) {
            store_out(token * p.out_stride + place.head * p.value_dim, column,
                      q_factor * (fade * sums.query + (k_factor * sums.lengths.z) * d));
        }
        let add = k_factor * d;
        //: for $o GROUPS
        //: for $i EACH
        s$o_$i = fade * s$o_$i + k$o_$i * add;
        //: end
        //: end
    }
    //: for $o GROUPS
    //: for $i EACH
    if (EXACT || row + $ou * EACH + $iu < EK) {
        store_state(place.state + (row + $ou * EACH + $iu) * p.value_dim, column, s$o_$i);
    }
    //: end
    //: end
}
