//! nemotron_h as mlx-lm converts it to 4 bits: one Mamba2, one attention and one layer of experts; the published model
//! has no others.

use super::checkpoint::{Packing, Tensors};
use super::layers::{
    Ssm, add, attend, best, conv_silu, mixture, norm, norm_rows, relu_squared, sigmoid, silu,
};
use super::weights::{Rows, Weights};
use super::{Forward, Shape, size};
use serde_json::{Value, json};

const EPS: f64 = 1e-5;
const PACKING: Packing = Packing::Affine(4);

pub fn configure(config: &mut Value, vocab: usize) {
    let published = config["hybrid_override_pattern"].as_str().unwrap();
    assert!(published.chars().all(|letter| "M*E".contains(letter)));
    for (key, value) in [
        ("hybrid_override_pattern", json!("M*E")),
        ("num_hidden_layers", json!(3)),
        ("vocab_size", json!(vocab)),
        ("quantization", json!({"group_size": 64, "bits": 4, "mode": "affine"})),
    ] {
        config[key] = value;
    }
}

pub const SHAPE: Shape =
    Shape { configure, tensors, forward, table: PACKING, embedding: "backbone.embeddings", head: "lm_head" };

fn layer(number: usize, part: &str) -> String {
    format!("backbone.layers.{number}.{part}")
}

fn tensors(c: &Value) -> Tensors {
    let hidden = size(c, "hidden_size");
    let mut t = Tensors::default();
    t.matrix(SHAPE.embedding, None, [size(c, "vocab_size"), hidden], PACKING, (hidden as f64).sqrt());
    t.matrix(SHAPE.head, None, [size(c, "vocab_size"), hidden], PACKING, 1.0);
    t.norm("backbone.norm_f", hidden);
    (0..3).for_each(|number| t.norm(&layer(number, "norm"), hidden));

    let (heads, groups) = (size(c, "mamba_num_heads"), size(c, "n_groups"));
    let inner = heads * size(c, "mamba_head_dim");
    let channels = inner + 2 * groups * size(c, "ssm_state_size");
    let mixer = |part: &str| layer(0, &format!("mixer.{part}"));
    t.matrix(&mixer("in_proj"), None, [inner + channels + heads, hidden], PACKING, 1.0);
    t.bf16(&mixer("conv1d.weight"), &[channels, size(c, "conv_kernel"), 1], -0.9, 0.9);
    t.bf16(&mixer("conv1d.bias"), &[channels], -0.2, 0.2);
    t.f32(&mixer("A_log"), &[heads], 0.0, 2.7);
    t.bf16(&mixer("D"), &[heads], 0.5, 1.5);
    t.bf16(&mixer("dt_bias"), &[heads], -6.0, -1.0);
    t.norm(&mixer("norm"), inner);
    t.matrix(&mixer("out_proj"), None, [hidden, inner], PACKING, 1.0);

    let head = size(c, "head_dim");
    let (queries, keys) = (size(c, "num_attention_heads") * head, size(c, "num_key_value_heads") * head);
    let mixer = |part: &str| layer(1, &format!("mixer.{part}"));
    t.matrix(&mixer("q_proj"), None, [queries, hidden], PACKING, 1.0);
    t.matrix(&mixer("k_proj"), None, [keys, hidden], PACKING, 1.0);
    t.matrix(&mixer("v_proj"), None, [keys, hidden], PACKING, 1.0);
    t.matrix(&mixer("o_proj"), None, [hidden, queries], PACKING, 1.0);

    let (experts, width) = (size(c, "n_routed_experts"), size(c, "moe_intermediate_size"));
    let shared = size(c, "moe_shared_expert_intermediate_size");
    let mixer = |part: &str| layer(2, &format!("mixer.{part}"));
    t.matrix(&mixer("gate"), None, [experts, hidden], Packing::Bf16, 1.5);
    t.f32(&mixer("gate.e_score_correction_bias"), &[experts], -0.1, 0.1);
    t.matrix(&mixer("switch_mlp.fc1"), Some(experts), [width, hidden], PACKING, 1.0);
    t.matrix(&mixer("switch_mlp.fc2"), Some(experts), [hidden, width], PACKING, 1.0);
    t.matrix(&mixer("shared_experts.up_proj"), None, [shared, hidden], PACKING, 1.0);
    t.matrix(&mixer("shared_experts.down_proj"), None, [hidden, shared], PACKING, 1.0);
    t
}

