// Tiles of TILE rows of W by TILE rows of x, 32 values of K at a time in workgroup memory; each of the 256
// invocations computes 4 × 4 outputs.
const TILE: u32 = 64;

struct Lanes {
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
}

var<workgroup> tile_w: array<f32, TILE * 32u>;
var<workgroup> tile_x: array<f32, TILE * 32u>;

@compute @workgroup_size(WG)
fn main(at: Lanes) {
    let index = at.workgroup.x + at.workgroup.y * at.workgroups.x;
    let tiles = (p.n + TILE - 1u) / TILE;
    let count = step[p.count_word];
    let first_token = index / tiles * TILE;
    let first = index % tiles * TILE;
    if (first_token >= count) {
        return;
    }
    // Loading: an oct of a row of W and of x each. Computing: rows 4·tn, tokens 4·tt.
    let line = at.lane % TILE;
    let part = at.lane / TILE;
    let row = min(first + line, p.n - 1u) * p.w_stride;
    let token = min(first_token + line, count - 1u);
    let tn = at.lane % 16u * 4u;
    let tt = at.lane / 16u * 4u;
    //: for $t FOUR
    var sum$t = vec4<f32>(0.0);
    //: end
    for (var base = 0u; base < p.octs; base += 4u) {
        var ws = Oct();
        var xs = Oct();
        let oct = base + part;
        if (oct < p.octs) {
            ws = values_of(row, p.octs, oct);
            xs = x_oct(token, oct);
        }
        workgroupBarrier();
        let to = part * 8u * TILE + line;
        //: for $i FOUR
        tile_w[to + $iu * TILE] = ws.lo[$i];
        tile_w[to + ($iu + 4u) * TILE] = ws.hi[$i];
        tile_x[to + $iu * TILE] = xs.lo[$i];
        tile_x[to + ($iu + 4u) * TILE] = xs.hi[$i];
        //: end
        workgroupBarrier();
        for (var k = 0u; k < 32u; k++) {
            let w_at = k * TILE + tn;
            let x_at = k * TILE + tt;
            let values = vec4<f32>(tile_w[w_at], tile_w[w_at + 1u], tile_w[w_at + 2u], tile_w[w_at + 3u]);
            //: for $t FOUR
            sum$t = fma(values, vec4<f32>(tile_x[x_at + $tu]), sum$t);
            //: end
        }
    }
    //: for $t FOUR
    if (first_token + tt + $tu < count) {
        //: for $i FOUR
        if (first + tn + $iu < p.n) {
            store(first_token + tt + $tu, first + tn + $iu, sum$t[$i]);
        }
        //: end
    }
    //: end
}
