// A lane has whole columns.
fn total(at: Lanes, turn: u32, mine: Sums) -> Sums {
    return mine;
}
