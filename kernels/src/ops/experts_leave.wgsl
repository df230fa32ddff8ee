// Barriers follow, so the workgroup must leave as one, and say so: what stands in arena buffers counts as different for
// each lane. SHARED is workgroup memory that nothing has written yet.
fn leaves(lane: u32, share: Share) -> bool {
    if (lane == 0u) {
        SHARED[0] = select(0.0, 1.0, share.first < share.end);
    }
    return workgroupUniformLoad(&SHARED[0]) == 0.0;
}
