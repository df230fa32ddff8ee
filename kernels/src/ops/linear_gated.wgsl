// The same of a gate and of what it gates, whose row stands p.n rows further on.
fn store_gated(share: Share, row: u32, n: u32, gate: f32, up: f32) {
    put(row, n, activation(biased(share, n, gate)) * biased(share, p.n + n, up));
}
