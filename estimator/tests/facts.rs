//! Figures from public logs and hubs come out to their own rounding: by the other engines' rules through the command
//! line, by the library where its document has no such field.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "common/published.rs"]
mod published;

use plimsoll_estimator::Geometry;
use plimsoll_estimator::images;
use plimsoll_estimator::peers::{self, Engine, Options};
use plimsoll_kernels::Format;
use plimsoll_models::model::{Grid, Tower};
use published::{File, config, model};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;

const MIB: f64 = 1048576.0;
const GIB: f64 = 1073741824.0;

/// A figure, with what is needed to make it.
struct Fact<'a>(&'a Value);

impl Fact<'_> {
    fn id(&self) -> &str {
        self.0["id"].as_str().unwrap()
    }

    /// A number of the geometry it was read at.
    fn at(&self, key: &str) -> u64 {
        self.0["geometry"][key].as_u64().unwrap_or_else(|| panic!("{}: no {key}", self.id()))
    }

    fn inline(&self, key: &str) -> u64 {
        self.0["config"][key].as_u64().unwrap_or_else(|| panic!("{}: no {key}", self.id()))
    }

    /// The model it is of.
    fn published(&self) -> PathBuf {
        let path = self.0["config"].as_str().unwrap_or_else(|| panic!("{}: inline", self.id()));
        config(path.strip_prefix("configs/").and_then(|p| p.strip_suffix(".json")).unwrap())
    }

    /// What the command line answers about its published configuration.
    fn ask(&self, flags: &str, pointer: &str) -> Result<f64, String> {
        document(&self.published(), flags, pointer)
    }

    /// What it answers about a configuration made of the figure's own numbers.
    fn ask_of(&self, config: &Value, flags: &str, pointer: &str) -> Result<f64, String> {
        document(&File::new(self.id(), config).0, flags, pointer)
    }

    /// How far off it may be: what its tolerance says, in its own unit.
    fn tolerance(&self) -> f64 {
        let text = self.0["tolerance"].as_str().unwrap();
        if text.starts_with("exact") {
            return 0.0;
        }
        let number = text.split('±').nth(1).unwrap_or_else(|| panic!("{}: {text}", self.id()));
        let digits: String = number.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
        let value: f64 = digits.parse().unwrap();
        let percent = number[digits.len()..].starts_with('%');
        if percent { self.0["value"].as_f64().unwrap() * value / 100.0 } else { value }
    }
}

fn document(path: &PathBuf, flags: &str, pointer: &str) -> Result<f64, String> {
    let output = Command::new(env!("CARGO_BIN_EXE_plimsoll-estimate"))
        .arg(path)
        .args(flags.split_whitespace())
        .arg("--json")
        .env_remove("PLIMSOLL_MEMORY_LIMIT")
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{flags}: {said}"));
    }
    let document: Value = serde_json::from_slice(&output.stdout).map_err(|e| e.to_string())?;
    let found = document.pointer(pointer).and_then(Value::as_u64);
    found.map(|n| n as f64).ok_or_else(|| format!("no {pointer}"))
}

/// `layers` layers in which only every `period`th is global.
fn layer_types(layers: u64, period: u64) -> Vec<&'static str> {
    let kind = |i| if (i + 1) % period == 0 { "full_attention" } else { "sliding_attention" };
    (0..layers).map(kind).collect()
}

/// Gemma 4 of these sizes; widths that no cache depends on are small.
fn gemma4(layers: u64, shared: u64, kv_heads: u64, global: (u64, u64), window: u64) -> Value {
    json!({
        "model_type": "gemma4_text", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": layers, "num_attention_heads": 8, "num_key_value_heads": kv_heads,
        "head_dim": 256, "num_global_key_value_heads": global.0, "global_head_dim": global.1,
        "layer_types": layer_types(layers, 6), "sliding_window": window, "num_kv_shared_layers": shared,
        "attention_k_eq_v": true, "max_position_embeddings": 131072, "tie_word_embeddings": true,
        "hidden_size_per_layer_input": 0, "enable_moe_block": false,
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_parameters": {
            "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "proportional"},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        },
    })
}

/// Gemma 4 12B: 40 sliding layers of 8 heads of 256 and 8 global ones of 1 head of 512, window 1,024.
fn gemma4_12b() -> Value {
    gemma4(48, 0, 8, (1, 512), 1024)
}

