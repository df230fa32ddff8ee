// A lane has whole columns, and a part of the lengths.
fn total(at: Lanes, turn: u32, mine: Sums) -> Sums {
    return Sums(mine.key, mine.query, subgroupAdd(mine.lengths));
}
