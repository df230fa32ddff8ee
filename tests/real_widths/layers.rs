//! The parts of a layer in f64, token by token, as their papers write them.

use super::weights::{Rows, Weights, dot};
use std::collections::BTreeMap;

pub fn sigmoid(v: f64) -> f64 {
    1.0 / (1.0 + (-v).exp())
}

pub fn silu(v: f64) -> f64 {
    v * sigmoid(v)
}

fn softplus(v: f64) -> f64 {
    v.max(0.0) + (-v.abs()).exp().ln_1p()
}

pub fn gelu_tanh(v: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (v + 0.044715 * v * v * v);
    0.5 * v * (1.0 + inner.tanh())
}

pub fn relu_squared(v: f64) -> f64 {
    v.max(0.0).powi(2)
}

/// `x / √(mean(x²) + eps)`, times a weight if there is one.
pub fn norm(x: &[f64], weight: Option<&[f64]>, eps: f64) -> Vec<f64> {
    let scale = 1.0 / (dot(x, x) / x.len() as f64 + eps).sqrt();
    x.iter().enumerate().map(|(i, v)| v * scale * weight.map_or(1.0, |w| w[i])).collect()
}

pub fn norm_rows(x: &[Vec<f64>], weight: &[f64], eps: f64) -> Rows {
    x.iter().map(|x| norm(x, Some(weight), eps)).collect()
}

pub fn add(x: &mut Rows, y: &[Vec<f64>]) {
    for (x, y) in x.iter_mut().zip(y) {
        x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
    }
}

/// Turns pairs `(i, i + n)` of a head, `n` frequencies long.
pub fn rotate(x: &mut [f64], position: usize, frequencies: &[f64]) {
    let pairs = frequencies.len();
    for (i, frequency) in frequencies.iter().enumerate() {
        let (sin, cos) = (position as f64 * frequency).sin_cos();
        let (a, b) = (x[i], x[i + pairs]);
        (x[i], x[i + pairs]) = (a * cos - b * sin, b * cos + a * sin);
    }
}

/// Applies `each` to every head of every token.
pub fn heads(x: &mut Rows, size: usize, each: impl Fn(usize, &[f64]) -> Vec<f64>) {
    for (position, row) in x.iter_mut().enumerate() {
        for head in row.chunks_mut(size) {
            let new = each(position, head);
            head.copy_from_slice(&new);
        }
    }
}

/// Causal attention: heads of `size` side by side, each key head serving as many query heads.
pub fn attend(q: &[Vec<f64>], k: &[Vec<f64>], v: &[Vec<f64>], size: usize, scale: f64) -> Rows {
    let (count, served) = (q[0].len() / size, q[0].len() / k[0].len());
    let of = |row: &[f64], head: usize| row[head * size..][..size].to_vec();
    let one = |t: usize| {
        let mut out = Vec::new();
        for head in 0..count {
            let query = of(&q[t], head);
            let scores: Vec<f64> =
                k[..=t].iter().map(|k| scale * dot(&query, &of(k, head / served))).collect();
            let most = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let mut mixed = vec![0.0; size];
            for (weight, v) in weights.iter().zip(v) {
                mixed.iter_mut().zip(of(v, head / served)).for_each(|(m, v)| *m += weight / sum * v);
            }
            out.extend(mixed);
        }
        out
    };
    (0..q.len()).map(one).collect()
}

/// Each channel's last four inputs times its taps, then SiLU; nothing comes before the first token.
pub fn conv_silu(x: &[Vec<f64>], taps: &[f64], bias: Option<&[f64]>) -> Rows {
    let channels = x[0].len();
    let count = taps.len() / channels;
    let value = |t: usize, c: usize| {
        // The last tap meets the token itself.
        let sum: f64 =
            (0..count).filter(|j| t >= *j).map(|j| x[t - j][c] * taps[(c + 1) * count - 1 - j]).sum();
        silu(sum + bias.map_or(0.0, |b| b[c]))
    };
    (0..x.len()).map(|t| (0..channels).map(|c| value(t, c)).collect()).collect()
}

/// Sizes and vectors of a Mamba2 mixer.
pub struct Ssm {
    pub heads: usize,
    pub size: usize,
    pub state: usize,
    pub groups: usize,
    pub a_log: Vec<f64>,
    pub d: Vec<f64>,
    pub dt_bias: Vec<f64>,
}