/// Gemma 4 E4B: the last layers read the caches of earlier ones.
fn gemma4_e4b(f: &Fact<'_>) -> Value {
    let global = (f.inline("global_kv_heads"), f.inline("global_head_dim"));
    let mut config = gemma4(f.inline("layers"), f.inline("shared_kv_layers"), 2, global, 512);
    config["attention_k_eq_v"] = json!(false);
    config
}

/// Qwen3-Next 80B: attention on every fourth layer.
fn qwen3_next(f: &Fact<'_>) -> Value {
    json!({
        "model_type": "qwen3_next", "vocab_size": 256, "hidden_size": 2048, "intermediate_size": 5120,
        "num_hidden_layers": f.inline("attention_layers") * 4, "full_attention_interval": 4,
        "num_attention_heads": 16, "num_key_value_heads": f.inline("kv_heads"),
        "head_dim": f.inline("head_dim"), "partial_rotary_factor": 0.25, "rope_theta": 1e7,
        "linear_num_value_heads": 32, "linear_num_key_heads": 16, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
        "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "norm_topk_prob": true, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "max_position_embeddings": 262144, "tie_word_embeddings": false,
    })
}

/// AFMoE: 2 KV heads of 128 in each layer are 1,024 bytes a cell in f16.
fn afmoe(f: &Fact<'_>) -> Value {
    assert_eq!(f.inline("kv_bytes_per_cell_layer"), 2 * 2 * 128 * 2);
    let every = f.inline("layers") / f.inline("global");
    json!({
        "model_type": "afmoe", "vocab_size": 256, "hidden_size": 1024, "intermediate_size": 3072,
        "num_hidden_layers": f.inline("layers"), "global_attn_every_n_layers": every,
        "sliding_window": f.inline("window"), "num_attention_heads": 8, "num_key_value_heads": 2,
        "head_dim": 128, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "moe_intermediate_size": 256, "num_experts": 8, "num_experts_per_tok": 2, "num_shared_experts": 1,
        "num_dense_layers": 2, "n_group": 1, "topk_group": 1, "route_norm": true, "route_scale": 2.826,
        "score_func": "sigmoid", "mup_enabled": true, "max_position_embeddings": 131072,
        "tie_word_embeddings": false,
    })
}

/// DeepSeek-V2: keys of 128 and 64 rotated values.
fn deepseek_v2(f: &Fact<'_>) -> Value {
    let (rope, value) = (64, f.inline("v_dim"));
    json!({
        "model_type": "deepseek_v2", "vocab_size": 256, "hidden_size": 5120, "intermediate_size": 12288,
        "num_hidden_layers": f.inline("layers"), "num_attention_heads": f.inline("heads"),
        "num_key_value_heads": f.inline("heads"), "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": f.inline("k_dim") - rope, "qk_rope_head_dim": rope, "v_head_dim": value,
        "first_k_dense_replace": 1, "moe_layer_freq": 1, "n_routed_experts": 8, "n_shared_experts": 2,
        "num_experts_per_tok": 2, "moe_intermediate_size": 1536, "n_group": 1, "topk_group": 1,
        "topk_method": "group_limited_greedy", "scoring_func": "softmax", "norm_topk_prob": false,
        "routed_scaling_factor": 16.0, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "max_position_embeddings": 163840, "tie_word_embeddings": false, "attention_bias": false,
    })
}

/// The tower of Gemma 3.
fn siglip(side: u32, patch: u32, heads: u32) -> Tower {
    let grid = Grid::Fixed { side, tokens: 256 };
    Tower { hidden: 1152, ffn: 4304, heads, layers: 27, patch, grid }
}

