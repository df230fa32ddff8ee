// Group limits: GROUPS groups of SIZE neighbouring experts, of which p.keep stay.
const SIZE: u32 = EXPERTS / GROUPS;

var<workgroup> group_keys: array<u32, GROUPS>;
// 1 where a group stays.
var<workgroup> group_stays: array<u32, GROUPS>;

fn rank_groups(at: Lanes, row: u32, all: All) {
    for (var g = at.lane; g < GROUPS; g += WG) {
        var best = 0u;
        var second = 0u;
        for (var i = 0u; i < SIZE; i++) {
            let key = key_of(biased(row, g * SIZE + i, all));
            second = max(second, min(best, key));
            best = max(best, key);
        }
        var score = finite(best);
        if (SIZE > 1u) {
            score += finite(second);
        }
        group_keys[g] = key_of(score);
    }
    workgroupBarrier();
    for (var g = at.lane; g < GROUPS; g += WG) {
        var better = 0u;
        for (var other = 0u; other < GROUPS; other++) {
            let key = group_keys[other];
            better += select(0u, 1u, key > group_keys[g] || (key == group_keys[g] && other < g));
        }
        group_stays[g] = select(0u, 1u, better < p.keep);
    }
    workgroupBarrier();
}

fn stands(expert: u32) -> bool {
    return group_stays[expert / SIZE] == 1u;
}
