//! qwen3_5 and qwen3_5_moe as mlx-lm converts them: a layer with a gated delta rule and one with gated full attention,
//! each with its MLP or its experts.

use super::checkpoint::{Packing, Tensors};
use super::layers::{
    Delta, add, attend, best, conv_silu, gated_mlp, heads, mixture, norm, norm_rows, products, rotate,
    sigmoid, silu,
};
use super::weights::{Rows, Weights};
use super::{Forward, Shape, size};
use serde_json::{Value, json};

const EPS: f64 = 1e-6;
/// Of routers and gates of shared experts, whatever the rest is packed in.
const GATES: Packing = Packing::Affine(8);

pub const DENSE: Shape = Shape {
    configure: |config, vocab| {
        configure(config, vocab, json!({"group_size": 64, "bits": 4, "mode": "affine"}))
    },
    tensors: |config| tensors(&config["text_config"], DENSE.table),
    forward,
    table: Packing::Affine(4),
    embedding: "language_model.model.embed_tokens",
    head: "language_model.lm_head",
};

pub const EXPERTS: Shape = Shape {
    configure: |config, vocab| {
        let mut quantization = json!({"group_size": 16, "bits": 4, "mode": "nvfp4"});
        for number in 0..2 {
            for gate in ["gate", "shared_expert_gate"] {
                quantization[layer(number, &format!("mlp.{gate}"))] = json!({"group_size": 64, "bits": 8});
            }
        }
        configure(config, vocab, quantization);
    },
    tensors: |config| tensors(&config["text_config"], EXPERTS.table),
    table: Packing::Mlx,
    ..DENSE
};

fn configure(config: &mut Value, vocab: usize, quantization: Value) {
    let text = &mut config["text_config"];
    for (key, value) in [
        ("num_hidden_layers", json!(2)),
        ("layer_types", json!(["linear_attention", "full_attention"])),
        ("full_attention_interval", json!(2)),
        ("vocab_size", json!(vocab)),
    ] {
        text[key] = value;
    }
    config["quantization"] = quantization;
}

fn layer(number: usize, part: &str) -> String {
    format!("language_model.model.layers.{number}.{part}")
}

/// q, k and v side by side; all values.
fn delta_sizes(c: &Value) -> (usize, usize, usize) {
    let inner = size(c, "linear_num_value_heads") * size(c, "linear_value_head_dim");
    let keys = size(c, "linear_num_key_heads") * size(c, "linear_key_head_dim");
    (2 * keys + inner, keys, inner)
}

