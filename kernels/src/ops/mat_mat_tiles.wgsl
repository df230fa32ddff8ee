// Tiles of TILE rows of W by WIDE rows of x, 32 values of K at a time in workgroup memory; each of the 256
// invocations computes 4 × TOKENS outputs. TOKENS is at most 4.
const TILE: u32 = 64;
const WIDE: u32 = 16u * TOKENS;

struct Lanes {
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
}

var<workgroup> tile_w: array<f32, TILE * 32u>;
var<workgroup> tile_x: array<f32, WIDE * 32u>;

@compute @workgroup_size(WG)
fn main(at: Lanes) {
    let index = at.workgroup.x + at.workgroup.y * at.workgroups.x;
    let tiles = (p.n + TILE - 1u) / TILE;
    let share = share_of(index / tiles, WIDE);
    let first = index % tiles * TILE;
    if (leaves(at.lane, share)) {
        return;
    }
    // Loading: an oct of a row of W each, and of x where there are as many. Computing: rows from tn, tokens from tt.
    let line = at.lane % TILE;
    let part = at.lane / TILE;
    let row = (share.matrix + min(first + line, p.n - 1u)) * p.w_stride;
    let x_line = at.lane % WIDE;
    let x_part = at.lane / WIDE;
    let token = x_row(row_of(min(share.first + x_line, share.end - 1u)));
    let tn = at.lane % 16u * 4u;
    let tt = at.lane / 16u * TOKENS;
    //: for $t TOKENS
    var sum$t = vec4<f32>(0.0);
    //: end
    for (var base = 0u; base < p.octs; base += 4u) {
        var ws = Oct();
        var xs = Oct();
        if (base + part < p.octs) {
            ws = values_of(row, p.octs, base + part);
        }
        if (x_part < 4u && base + x_part < p.octs) {
            xs = x_oct(token, base + x_part);
        }
        workgroupBarrier();
        let to = part * 8u * TILE + line;
        //: for $i FOUR
        tile_w[to + $iu * TILE] = ws.lo[$i];
        tile_w[to + ($iu + 4u) * TILE] = ws.hi[$i];
        //: end
        if (x_part < 4u) {
            let x_to = x_part * 8u * WIDE + x_line;
            //: for $i FOUR
            tile_x[x_to + $iu * WIDE] = xs.lo[$i];
            tile_x[x_to + ($iu + 4u) * WIDE] = xs.hi[$i];
            //: end
        }
        workgroupBarrier();
        for (var k = 0u; k < 32u; k++) {
            let w_at = k * TILE + tn;
            let x_at = k * WIDE + tt;
            let values = vec4<f32>(tile_w[w_at], tile_w[w_at + 1u], tile_w[w_at + 2u], tile_w[w_at + 3u]);
            //: for $t TOKENS
            sum$t = fma(values, vec4<f32>(tile_x[x_at + $tu]), sum$t);
            //: end
        }
    }
    //: for $t TOKENS
    if (share.first + tt + $tu < share.end) {
        let to = row_of(share.first + tt + $tu);
        //: for $i FOUR
        if (first + tn + $iu < p.n) {
            store(share, to, first + tn + $iu, sum$t[$i]);
        }
        //: end
    }
    //: end
}
