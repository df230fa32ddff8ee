//! The rule on the CPU in f64: token by token, and in blocks.

use super::Args;
use crate::ops::norm;
use crate::step::{HEADER_TILES, TILE_WORDS};

/// A sequence of a step, and the place of its state.
struct Sequence {
    first: usize,
    tokens: usize,
    fresh: bool,
    state: usize,
}

/// The sequences of a step whose states are bound; `state` in values.
fn sequences(args: &Args, step: &[u32]) -> Vec<Sequence> {
    let count = step[(HEADER_TILES + args.sequences.0) as usize] as usize;
    let entries = step[args.sequences.1.offset as usize..].chunks(TILE_WORDS as usize).take(count);
    let values = args.shape.recurrent(1).values as usize;
    entries
        .filter(|e| e[2] >= args.first_slot && e[2] - args.first_slot < args.slots)
        .map(|e| Sequence {
            first: e[0] as usize,
            tokens: e[1] as usize,
            fresh: e[3] == 0,
            state: (e[2] - args.first_slot) as usize * values,
        })
        .collect()
}

/// What a token brings to a value head: q (scaled) and k of length one, v, the decay's logarithm and β.
struct Inputs {
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    g: f64,
    beta: f64,
}

fn inputs(args: &Args, qkv: &[f32], ab: &[f32], vectors: &[f32], token: usize, head: usize) -> Inputs {
    let shape = &args.shape;
    let (key_dim, value_dim) = (shape.key_dim as usize, shape.value_dim as usize);
    let key_head = match args.tiled {
        true => head % shape.key_heads as usize,
        false => head / (shape.heads / shape.key_heads) as usize,
    };
    let row = &qkv[token * args.qkv_stride as usize..];
    let take =
        |at: usize, len: usize| -> Vec<f64> { row[at..at + len].iter().map(|v| f64::from(*v)).collect() };
    let unit = |at: usize, factor: f64| -> Vec<f64> {
        let x = take(at, key_dim);
        let root = norm::inverse_root(x.iter().map(|v| v * v).sum(), args.eps);
        x.iter().map(|v| v * root * factor).collect()
    };
    let keys = shape.key_heads as usize * key_dim;
    let row = &ab[token * args.ab_stride as usize..];
    let number = |values: &[f32], at: u32| f64::from(values[at as usize + head]);
    let x = number(row, args.a_column) + number(vectors, args.dt_bias);
    Inputs {
        q: unit(key_head * key_dim, 1.0 / (key_dim as f64).sqrt()),
        k: unit(keys + key_head * key_dim, 1.0),
        v: take(2 * keys + head * value_dim, value_dim),
        g: number(vectors, args.a) * (x.max(0.0) + (-x.abs()).exp().ln_1p()),
        beta: 1.0 / (1.0 + (-number(row, args.b_column)).exp()),
    }
}

/// The state of a head as rows of f64.
fn state_of(args: &Args, sequence: &Sequence, head: usize, states: &[f32]) -> (usize, Vec<f64>) {
    let values = (args.shape.key_dim * args.shape.value_dim) as usize;
    let at = sequence.state + head * values;
    let state = &states[at..at + values];
    (at, if sequence.fresh { vec![0.0; values] } else { state.iter().map(|v| f64::from(*v)).collect() })
}

/// `Sᵀx`.
fn read(state: &[f64], x: &[f64]) -> Vec<f64> {
    let mut out = vec![0.0; state.len() / x.len()];
    for (row, x) in state.chunks(out.len()).zip(x) {
        out.iter_mut().zip(row).for_each(|(o, s)| *o += s * x);
    }
    out
}

