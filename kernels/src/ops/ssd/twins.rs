//! The CPU twins: token by token, and in blocks. Two ways to the same numbers, so that a slip of one shows.

use super::Args;
use crate::ops::sequences;

/// A sequence of the step and a head, widened to f64.
struct Head {
    /// Δ of each token.
    delta: Vec<f64>,
    /// `[T][P]`.
    x: Vec<Vec<f64>>,
    /// `[T][N]`.
    b: Vec<Vec<f64>>,
    /// `[T][N]`.
    c: Vec<Vec<f64>>,
    a: f64,
    d: f64,
    /// `[P][N]`.
    state: Vec<Vec<f64>>,
}

fn softplus(v: f64) -> f64 {
    v.max(0.0) + (-v.abs()).exp().ln_1p()
}

/// Hands every head of every bound sequence to `walk`, which answers with `[T][P]` outputs, and stores what it leaves.
fn each_head(
    args: &Args,
    step: &[u32],
    [xbc, dt, vectors]: [&[f32]; 3],
    states: &mut [f32],
    out: &mut [f32],
    walk: impl Fn(&mut Head) -> Vec<Vec<f64>>,
) {
    let shape = &args.shape;
    let (heads, p, n) = (shape.heads as usize, shape.head_dim as usize, shape.state as usize);
    for [first, tokens, slot, position] in sequences(step, args.sequences) {
        let Some(slot) = slot.checked_sub(args.first_slot).filter(|s| *s < args.slots) else { continue };
        let rows = first as usize..(first + tokens) as usize;
        for head in 0..heads {
            let group = head / (heads / shape.groups as usize);
            let (b, c) = (heads * p + group * n, heads * p + (shape.groups as usize + group) * n);
            let columns = |from: usize, count: usize| -> Vec<Vec<f64>> {
                let row = |t: usize| &xbc[t * args.xbc_stride as usize + from..][..count];
                rows.clone().map(|t| row(t).iter().map(|v| f64::from(*v)).collect()).collect()
            };
            let vector = |at: u32| f64::from(vectors[at as usize + head]);
            let delta = |t: usize| {
                let raw = dt[t * args.dt_stride as usize + args.dt_column as usize + head];
                let delta = softplus(f64::from(raw) + vector(args.dt_bias));
                args.dt_limit.map_or(delta, |[low, high]| delta.clamp(low.into(), high.into()))
            };
            let pool = &mut states[(slot as usize * heads + head) * p * n..][..p * n];
            let kept = if position == 0 { 0.0 } else { 1.0 };
            let before = |v: &f32| if kept == 0.0 { 0.0 } else { f64::from(*v) };
            let mut work = Head {
                delta: rows.clone().map(delta).collect(),
                x: columns(head * p, p),
                b: columns(b, n),
                c: columns(c, n),
                a: vector(args.a),
                d: vector(args.d),
                state: pool.chunks(n).map(|row| row.iter().map(before).collect()).collect(),
            };
            let y = walk(&mut work);
            for (t, y) in rows.clone().zip(y) {
                let to = &mut out[t * args.out_stride as usize + head * p..][..p];
                to.iter_mut().zip(y).for_each(|(to, y)| *to = y as f32);
            }
            let left = work.state.iter().flatten();
            pool.iter_mut().zip(left).for_each(|(to, h)| *to = *h as f32);
        }
    }
}

/// Token by token. `states` are those that are bound; places of other sequences, in `out` too, stay.
pub fn recurrent(
    args: &Args,
    step: &[u32],
    xbc: &[f32],
    dt: &[f32],
    states: &mut [f32],
    vectors: &[f32],
    out: &mut [f32],
) {
    each_head(args, step, [xbc, dt, vectors], states, out, |head| {
        let mut outputs = Vec::new();
        for t in 0..head.x.len() {
            let fade = (head.delta[t] * head.a).exp();
            let mut y = Vec::new();
            for (h, x) in head.state.iter_mut().zip(&head.x[t]) {
                for (h, b) in h.iter_mut().zip(&head.b[t]) {
                    *h = fade * *h + head.delta[t] * x * b;
                }
                y.push(dot(h, &head.c[t]) + head.d * x);
            }
            outputs.push(y);
        }
        outputs
    });
}

/// In blocks of `block` tokens: states of blocks, passed on, and outputs by C·Bᵀ under the decay. Otherwise as
/// [`recurrent`].
#[allow(clippy::too_many_arguments)]
pub fn chunked(
    args: &Args,
    block: usize,
    step: &[u32],
    xbc: &[f32],
    dt: &[f32],
    states: &mut [f32],
    vectors: &[f32],
    out: &mut [f32],
) {
    each_head(args, step, [xbc, dt, vectors], states, out, |head| {
        let mut outputs = Vec::new();
        for first in (0..head.x.len()).step_by(block) {
            let tokens = first..(first + block).min(head.x.len());
            let mut sums = Vec::new();
            for t in tokens.clone() {
                sums.push(sums.last().unwrap_or(&0.0) + head.delta[t] * head.a);
            }
            let last = *sums.last().unwrap_or(&0.0);
            for (i, s) in tokens.clone().zip(&sums) {
                let mut y: Vec<f64> = head
                    .state
                    .iter()
                    .zip(&head.x[i])
                    .map(|(h, x)| s.exp() * dot(h, &head.c[i]) + head.d * x)
                    .collect();
                for (j, before) in (first..=i).zip(&sums) {
                    let weight = (s - before).exp() * head.delta[j] * dot(&head.c[i], &head.b[j]);
                    y.iter_mut().zip(&head.x[j]).for_each(|(y, x)| *y += weight * x);
                }
                outputs.push(y);
            }
            for (row, h) in head.state.iter_mut().enumerate() {
                for (n, h) in h.iter_mut().enumerate() {
                    let added = |(t, s): (usize, &f64)| {
                        (last - s).exp() * head.delta[t] * head.x[t][row] * head.b[t][n]
                    };
                    *h = last.exp() * *h + tokens.clone().zip(&sums).map(added).sum::<f64>();
                }
            }
        }
        outputs
    });
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