fn tensors(c: &Value, packing: Packing) -> Tensors {
    let (hidden, vocab) = (size(c, "hidden_size"), size(c, "vocab_size"));
    let mut t = Tensors::default();
    t.matrix(DENSE.embedding, None, [vocab, hidden], packing, (hidden as f64).sqrt());
    t.matrix(DENSE.head, None, [vocab, hidden], packing, 1.0);
    t.norm("language_model.model.norm", hidden);

    let ((channels, _, inner), count) = (delta_sizes(c), size(c, "linear_num_value_heads"));
    let part = |name: &str| layer(0, &format!("linear_attn.{name}"));
    t.matrix(&part("in_proj_qkv"), None, [channels, hidden], packing, 1.0);
    t.matrix(&part("in_proj_z"), None, [inner, hidden], packing, 1.0);
    t.matrix(&part("in_proj_b"), None, [count, hidden], packing, 1.0);
    t.matrix(&part("in_proj_a"), None, [count, hidden], packing, 1.0);
    t.bf16(&part("conv1d.weight"), &[channels, size(c, "linear_conv_kernel_dim"), 1], -0.9, 0.9);
    t.bf16(&part("A_log"), &[count], 0.0, 2.7);
    t.bf16(&part("dt_bias"), &[count], -6.0, -1.0);
    t.norm(&part("norm"), size(c, "linear_value_head_dim"));
    t.matrix(&part("out_proj"), None, [hidden, inner], packing, 1.0);

    let head = size(c, "head_dim");
    let (queries, keys) = (size(c, "num_attention_heads") * head, size(c, "num_key_value_heads") * head);
    let part = |name: &str| layer(1, &format!("self_attn.{name}"));
    t.matrix(&part("q_proj"), None, [2 * queries, hidden], packing, 1.0);
    t.matrix(&part("k_proj"), None, [keys, hidden], packing, 1.0);
    t.matrix(&part("v_proj"), None, [keys, hidden], packing, 1.0);
    t.matrix(&part("o_proj"), None, [hidden, queries], packing, 1.0);
    t.norm(&part("q_norm"), head);
    t.norm(&part("k_norm"), head);

    for number in 0..2 {
        t.norm(&layer(number, "input_layernorm"), hidden);
        t.norm(&layer(number, "post_attention_layernorm"), hidden);
        let part = |name: &str| layer(number, &format!("mlp.{name}"));
        let mut mlp = |module: &str, experts: Option<usize>, width: usize| {
            let part = |name: &str| part(&format!("{module}{name}_proj"));
            t.matrix(&part("gate"), experts, [width, hidden], packing, 1.0);
            t.matrix(&part("up"), experts, [width, hidden], packing, 1.0);
            t.matrix(&part("down"), experts, [hidden, width], packing, 1.0);
        };
        if c.get("num_experts").is_none() {
            mlp("", None, size(c, "intermediate_size"));
            continue;
        }
        let experts = size(c, "num_experts");
        mlp("switch_mlp.", Some(experts), size(c, "moe_intermediate_size"));
        mlp("shared_expert.", None, size(c, "shared_expert_intermediate_size"));
        t.matrix(&part("gate"), None, [experts, hidden], GATES, 3.0);
        t.matrix(&part("shared_expert_gate"), None, [1, hidden], GATES, 1.0);
    }
    t
}

fn forward(w: &Weights<'_>, c: &Value, ids: &[u32]) -> Forward {
    let c = &c["text_config"];
    let table = w.matrix(DENSE.embedding, size(c, "hidden_size"));
    let mut x: Rows = ids.iter().map(|id| table.row(*id as usize)).collect();
    let (mut least, mut chosen) = (None, Vec::new());
    let normed = |x: &Rows, module: &str| norm_rows(x, &w.vector(&format!("{module}.weight")), EPS);
    for number in 0..2 {
        let h = normed(&x, &layer(number, "input_layernorm"));
        let mixed = if number == 0 { delta(w, c, &h) } else { attention(w, c, &h) };
        add(&mut x, &mixed);
        let h = normed(&x, &layer(number, "post_attention_layernorm"));
        if c.get("num_experts").is_none() {
            let ffn = size(c, "intermediate_size");
            add(&mut x, &gated_mlp(w, &layer(number, "mlp"), ffn, silu, &h));
            continue;
        }
        let (added, gap, count) = experts(w, c, number, &h);
        add(&mut x, &added);
        least = Some(gap.min(least.unwrap_or(f64::INFINITY)));
        chosen.push(count);
    }
    Forward { hidden: normed(&x, "language_model.model.norm"), gap: least, chosen }
}

fn delta(w: &Weights<'_>, c: &Value, h: &Rows) -> Rows {
    let part = |name: &str| layer(0, &format!("linear_attn.{name}"));
    let project = |name: &str| w.matrix(&part(name), h[0].len()).times(h);
    let rule = Delta {
        heads: size(c, "linear_num_value_heads"),
        key_heads: size(c, "linear_num_key_heads"),
        key: size(c, "linear_key_head_dim"),
        value: size(c, "linear_value_head_dim"),
        a_log: w.vector(&part("A_log")),
        dt_bias: w.vector(&part("dt_bias")),
    };
    let mixed = conv_silu(&project("in_proj_qkv"), &w.vector(&part("conv1d.weight")), None);
    let mut y = rule.run(&mixed, &project("in_proj_a"), &project("in_proj_b"));
    let (weight, z) = (w.vector(&part("norm.weight")), project("in_proj_z"));
    heads(&mut y, rule.value, |_, y| norm(y, Some(&weight), EPS));
    for (y, z) in y.iter_mut().zip(&z) {
        y.iter_mut().zip(z).for_each(|(y, z)| *y *= silu(*z));
    }
    w.matrix(&part("out_proj"), delta_sizes(c).2).times(&y)
}

