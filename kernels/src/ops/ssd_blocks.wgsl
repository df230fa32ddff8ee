// Blocks of L tokens of one sequence. Block i of the sequence at index e that begins at token f has the number
// f / L + e + i: numbers of sequences in the order of their tokens do not meet, and there are at most
// ceil(T / L) + sequences − 1 of them. A number may be nobody's.
struct Block {
    // Token of the step.
    first: u32,
    // 0 where the number is nobody's, or its sequence is not bound.
    tokens: u32,
}

fn first_block(run: Run, sequence: u32) -> u32 {
    return run.first / L + sequence;
}

fn block_of(number: u32) -> Block {
    for (var e = 0u; e < step[p.sequence_count]; e++) {
        let run = run_of(e);
        let i = number - first_block(run, e);
        // A number before the sequence's wraps, and is past its end.
        if (i < (run.tokens + L - 1u) / L) {
            let tokens = select(0u, min(L, run.tokens - i * L), run.slot < p.slots);
            return Block(run.first + i * L, tokens);
        }
    }
    return Block(0u, 0u);
}