/// `S ← fade·S + x yᵀ`.
fn write(state: &mut [f64], fade: f64, x: &[f64], y: &[f64]) {
    for (row, x) in state.chunks_mut(y.len()).zip(x) {
        row.iter_mut().zip(y).for_each(|(s, y)| *s = fade * *s + x * y);
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The CPU twin, token by token as the rule is written.
pub fn recurrent(
    args: &Args,
    step: &[u32],
    qkv: &[f32],
    ab: &[f32],
    vectors: &[f32],
    states: &mut [f32],
    out: &mut [f32],
) {
    let value_dim = args.shape.value_dim as usize;
    for sequence in sequences(args, step) {
        for head in 0..args.shape.heads as usize {
            let (at, mut state) = state_of(args, &sequence, head, states);
            for token in sequence.first..sequence.first + sequence.tokens {
                let x = inputs(args, qkv, ab, vectors, token, head);
                state.iter_mut().for_each(|s| *s *= x.g.exp());
                let old = read(&state, &x.k);
                let d: Vec<f64> = x.v.iter().zip(old).map(|(v, u)| x.beta * (v - u)).collect();
                write(&mut state, 1.0, &x.k, &d);
                let to = &mut out[token * args.out_stride as usize + head * value_dim..][..value_dim];
                to.iter_mut().zip(read(&state, &x.q)).for_each(|(o, v)| *o = v as f32);
            }
            states[at..at + state.len()].iter_mut().zip(&state).for_each(|(s, v)| *s = *v as f32);
        }
    }
}

/// The CPU twin in blocks of `block` tokens: `(I + A) U = β (V − e^G K S)`, `O = e^G Q S + tril(Q Kᵀ ∘ D) U`,
/// `S ← e^G_C S + (K ∘ D_C)ᵀ U`, with `D_ij = e^(G_i − G_j)` and `A = β (K Kᵀ ∘ D)` below the diagonal.
#[allow(clippy::too_many_arguments)] // those of `recurrent` and the block
pub fn chunked(
    args: &Args,
    block: usize,
    step: &[u32],
    qkv: &[f32],
    ab: &[f32],
    vectors: &[f32],
    states: &mut [f32],
    out: &mut [f32],
) {
    let value_dim = args.shape.value_dim as usize;
    for sequence in sequences(args, step) {
        for head in 0..args.shape.heads as usize {
            let (at, mut state) = state_of(args, &sequence, head, states);
            let tokens: Vec<usize> = (sequence.first..sequence.first + sequence.tokens).collect();
            for tokens in tokens.chunks(block.max(1)) {
                let x: Vec<Inputs> =
                    tokens.iter().map(|t| inputs(args, qkv, ab, vectors, *t, head)).collect();
                // Σ of g after j, up to i.
                let decay = |j: usize, i: usize| x[j + 1..=i].iter().map(|x| x.g).sum::<f64>().exp();
                let since = |i: usize| x[0].g.exp() * decay(0, i);
                let mut u: Vec<Vec<f64>> = Vec::new();
                for (i, (token, xi)) in tokens.iter().zip(&x).enumerate() {
                    let old = read(&state, &xi.k);
                    let mut row: Vec<f64> =
                        xi.v.iter().zip(old).map(|(v, s)| xi.beta * (v - since(i) * s)).collect();
                    for (j, uj) in u.iter().enumerate() {
                        let a = xi.beta * dot(&xi.k, &x[j].k) * decay(j, i);
                        row.iter_mut().zip(uj).for_each(|(r, u)| *r -= a * u);
                    }
                    u.push(row);
                    let mut o: Vec<f64> = read(&state, &xi.q).iter().map(|v| since(i) * v).collect();
                    for (j, uj) in u.iter().enumerate() {
                        let weight = dot(&xi.q, &x[j].k) * decay(j, i);
                        o.iter_mut().zip(uj).for_each(|(o, u)| *o += weight * u);
                    }
                    let to = &mut out[token * args.out_stride as usize + head * value_dim..][..value_dim];
                    to.iter_mut().zip(o).for_each(|(to, v)| *to = v as f32);
                }
                let last = x.len() - 1;
                state.iter_mut().for_each(|s| *s *= since(last));
                for (j, uj) in u.iter().enumerate() {
                    let key: Vec<f64> = x[j].k.iter().map(|k| k * decay(j, last)).collect();
                    write(&mut state, 1.0, &key, uj);
                }
            }
            states[at..at + state.len()].iter_mut().zip(&state).for_each(|(s, v)| *s = *v as f32);
        }
    }
}
