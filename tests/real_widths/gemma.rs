//! gemma4 as modelopt publishes it in NVFP4, which leaves attention and the table in bf16: one sliding and one global
//! layer, of which the latter takes its values from its keys.

use super::checkpoint::{Packing, Tensors};
use super::layers::{add, attend, gated_mlp, gelu_tanh, heads, norm, norm_rows, rotate};
use super::weights::{Rows, Weights};
use super::{Forward, Shape, size};
use serde_json::{Value, json};

const EPS: f64 = 1e-6;

pub const SHAPE: Shape = Shape {
    configure,
    tensors,
    forward,
    table: Packing::Bf16,
    embedding: "model.language_model.embed_tokens",
    // Tied.
    head: "model.language_model.embed_tokens",
};

fn configure(config: &mut Value, vocab: usize) {
    let text = &mut config["text_config"];
    text["num_hidden_layers"] = json!(2);
    text["layer_types"] = json!(["sliding_attention", "full_attention"]);
    text["vocab_size"] = json!(vocab);
    assert_eq!(config["quantization_config"]["quant_algo"], "NVFP4");
}

fn layer(number: usize, part: &str) -> String {
    format!("model.language_model.layers.{number}.{part}")
}

/// The heads of a layer: queries, keys and the size of each.
fn shape(c: &Value, global: bool) -> (usize, usize, usize) {
    let (keys, head) = match global {
        true => ("num_global_key_value_heads", "global_head_dim"),
        false => ("num_key_value_heads", "head_dim"),
    };
    (size(c, "num_attention_heads"), size(c, keys), size(c, head))
}

const NORMS: [&str; 4] = [
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
];

fn tensors(c: &Value) -> Tensors {
    let c = &c["text_config"];
    let (hidden, ffn) = (size(c, "hidden_size"), size(c, "intermediate_size"));
    let mut t = Tensors::default();
    // The model multiplies what it embeds by √hidden.
    t.matrix(SHAPE.embedding, None, [size(c, "vocab_size"), hidden], Packing::Bf16, 2.0);
    t.norm("model.language_model.norm", hidden);
    for number in 0..2 {
        let global = number == 1;
        let (queries, keys, head) = shape(c, global);
        let part = |name: &str| layer(number, &format!("self_attn.{name}"));
        t.matrix(&part("q_proj"), None, [queries * head, hidden], Packing::Bf16, 1.0);
        t.matrix(&part("k_proj"), None, [keys * head, hidden], Packing::Bf16, 1.0);
        if !global {
            t.matrix(&part("v_proj"), None, [keys * head, hidden], Packing::Bf16, 1.0);
        }
        t.matrix(&part("o_proj"), None, [hidden, queries * head], Packing::Bf16, 1.0);
        // Scores have no factor but these.
        let usual = (head as f64).powf(-0.25);
        t.bf16(&part("q_norm.weight"), &[head], 0.5 * usual, 1.5 * usual);
        t.bf16(&part("k_norm.weight"), &[head], 0.5 * usual, 1.5 * usual);
        NORMS.iter().for_each(|name| t.norm(&layer(number, name), hidden));
        t.bf16(&layer(number, "layer_scalar"), &[1], 0.5, 0.9);
        let part = |name: &str| layer(number, &format!("mlp.{name}_proj"));
        t.matrix(&part("gate"), None, [ffn, hidden], Packing::Modelopt, 1.0);
        t.matrix(&part("up"), None, [ffn, hidden], Packing::Modelopt, 1.0);
        t.matrix(&part("down"), None, [hidden, ffn], Packing::Modelopt, 1.0);
    }
    t
}

fn forward(w: &Weights<'_>, c: &Value, ids: &[u32]) -> Forward {
    let c = &c["text_config"];
    let hidden = size(c, "hidden_size");
    let table = w.matrix(SHAPE.embedding, hidden);
    let embed = |id: &u32| table.row(*id as usize).iter().map(|v| v * (hidden as f64).sqrt()).collect();
    let mut x: Rows = ids.iter().map(embed).collect();
    let normed = |x: &Rows, module: &str| norm_rows(x, &w.vector(&format!("{module}.weight")), EPS);
    for number in 0..2 {
        let [before, after, ffn_before, ffn_after] = NORMS.map(|name| layer(number, name));
        let attended = attention(w, c, number, &normed(&x, &before));
        add(&mut x, &normed(&attended, &after));
        let h = normed(&x, &ffn_before);
        let mlp = gated_mlp(w, &layer(number, "mlp"), size(c, "intermediate_size"), gelu_tanh, &h);
        add(&mut x, &normed(&mlp, &ffn_after));
        let scalar = w.vector(&layer(number, "layer_scalar"))[0];
        x.iter_mut().flatten().for_each(|v| *v *= scalar);
    }
    Forward { hidden: normed(&x, "model.language_model.norm"), gap: None, chosen: vec![] }
}

fn attention(w: &Weights<'_>, c: &Value, number: usize, h: &Rows) -> Rows {
    let global = number == 1;
    let head = shape(c, global).2;
    let part = |name: &str| layer(number, &format!("self_attn.{name}"));
    let project = |name: &str| w.matrix(&part(name), h[0].len()).times(h);
    let (mut q, mut k) = (project("q_proj"), project("k_proj"));
    let mut v = if global { k.clone() } else { project("v_proj") };
    let rope = &c["rope_parameters"][if global { "full_attention" } else { "sliding_attention" }];
    let theta = rope["rope_theta"].as_f64().unwrap();
    // Pairs span the whole head; of the global ones only the first share turns.
    let turning = rope["partial_rotary_factor"].as_f64().unwrap_or(1.0) * head as f64 / 2.0;
    let frequency = |i: usize| theta.powf(-2.0 * i as f64 / head as f64);
    let frequencies: Vec<f64> =
        (0..head / 2).map(|i| if (i as f64) < turning { frequency(i) } else { 0.0 }).collect();
    for (x, name) in [(&mut q, "q_norm.weight"), (&mut k, "k_norm.weight")] {
        let weight = w.vector(&part(name));
        heads(x, head, |position, x| {
            let mut x = norm(x, Some(&weight), EPS);
            rotate(&mut x, position, &frequencies);
            x
        });
    }
    heads(&mut v, head, |_, v| norm(v, None, EPS));
    let out = attend(&q, &k, &v, head, 1.0);
    w.matrix(&part("o_proj"), q[0].len()).times(&out)
}
