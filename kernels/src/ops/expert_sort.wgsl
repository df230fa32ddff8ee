// One workgroup sorts the choices of a step by expert and cuts them into tiles. Operands: routing, table.
struct At {
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
}

const NONE: u32 = 0xffffffffu;

// Expert ids of STAGE choices; NONE past the last choice.
var<workgroup> ids: array<vec4<u32>, STAGE / 4u>;
// Choices and tiles of each lane's expert.
var<workgroup> counts: array<vec2<u32>, WG>;

// Places past the last choice repeat it, so that no read leaves the routing, and hold nothing.
fn id_of(choice: u32, choices: u32) -> u32 {
    let at = min(choice, choices - 1u);
    return select(NONE, routing[at / p.top * p.routing_stride + at % p.top], choice < choices);
}

fn load_ids(lane: u32, first: u32, choices: u32) {
    workgroupBarrier();
    for (var i = lane; i < STAGE / 4u; i += WG) {
        let at = first + 4u * i;
        ids[i] = vec4<u32>(
            id_of(at, choices), id_of(at + 1u, choices), id_of(at + 2u, choices), id_of(at + 3u, choices));
    }
    workgroupBarrier();
}

@compute @workgroup_size(WG)
fn main(at: At) {
    if (at.workgroup.x + at.workgroup.y > 0u) {
        return;
    }
    let choices = step[STEP_TOKENS] * p.top;
    // Of the experts before this round.
    var entries = 0u;
    var tiles = 0u;
    for (var round = 0u; round < p.experts; round += WG) {
        let expert = round + at.lane;
        var mine = 0u;
        for (var first = 0u; first < choices; first += STAGE) {
            load_ids(at.lane, first, choices);
            let fours = (min(STAGE, choices - first) + 3u) / 4u;
            for (var i = 0u; i < fours; i++) {
                let found = select(vec4<u32>(0u), vec4<u32>(1u), ids[i] == vec4<u32>(expert));
                mine += (found.x + found.y) + (found.z + found.w);
            }
        }
        counts[at.lane] = vec2<u32>(mine, (mine + p.tile - 1u) / p.tile);
        workgroupBarrier();
        var before = vec2<u32>(0u);
        var all = vec2<u32>(0u);
        for (var i = 0u; i < WG; i++) {
            before += select(vec2<u32>(0u), counts[i], i < at.lane);
            all += counts[i];
        }
        var entry = entries + before.x;
        for (var i = 0u; i * p.tile < mine; i++) {
            let to = HEADER + 4u * (tiles + before.y + i);
            table[to] = expert;
            table[to + 1u] = entry + i * p.tile;
            table[to + 2u] = min(p.tile, mine - i * p.tile);
            table[to + 3u] = 0u;
        }
        for (var first = 0u; first < choices; first += STAGE) {
            load_ids(at.lane, first, choices);
            let fours = (min(STAGE, choices - first) + 3u) / 4u;
            for (var i = 0u; i < fours; i++) {
                let found = ids[i] == vec4<u32>(expert);
                if (any(found)) {
                    //: for $j FOUR
                    if (found[$j]) {
                        table[p.list + entry] = first + 4u * i + $ju;
                        entry += 1u;
                    }
                    //: end
                }
            }
        }
        entries += all.x;
        tiles += all.y;
    }
    if (at.lane == 0u) {
        table[0] = tiles;
        table[1] = 0u;
        table[2] = 0u;
        table[3] = 0u;
    }
}
