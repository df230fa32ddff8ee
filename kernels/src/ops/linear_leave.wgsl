// Without barriers behind it, a workgroup that has nothing to do just ends.
fn leaves(lane: u32, share: Share) -> bool {
    return share.first >= share.end;
}