/// Ours for a figure, in its unit.
fn ours(f: &Fact<'_>) -> Result<f64, String> {
    const L: &str = "--runtime llama.cpp";
    let context = |f: &Fact<'_>| f.at("n_ctx");
    let mib = |bytes: Result<f64, String>| bytes.map(|b| b / MIB);
    let (kv, recurrent) = ("/bytes/kv", "/bytes/recurrent");
    match f.id() {
        "rs-01" => mib(f.ask(&format!("{L} --context {}", context(f)), recurrent)),
        "rs-02" => mib(f.ask(&format!("{L} --slots {}", f.at("slots")), recurrent)),
        "rs-05" => mib(f.ask(&format!("{L} --context {}", context(f)), recurrent)),
        "rs-09" | "rs-11" => {
            let flags = format!("{L} --slots {} --draft-depth {}", f.at("slots"), f.at("rs_seq"));
            mib(f.ask(&flags, recurrent))
        }
        "rs-13" => {
            let geometry = Geometry { slots: f.at("slots") as u32, ..Geometry::default_for(8192) };
            let mut options = Options::default();
            options.llama_cpp.checkpoints = f.at("ctx_checkpoints") as u32;
            let price = peers::price(Engine::LlamaCpp, &model("qwen3.5-27b"), &geometry, &options).unwrap();
            Ok(price.host_bytes("context checkpoints").unwrap() as f64 / GIB)
        }
        "kv-01" | "kv-03" | "kv-06" => mib(f.ask(&format!("{L} --context {}", context(f)), kv)),
        "kv-05" => mib(f.ask_of(&qwen3_next(f), &format!("{L} --context {}", context(f)), kv)),
        "kv-08" => {
            let mut model = model("qwen3.5-27b");
            let attention = model.states.iter().find(|s| s.attention().is_some()).copied().unwrap();
            model.extras.draft = vec![attention; f.at("draft_layers") as usize];
            let geometry =
                Geometry { context: context(f) as u32, draft_depth: 1, ..Geometry::default_for(8192) };
            let price = peers::price(Engine::LlamaCpp, &model, &geometry, &Options::default()).unwrap();
            assert_eq!(price.kv, price.kv_by_kind.full + price.kv_by_kind.draft);
            Ok(price.kv_by_kind.draft as f64 / MIB)
        }
        "kv-10" => {
            let flags = format!("{L} --context {} --slots {} --kv q4_0", context(f), f.at("slots"));
            Ok((f.ask(&flags, kv)? + f.ask(&flags, recurrent)?) / GIB)
        }
        "kv-11" => mib(f.ask(&format!("{L} --context {} --cell-padding 32", context(f)), kv)),
        "swa-01" | "swa-02" => {
            let kind = if f.id() == "swa-01" { "full" } else { "sliding" };
            let flags = format!("{L} --context {} --kv q8_0 --chunk {}", context(f), f.at("n_ubatch"));
            mib(f.ask(&flags, &format!("/bytes/kv_by_kind/{kind}")))
        }
        "swa-06" => {
            let flags = format!("{L} --context {} --slots {} --kv q8_0", context(f), f.at("slots"));
            mib(f.ask_of(&gemma4_12b(), &flags, "/bytes/kv_by_kind/full"))
        }
        "swa-07" => mib(f.ask_of(&gemma4_12b(), &format!("{L} --context {} --kv q8_0", context(f)), kv)),
        "swa-08" => {
            let flags = format!("{L} --context {}", context(f));
            mib(f.ask_of(&gemma4_e4b(f), &flags, "/bytes/kv_by_kind/full"))
        }
        // Our own rule: with a chunk of one token a window is all that is held.
        "swa-11" => Ok(f.ask(&format!("--context {} --chunk 1", context(f)), kv)? / GIB),
        "swa-12" => {
            let flags = "--runtime vllm --context 131072";
            let off = f.ask(&format!("{flags} --no-hybrid-kv"), "/pool_bytes_per_token")?;
            // With the manager the pool's tokens cost as much; what one request takes differs.
            assert_eq!(f.ask(flags, "/pool_bytes_per_token")?, off);
            let request = |flags: &str| f.ask(flags, kv);
            assert_eq!(request(&format!("{flags} --no-hybrid-kv"))?, 131072.0 * off);
            assert!(request(flags)? < 0.6 * request(&format!("{flags} --no-hybrid-kv"))?);
            Ok(off)
        }
        "swa-14" => {
            let flags = format!("{L} --context {} --chunk {}", context(f), f.at("n_ubatch"));
            mib(f.ask_of(&afmoe(f), &flags, "/bytes/kv_by_kind/sliding"))
        }
        "mla-01" => mib(f.ask(&format!("{L} --context {}", context(f)), "/bytes/kv_by_kind/mla")),
        "mla-04" => {
            let flags = format!("{L} --mla dense --context {} --kv-k q8_0 --kv-v f16", context(f));
            mib(f.ask_of(&deepseek_v2(f), &flags, kv))
        }
        "w-01" => f.ask("", "/model/parameters"),
        "w-03" => {
            let text = std::fs::read(config("gemma-4-31b-it-nvfp4")).unwrap();
            let mut published: Value = serde_json::from_slice(&text).unwrap();
            published.as_object_mut().unwrap().remove("quantization_config").expect("it is quantised");
            f.ask_of(&published, L, "/model/checkpoint_bytes")
        }
        // The rules that price most cheaply: parameters are the same.
        "w-05" | "w-07" => Ok(f.ask(L, "/model/parameters")? / 1e9),
        "w-08" | "w-11" => {
            let (name, format) = match f.id() {
                "w-08" => ("qwen3.5-27b", Format::Q4K),
                _ => ("nemotron-3.5-lightning-30b-a3b-nvfp4", Format::Q8_0),
            };
            let (rows, cols, _) = peers::token_embedding(&model(name)).unwrap();
            Ok(peers::tensor_bytes(format, rows, cols).unwrap() as f64 / MIB)
        }
        "cb-16" => {
            let chunk = f.at("prefill_step") as u32;
            Ok(peers::unreduced_logits(&model("gemma-4-31b-it-nvfp4"), chunk, 2) as f64 / 1e9)
        }
        "v-03" => {
            let side = f.0["geometry"]["image"][0].as_u64().unwrap() as u32;
            let tower = siglip(side, f.at("patch") as u32, f.at("heads") as u32);
            let cut = images::cut(&tower, side, side);
            assert_eq!((cut.patches, cut.tokens), (4096, 256));
            Ok(images::unfused_scores(&tower, cut.patches, 4) as f64 / GIB)
        }
        _ => Err("no way to make this figure".into()),
    }
}

