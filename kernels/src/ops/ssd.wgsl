// What every kernel of the state space shares: the sequences of the step, and which of them are bound.

struct Run {
    // Token of the step.
    first: u32,
    tokens: u32,
    // Among those that are bound.
    slot: u32,
    position: u32,
}

fn run_of(sequence: u32) -> Run {
    let entry = p.sequences + sequence * 4u;
    return Run(step[entry], step[entry + 1u], step[entry + 2u] - p.first_slot, step[entry + 3u]);
}
