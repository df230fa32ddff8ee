// No group limits.
fn rank_groups(at: Lanes, row: u32, all: All) {}

fn stands(expert: u32) -> bool {
    return true;
}