fn forward(w: &Weights<'_>, c: &Value, ids: &[u32]) -> Forward {
    let hidden = size(c, "hidden_size");
    let table = w.matrix(SHAPE.embedding, hidden);
    let mut x: Rows = ids.iter().map(|id| table.row(*id as usize)).collect();
    let normed = |x: &Rows, module: &str| norm_rows(x, &w.vector(&format!("{module}.weight")), EPS);

    let h = normed(&x, &layer(0, "norm"));
    add(&mut x, &mamba(w, c, &h));

    let h = normed(&x, &layer(1, "norm"));
    let head = size(c, "head_dim");
    let mixer = |part: &str, cols: usize| w.matrix(&layer(1, &format!("mixer.{part}_proj")), cols);
    let [q, k, v] = ["q", "k", "v"].map(|part| mixer(part, hidden).times(&h));
    let attended = attend(&q, &k, &v, head, 1.0 / (head as f64).sqrt());
    add(&mut x, &mixer("o", q[0].len()).times(&attended));

    let h = normed(&x, &layer(2, "norm"));
    let (added, gap, chosen) = experts(w, c, &h);
    add(&mut x, &added);
    Forward { hidden: normed(&x, "backbone.norm_f"), gap: Some(gap), chosen: vec![chosen] }
}

fn mamba(w: &Weights<'_>, c: &Value, h: &Rows) -> Rows {
    let mixer = |part: &str| layer(0, &format!("mixer.{part}"));
    let (heads, width) = (size(c, "mamba_num_heads"), size(c, "mamba_head_dim"));
    let ssm = Ssm {
        heads,
        size: width,
        state: size(c, "ssm_state_size"),
        groups: size(c, "n_groups"),
        a_log: w.vector(&mixer("A_log")),
        d: w.vector(&mixer("D")),
        dt_bias: w.vector(&mixer("dt_bias")),
    };
    let inner = heads * width;
    let projected = w.matrix(&mixer("in_proj"), h[0].len()).times(h);
    let end = projected[0].len();
    let columns =
        |from: usize, to: usize| -> Rows { projected.iter().map(|row| row[from..to].to_vec()).collect() };
    let (z, xbc, dt) = (columns(0, inner), columns(inner, end - heads), columns(end - heads, end));
    let (taps, bias) = (w.vector(&mixer("conv1d.weight")), w.vector(&mixer("conv1d.bias")));
    let mut y = ssm.run(&conv_silu(&xbc, &taps, Some(&bias)), &dt);
    let weight = w.vector(&mixer("norm.weight"));
    let group = inner / ssm.groups;
    for (y, z) in y.iter_mut().zip(&z) {
        y.iter_mut().zip(z).for_each(|(y, z)| *y *= silu(*z));
        for (y, weight) in y.chunks_mut(group).zip(weight.chunks(group)) {
            let new = norm(y, Some(weight), EPS);
            y.copy_from_slice(&new);
        }
    }
    w.matrix(&mixer("out_proj"), inner).times(&y)
}

fn experts(w: &Weights<'_>, c: &Value, h: &Rows) -> (Rows, f64, usize) {
    let mixer = |part: &str| layer(2, &format!("mixer.{part}"));
    let (hidden, width, top) = (h[0].len(), size(c, "moe_intermediate_size"), size(c, "num_experts_per_tok"));
    let factor = c["routed_scaling_factor"].as_f64().unwrap();
    let bias = w.vector(&mixer("gate.e_score_correction_bias"));
    let mut least = f64::INFINITY;
    let choices: Vec<_> = w
        .matrix(&mixer("gate"), hidden)
        .times(h)
        .iter()
        .map(|logits| {
            let scores: Vec<f64> = logits.iter().map(|v| sigmoid(*v)).collect();
            let biased: Vec<f64> = scores.iter().zip(&bias).map(|(s, b)| s + b).collect();
            let (ids, gap) = best(&biased, top);
            least = gap.min(least);
            let sum: f64 = ids.iter().map(|id| scores[*id]).sum();
            ids.into_iter().map(|id| (id, scores[id] / sum * factor)).collect()
        })
        .collect();
    let (up, down) = (w.matrix(&mixer("switch_mlp.fc1"), hidden), w.matrix(&mixer("switch_mlp.fc2"), width));
    let squared = |mut x: Rows| {
        x.iter_mut().flatten().for_each(|v| *v = relu_squared(*v));
        x
    };
    let (mut out, chosen) = mixture(&choices, h, |id, x| {
        let inner = squared(up.times_rows(id * width..(id + 1) * width, x));
        down.times_rows(id * hidden..(id + 1) * hidden, &inner)
    });
    let shared = size(c, "moe_shared_expert_intermediate_size");
    let inner = squared(w.matrix(&mixer("shared_experts.up_proj"), hidden).times(h));
    add(&mut out, &w.matrix(&mixer("shared_experts.down_proj"), shared).times(&inner));
    (out, least, chosen)
}