fn attention(w: &Weights<'_>, c: &Value, h: &Rows) -> Rows {
    let part = |name: &str| layer(1, &format!("self_attn.{name}"));
    let project = |name: &str| w.matrix(&part(name), h[0].len()).times(h);
    let head = size(c, "head_dim");
    // Each head has its query, then its gate.
    let half = |rows: &Rows, second: usize| -> Rows {
        rows.iter().map(|row| row.chunks(head).skip(second).step_by(2).flatten().copied().collect()).collect()
    };
    let both = project("q_proj");
    let (mut q, gate) = (half(&both, 0), half(&both, 1));
    let (mut k, v) = (project("k_proj"), project("v_proj"));
    let rope = &c["rope_parameters"];
    let (theta, share) =
        (rope["rope_theta"].as_f64().unwrap(), rope["partial_rotary_factor"].as_f64().unwrap());
    let rotated = head as f64 * share;
    let frequencies: Vec<f64> =
        (0..rotated as usize / 2).map(|i| theta.powf(-2.0 * i as f64 / rotated)).collect();
    for (x, name) in [(&mut q, "q_norm.weight"), (&mut k, "k_norm.weight")] {
        let weight = w.vector(&part(name));
        heads(x, head, |position, x| {
            let mut x = norm(x, Some(&weight), EPS);
            rotate(&mut x, position, &frequencies);
            x
        });
    }
    let mut out = attend(&q, &k, &v, head, 1.0 / (head as f64).sqrt());
    for (out, gate) in out.iter_mut().zip(&gate) {
        out.iter_mut().zip(gate).for_each(|(o, g)| *o *= sigmoid(*g));
    }
    w.matrix(&part("o_proj"), q[0].len()).times(&out)
}

fn experts(w: &Weights<'_>, c: &Value, number: usize, h: &Rows) -> (Rows, f64, usize) {
    let part = |name: &str| layer(number, &format!("mlp.{name}"));
    let (hidden, width, top) = (h[0].len(), size(c, "moe_intermediate_size"), size(c, "num_experts_per_tok"));
    let mut least = f64::INFINITY;
    let choices: Vec<_> = w
        .matrix(&part("gate"), hidden)
        .times(h)
        .iter()
        .map(|logits| {
            let (ids, gap) = best(logits, top);
            least = gap.min(least);
            // The sum over all experts goes with the division by that of the chosen.
            let weights: Vec<f64> = ids.iter().map(|id| (logits[*id] - logits[ids[0]]).exp()).collect();
            let sum: f64 = weights.iter().sum();
            ids.into_iter().zip(weights).map(|(id, weight)| (id, weight / sum)).collect()
        })
        .collect();
    let stack = |name: &str, cols: usize| w.matrix(&part(&format!("switch_mlp.{name}_proj")), cols);
    let (gates, ups, downs) = (stack("gate", hidden), stack("up", hidden), stack("down", width));
    let (mut out, chosen) = mixture(&choices, h, |id, x| {
        let rows = id * width..(id + 1) * width;
        let inner = products(gates.times_rows(rows.clone(), x), &ups.times_rows(rows, x), silu);
        downs.times_rows(id * hidden..(id + 1) * hidden, &inner)
    });
    let gate = w.matrix(&part("shared_expert_gate"), hidden).times(h);
    let mut shared =
        gated_mlp(w, &part("shared_expert"), size(c, "shared_expert_intermediate_size"), silu, h);
    for (shared, gate) in shared.iter_mut().zip(&gate) {
        shared.iter_mut().for_each(|v| *v *= sigmoid(gate[0]));
    }
    add(&mut out, &shared);
    (out, least, chosen)
}