impl Ssm {
    /// `h ← exp(Δa)·h + Δ·x⊗B`, `y = h·C + D·x`, with x, B and C side by side and `Δ = softplus(dt + bias)`.
    pub fn run(&self, xbc: &[Vec<f64>], dt: &[Vec<f64>]) -> Rows {
        let inner = self.heads * self.size;
        let mut out = vec![vec![0.0; inner]; xbc.len()];
        for head in 0..self.heads {
            let group = head / (self.heads / self.groups);
            let mut h = vec![vec![0.0; self.state]; self.size];
            for (t, row) in xbc.iter().enumerate() {
                let delta = softplus(dt[t][head] + self.dt_bias[head]);
                let fade = (-self.a_log[head].exp() * delta).exp();
                let b = &row[inner + group * self.state..][..self.state];
                let c = &row[inner + (self.groups + group) * self.state..][..self.state];
                for (p, h) in h.iter_mut().enumerate() {
                    let x = row[head * self.size + p];
                    h.iter_mut().zip(b).for_each(|(h, b)| *h = fade * *h + delta * x * b);
                    out[t][head * self.size + p] = dot(h, c) + self.d[head] * x;
                }
            }
        }
        out
    }
}

/// Sizes and vectors of a gated delta rule.
pub struct Delta {
    pub heads: usize,
    pub key_heads: usize,
    pub key: usize,
    pub value: usize,
    pub a_log: Vec<f64>,
    pub dt_bias: Vec<f64>,
}

impl Delta {
    /// `S ← e^g·S`, `S ← S + β·k⊗(v − Sᵀk)`, `o = Sᵀq / √Ek`, with q and k of length one and
    /// `g = −e^a_log·softplus(a + dt_bias)`, `β = sigmoid(b)`.
    pub fn run(&self, qkv: &[Vec<f64>], a: &[Vec<f64>], b: &[Vec<f64>]) -> Rows {
        let keys = self.key_heads * self.key;
        let mut out = vec![vec![0.0; self.heads * self.value]; qkv.len()];
        for head in 0..self.heads {
            let key_head = head / (self.heads / self.key_heads);
            let mut state = vec![vec![0.0; self.key]; self.value];
            for (t, row) in qkv.iter().enumerate() {
                let unit = |at: usize| {
                    let x = &row[at..at + self.key];
                    let length = (dot(x, x) + 1e-6).sqrt();
                    x.iter().map(|v| v / length).collect::<Vec<_>>()
                };
                let (q, k) = (unit(key_head * self.key), unit(keys + key_head * self.key));
                let fade = (-self.a_log[head].exp() * softplus(a[t][head] + self.dt_bias[head])).exp();
                let beta = sigmoid(b[t][head]);
                for (e, s) in state.iter_mut().enumerate() {
                    s.iter_mut().for_each(|s| *s *= fade);
                    let d = beta * (row[2 * keys + head * self.value + e] - dot(s, &k));
                    s.iter_mut().zip(&k).for_each(|(s, k)| *s += k * d);
                    out[t][head * self.value + e] = dot(s, &q) / (self.key as f64).sqrt();
                }
            }
        }
        out
    }
}

/// The experts of a token with their weights.
pub type Choice = Vec<(usize, f64)>;

/// The `top` best, and by how much the last of them is better than the best of the others, in standard deviations of the
/// scores.
pub fn best(scores: &[f64], top: usize) -> (Vec<usize>, f64) {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    let gap = scores[order[top - 1]] - scores[order[top]];
    let count = scores.len() as f64;
    let mean = scores.iter().sum::<f64>() / count;
    let deviation = (scores.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / count).sqrt();
    order.truncate(top);
    (order, gap / deviation)
}

/// `Σ weight·expert(x)` for each token; an expert that nobody chose is not looked at. Answers how many were.
pub fn mixture(
    choices: &[Choice],
    x: &[Vec<f64>],
    expert: impl Fn(usize, &[Vec<f64>]) -> Rows,
) -> (Rows, usize) {
    let mut tokens: BTreeMap<usize, Vec<(usize, f64)>> = BTreeMap::new();
    for (t, choice) in choices.iter().enumerate() {
        for (id, weight) in choice {
            tokens.entry(*id).or_default().push((t, *weight));
        }
    }
    let mut out = vec![vec![0.0; x[0].len()]; x.len()];
    for (id, tokens) in &tokens {
        let x: Rows = tokens.iter().map(|(t, _)| x[*t].clone()).collect();
        for ((t, weight), y) in tokens.iter().zip(expert(*id, &x)) {
            out[*t].iter_mut().zip(y).for_each(|(o, y)| *o += weight * y);
        }
    }
    (out, tokens.len())
}

/// `down(act(gate(x))·up(x))`.
pub fn gated_mlp(w: &Weights<'_>, module: &str, ffn: usize, act: fn(f64) -> f64, x: &[Vec<f64>]) -> Rows {
    let part = |name: &str, cols: usize| w.matrix(&format!("{module}.{name}_proj"), cols);
    let (gate, up) = (part("gate", x[0].len()).times(x), part("up", x[0].len()).times(x));
    part("down", ffn).times(&products(gate, &up, act))
}

/// `act(gate)·up`.
pub fn products(mut gate: Rows, up: &[Vec<f64>], act: fn(f64) -> f64) -> Rows {
    for (gate, up) in gate.iter_mut().zip(up) {
        gate.iter_mut().zip(up).for_each(|(g, u)| *g = act(*g) * u);
    }
    gate
}