#[test]
fn every_checked_figure_comes_out_to_its_own_rounding() {
    let facts: Vec<Value> = serde_json::from_str(include_str!("data/memory_facts.json")).unwrap();
    let checked = facts.iter().filter(|f| f["arithmetic_checked"] == true);
    let (mut wrong, mut covered) = (Vec::new(), 0);
    for fact in checked.clone() {
        let fact = Fact(fact);
        let theirs = fact.0["value"].as_f64().unwrap();
        match ours(&fact) {
            Ok(ours) if (ours - theirs).abs() <= fact.tolerance() + 1e-9 => covered += 1,
            Ok(ours) => wrong.push(format!("{}: {ours} where {theirs} was read", fact.id())),
            Err(why) => wrong.push(format!("{}: {why}", fact.id())),
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), checked.count(), wrong.join("\n"));
    assert_eq!(covered, 31, "as many as the file has checked");
    assert_eq!(covered, checked.count());
}

/// What the notes beside the figures say, and what the engines' logs say elsewhere.
#[test]
fn what_is_said_beside_the_figures_comes_out_too() {
    let facts: Vec<Value> = serde_json::from_str(include_str!("data/memory_facts.json")).unwrap();
    let fact = |id: &str| Fact(facts.iter().find(|f| f["id"] == id).unwrap());
    let sliding = |flags: &str| {
        let flags = format!("--runtime llama.cpp --context 8192 --kv q8_0 {flags}");
        fact("swa-07").ask_of(&gemma4_12b(), &flags, "/bytes/kv_by_kind/sliding").unwrap() / MIB
    };
    // Going from four unified slots to one frees 510 MiB; with a stream for each slot it would be 765.
    assert_eq!(sliding("--slots 4 --kv-unified") - sliding(""), 510.0);
    assert_eq!(sliding("--slots 4") - sliding(""), 765.0);
    assert_eq!(sliding("--swa-full"), 8192.0 * 40.0 * 2.0 * 64.0 * 34.0 / MIB);
    // Halving the context frees half the global part.
    let full = |context: u32| {
        let flags = format!("--runtime llama.cpp --kv q8_0 --context {context}");
        fact("swa-07").ask_of(&gemma4_12b(), &flags, "/bytes/kv_by_kind/full").unwrap() / MIB
    };
    assert_eq!(full(8192) - full(4096), 34.0);
    // Today's padding.
    let today = fact("kv-11").ask("--runtime llama.cpp --context 70000", "/bytes/kv").unwrap();
    assert_eq!(today / MIB, 6576.0);
    // Which layers slide is a table of the engine's: of Phi none does, whatever its configuration says.
    let price = |family: &str| {
        let mut gemma = model("gemma-3-270m");
        gemma.architecture = family.to_owned();
        let geometry = Geometry { context: 8192, ..Geometry::default_for(8192) };
        peers::price(Engine::LlamaCpp, &gemma, &geometry, &Options::default()).unwrap()
    };
    let (gemma, phi) = (price("gemma3"), price("phi3"));
    assert_eq!(gemma.kv_by_kind.full, 8192 * 3 * 1024);
    assert_eq!(gemma.kv_by_kind.sliding, 1024 * 15 * 1024);
    assert_eq!((phi.kv_by_kind.full, phi.kv_by_kind.sliding), (8192 * 18 * 1024, 0));
    assert!(phi.rules.iter().any(|rule| rule.contains("ignored")), "{:?}", phi.rules);
}
