//! DeepSeek-V2, -V3 and -R1, Kimi-K2, Mistral Small 4: multi-head latent attention and experts (DeepSeek-V2, section 2.1;
//! V3, section 2).

use super::dense::configured;
use super::{Experts, Ffn, LatentAttention, Layer, MLP, Mixer, Names, Spec, Stacks, build::build};
use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use crate::model::{Latent, Model};
use crate::zoo::Architecture;
use crate::zoo::beside::stated_drafts;
use crate::zoo::dense::{Defaults, Dense};
use crate::zoo::fields::Fields;
use crate::zoo::llama::SILU;

/// DeepSeek-V2 and -V3, Kimi-K2.
pub struct DeepSeek;

/// Mistral 4, also inside Mistral 3's wrapper: DeepSeek's layers without the vector that corrects the router.
pub struct Mistral4;

/// More experts than any model has.
pub(super) const MAX_EXPERTS: u32 = 4096;
/// Wider than any expert is.
pub(super) const MAX_EXPERT_WIDTH: u32 = 1 << 24;

const SHARED: [&str; 3] =
    ["mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj", "mlp.shared_experts.down_proj"];
/// Names of one expert's matrices.
pub(super) const PARTS: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

impl Architecture for DeepSeek {
    fn name(&self) -> &'static str {
        "deepseek"
    }

    fn claims(&self, checkpoint: &Checkpoint) -> bool {
        configured(checkpoint, &["deepseek_v2", "deepseek_v3", "kimi_k2"])
    }

    fn build(&self, checkpoint: &Checkpoint) -> Result<Model, ModelError> {
        let third = Fields::of(checkpoint)?.model_type() != Some("deepseek_v2");
        from_config(checkpoint, self.name(), third)
    }
}

impl Architecture for Mistral4 {
    fn name(&self) -> &'static str {
        "mistral4"
    }

    fn claims(&self, checkpoint: &Checkpoint) -> bool {
        configured(checkpoint, &["mistral4"])
    }

    fn build(&self, checkpoint: &Checkpoint) -> Result<Model, ModelError> {
        from_config(checkpoint, self.name(), false)
    }
}

/// The model of a configuration; `corrected`: whether routers have a vector that is added to scores for the choice.
fn from_config(
    checkpoint: &Checkpoint,
    architecture: &'static str,
    corrected: bool,
) -> Result<Model, ModelError> {
    let fields = Fields::of(checkpoint)?;
    fields.activation("hidden_act", &SILU)?;
    if fields.flag("attention_bias", false)? {
        return Err(ModelError::unsupported("attention_bias", "latent attention without biases is"));
    }
    // What each of these is worth by default differs from version to version, and it is worth gigabytes.
    for key in ["q_lora_rank", "n_routed_experts", "n_shared_experts", "first_k_dense_replace"] {
        fields.stated(key)?;
    }
    let defaults =
        Defaults { head_dim: Some(2), eps: Some(1e-6), context: Some(2048), ..Defaults::default() };
    let sizes = Dense::from_config(&fields, &defaults)?;
    let part = |key: &str| bounded(key, fields.size(key, None)?, 1 << 16);
    let latent = Latent {
        heads: bounded("num_attention_heads", sizes.shape.heads, 1 << 12)?,
        rank: part("kv_lora_rank")?,
        rope: part("qk_rope_head_dim")?,
        nope: part("qk_nope_head_dim")?,
        value: part("v_head_dim")?,
    };
    // The widest activation of a token.
    let widest = u64::from(latent.heads) * u64::from(latent.width().max(latent.nope + latent.value));
    if widest >= 1 << 26 {
        let expected = "heads and sizes of under 2^26 values a token";
        return Err(ModelError::field("num_attention_heads × kv_lora_rank", expected, widest.to_string()));
    }
    let query_rank = match fields.get("q_lora_rank") {
        None => None,
        Some(_) => Some(part("q_lora_rank")?),
    };
    let mixer = Mixer::Latent(LatentAttention { latent, query_rank });
    let (dense, experts) =
        (Ffn::Gated { width: sizes.ffn, names: MLP }, experts(checkpoint, &fields, sizes.hidden, corrected)?);
    let first = match fields.get("first_k_dense_replace") {
        Some(value) if value.as_u64() == Some(0) => 0,
        _ => fields.size("first_k_dense_replace", Some(0).filter(|_| experts.is_none()).or(Some(1)))?,
    };
    let every = fields.size("moe_layer_freq", Some(1))?;
    let layer = |index: u32| {
        let sparse = index >= first && index.is_multiple_of(every);
        let ffn = experts.clone().filter(|_| sparse).map_or_else(|| dense.clone(), Ffn::Experts);
        Layer { mixer: mixer.clone(), ffn: vec![ffn], sandwich: None }
    };
    const DRAFTS: &str = "num_nextn_predict_layers";
    let drafts = fields.get(DRAFTS).map(|value| stated_drafts(DRAFTS, value)).transpose()?.unwrap_or(0);
    let spec = Spec {
        architecture,
        why: "multi-head latent attention has no kernel",
        names: Names::LLAMA.found(checkpoint, fields.is_nested()),
        layers: (0..sizes.layers).map(layer).collect(),
        notes: vec![],
        drafts: (0..drafts).map(|n| layer(sizes.layers + n)).collect(),
        state_chunk: None,
        sizes,
    };
    build(checkpoint, &spec)
}

/// A size that is not beyond anything real.
pub(super) fn bounded(key: &str, value: u32, most: u32) -> Result<u32, ModelError> {
    if value <= most {
        return Ok(value);
    }
    Err(ModelError::field(key, format!("1 to {most}"), value.to_string()))
}

fn experts(
    checkpoint: &Checkpoint,
    fields: &Fields<'_>,
    hidden: u32,
    corrected: bool,
) -> Result<Option<Experts>, ModelError> {
    if fields.get("n_routed_experts").is_none() {
        return Ok(None);
    }
    let width = fields.size("moe_intermediate_size", None)?;
    let shared = match fields.get("n_shared_experts") {
        None => None,
        Some(value) if value.as_u64() == Some(0) => None,
        Some(_) => Some(bounded("n_shared_experts", fields.size("n_shared_experts", None)?, 64)?),
    };
    let count = bounded("n_routed_experts", fields.size("n_routed_experts", None)?, MAX_EXPERTS)?;
    Ok(Some(Experts {
        count,
        top: bounded("num_experts_per_tok", fields.size("num_experts_per_tok", None)?, count)?,
        width,
        router: "mlp.gate",
        router_bias: corrected.then_some("mlp.gate.e_score_correction_bias"),
        stacks: stacks(checkpoint, hidden, Stacks::Separate("mlp.experts", PARTS)),
        shared: shared.map(|n| (width.saturating_mul(n), SHARED)),
    }))
}

/// How a checkpoint stores its experts: one by one, with gates and ups apart as MLX does, or in stacks, whose shape says
/// whether they are of inputs by outputs; as `bare` where nothing says.
pub(super) fn stacks(checkpoint: &Checkpoint, hidden: u32, bare: Stacks) -> Stacks {
    let within = |part: &str| checkpoint.names().any(|name| name.contains(part));
    if within(".mlp.switch_mlp.") {
        return Stacks::Separate("mlp.switch_mlp", PARTS);
    }
    if within(".mlp.experts.0.") {
        return Stacks::Separate("mlp.experts", PARTS);
    }
    let Some(stack) = checkpoint.tensors().find(|tensor| tensor.name.ends_with(".mlp.experts.gate_up_proj"))
    else {
        return bare;
    };
    let is_input = |side: Option<&u64>| side == Some(&u64::from(hidden));
    let transposed = match (is_input(stack.shape.get(1)), is_input(stack.shape.last())) {
        (true, true) => matches!(bare, Stacks::Stacked { transposed: true, .. }),
        (first, _) => first,
    };
    Stacks::Stacked { names: ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"], transposed }
}
