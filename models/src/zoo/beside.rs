//! What stands in a checkpoint beside the text model: towers that read images, layers that draft tokens. A configuration
//! says how large they are; nothing here is run.
//!
//! Towers by the `model_type` of their own configuration; the names are those of the published checkpoints without the
//! prefixes that wrappers add.

use super::fields::{Fields, float, shown, size};
use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use crate::model::{Beside, Grid, Matrix, Model, Part, State, Tower, Vector};
use plimsoll_kernels::Format;
use serde_json::Value;

/// More layers than any tower has.
const MAX_LAYERS: u32 = 1024;
/// More patches than any tower merges along a side.
const MAX_MERGE: u32 = 64;
/// More layers that draft than any model has.
const MAX_DRAFTS: u32 = 64;

/// How many layers that draft a field states.
///
/// # Errors
/// When it is no count, or more than any model has.
pub(super) fn stated_drafts(key: &str, value: &Value) -> Result<u32, ModelError> {
    let count = value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|&n| n <= MAX_DRAFTS);
    count.ok_or_else(|| ModelError::field(key, format!("0 to {MAX_DRAFTS}"), shown(value)))
}

/// Fills in what the configuration says of towers and of layers that draft.
///
/// # Errors
/// When a size of it is no size.
pub(super) fn fill(checkpoint: &Checkpoint, model: &mut Model) -> Result<(), ModelError> {
    if checkpoint.metadata().is_some() || checkpoint.config().is_none() {
        return Ok(());
    }
    let fields = Fields::of(checkpoint)?;
    let format = super::weights::configured_dtype(checkpoint)?;
    let vision = Fields::aside(checkpoint)?.outer("vision_config");
    if let Some(vision) = vision.filter(|v| v.is_object()) {
        let mut parts = Parts { vision, format, tensors: Vec::new() };
        model.extras.vision = parts.tower(checkpoint, &fields, model.hidden)?;
        // A tower that is not known here is told with what else is not priced.
        model.extras.vision.as_ref().inspect(|_| fields.knows(&["vision_config"]));
        model.extras.tensors.append(&mut parts.tensors);
    }
    let qwen = model.architecture.starts_with("qwen3_next") || model.architecture.starts_with("qwen3_5");
    if model.extras.draft.is_empty() && qwen {
        qwen_drafts(checkpoint, &fields, format, model)?;
    }
    Ok(())
}

/// What the checkpoint has and the price of the text model leaves out, whichever family it is of. `left` are the tensors
/// that nothing reads.
pub(super) fn left_out(checkpoint: &Checkpoint, model: &Model, left: &[&str]) -> Vec<String> {
    let has = |part: Part| {
        model.extras.tensors.iter().any(|beside| beside.part == part)
            || left.iter().any(|name| Part::beside(name) == part)
    };
    let mut notes = Vec::new();
    if has(Part::Draft) || super::account::drafts(checkpoint) > 0 {
        notes.push(
            "the layers that predict further tokens are left out unless drafts are asked for".to_owned(),
        );
    }
    if model.extras.vision.is_some() {
        notes.push("the tower that reads images is left out unless images are asked for".to_owned());
    } else if has(Part::Vision) {
        notes.push("the tower that reads images is left out: nothing here knows it".to_owned());
    }
    let others: Vec<&str> = left.iter().copied().filter(|name| Part::beside(name) == Part::Other).collect();
    if let Some(first) = others.first() {
        let (first, count) = (crate::error::quoted(first), others.len());
        notes.push(format!("tensors that nothing here reads are left out: {first} ({count} in all)"));
    }
    notes
}

struct Parts<'v> {
    vision: &'v Value,
    format: Format,
    tensors: Vec<Beside>,
}

impl Parts<'_> {
    fn size(&self, key: &str, default: Option<u32>) -> Result<u32, ModelError> {
        let named = format!("vision_config.{key}");
        match (self.vision.get(key).filter(|v| !v.is_null()), default) {
            (Some(value), _) => {
                let size = size(&named, value)?;
                // Far beyond any tower, and far below what a product of two overflows.
                if size >= 1 << 24 {
                    return Err(ModelError::field(named, "under 2^24", size.to_string()));
                }
                Ok(size)
            }
            (None, Some(default)) => Ok(default),
            (None, None) => Err(ModelError::field(named, "a size", "nothing")),
        }
    }

    fn layers(&self, key: &str, default: Option<u32>) -> Result<u32, ModelError> {
        let layers = self.size(key, default)?;
        if layers <= MAX_LAYERS {
            return Ok(layers);
        }
        Err(ModelError::field(
            format!("vision_config.{key}"),
            format!("1 to {MAX_LAYERS}"),
            layers.to_string(),
        ))
    }

    /// `count` tensors `[rows, cols]`.
    fn add(&mut self, name: &str, count: u32, rows: u64, cols: u64) {
        let (name, format) = (name.to_owned(), self.format);
        self.tensors.push(Beside { name, part: Part::Vision, count: count.into(), rows, cols, format });
    }

    /// `count` matrices `[rows, cols]` and as many biases.
    fn biased(&mut self, name: &str, count: u32, rows: u64, cols: u64) {
        self.add(&format!("{name}.weight"), count, rows, cols);
        self.add(&format!("{name}.bias"), count, 1, rows);
    }

    /// `count` norms with a weight and a bias.
    fn layer_norm(&mut self, name: &str, count: u32, width: u64) {
        self.add(&format!("{name}.weight"), count, 1, width);
        self.add(&format!("{name}.bias"), count, 1, width);
    }

    fn tower(
        &mut self,
        checkpoint: &Checkpoint,
        fields: &Fields<'_>,
        text: u32,
    ) -> Result<Option<Tower>, ModelError> {
        let stated = self.vision.get("model_type").and_then(Value::as_str).unwrap_or_default().to_owned();
        let outer = fields.outer("model_type").and_then(Value::as_str).unwrap_or_default();
        let text = u64::from(text);
        match (stated.as_str(), outer) {
            ("siglip_vision_model", _) | ("", "gemma3") => self.siglip(fields, text).map(Some),
            ("gemma4_vision", _) => self.gemma4(checkpoint, fields, text).map(Some),
            (
                "qwen3_vl"
                | "qwen3_5"
                | "qwen3_vl_moe"
                | "qwen3_vl_moe_vision"
                | "qwen3_vl_vision"
                | "qwen3_5_moe"
                | "qwen3_5_vision"
                | "qwen3_5_moe_vision",
                _,
            )
            | ("", "qwen3_vl" | "qwen3_5" | "qwen3_vl_moe" | "qwen3_5_moe") => {
                self.qwen(pixel_bounds(checkpoint)?).map(Some)
            }
            ("pixtral", _) => self.pixtral(fields, text).map(Some),
            ("llama4_vision_model", _) | ("", "llama4") => self.llama4(text).map(Some),
            // Another tower: its bytes are in no sum, and the model says that there is one.
            _ => Ok(None),
        }
    }

    /// SigLIP and Gemma 3's projector.
    fn siglip(&mut self, fields: &Fields<'_>, text: u64) -> Result<Tower, ModelError> {
        let (hidden, ffn) =
            (self.size("hidden_size", Some(1152))?, self.size("intermediate_size", Some(4304))?);
        let (layers, patch) =
            (self.layers("num_hidden_layers", Some(27))?, self.size("patch_size", Some(14))?);
        let side = self.size("image_size", Some(896))?;
        let (h, i, p) = (u64::from(hidden), u64::from(ffn), u64::from(patch));
        self.biased("embeddings.patch_embedding", 1, h, 3 * p * p);
        self.add("embeddings.position_embedding.weight", 1, u64::from(side / patch).pow(2), h);
        for part in ["q_proj", "k_proj", "v_proj", "out_proj"] {
            self.biased(&format!("encoder.layers.*.self_attn.{part}"), layers, h, h);
        }
        self.biased("encoder.layers.*.mlp.fc1", layers, i, h);
        self.biased("encoder.layers.*.mlp.fc2", layers, h, i);
        self.layer_norm("encoder.layers.*.layer_norm1", layers, h);
        self.layer_norm("encoder.layers.*.layer_norm2", layers, h);
        self.layer_norm("post_layernorm", 1, h);
        self.add("multi_modal_projector.mm_soft_emb_norm.weight", 1, 1, h);
        self.add("multi_modal_projector.mm_input_projection_weight", 1, h, text);
        let tokens = match fields.outer("mm_tokens_per_image") {
            Some(value) => size("mm_tokens_per_image", value)?,
            None => 256,
        };
        let heads = self.size("num_attention_heads", Some(16))?;
        Ok(Tower { hidden, ffn, heads, layers, patch, grid: Grid::Fixed { side, tokens } })
    }

    /// Gemma 4: rotated heads with norms, gated MLPs, positions by row and by column.
    fn gemma4(
        &mut self,
        checkpoint: &Checkpoint,
        fields: &Fields<'_>,
        text: u64,
    ) -> Result<Tower, ModelError> {
        let (hidden, ffn) = (self.size("hidden_size", None)?, self.size("intermediate_size", None)?);
        let (layers, patch) = (self.layers("num_hidden_layers", None)?, self.size("patch_size", Some(16))?);
        let heads = self.size("num_attention_heads", None)?;
        let head_dim = self.size("head_dim", Some((hidden / heads).max(1)))?;
        let positions = self.size("position_embedding_size", Some(10_240))?;
        let (h, i, p, d) = (u64::from(hidden), u64::from(ffn), u64::from(patch), u64::from(head_dim));
        let wide = u64::from(heads) * d;
        self.add("patch_embedder.input_proj.weight", 1, h, 3 * p * p);
        self.add("patch_embedder.position_embedding_table", 1, 2 * u64::from(positions), h);
        for part in ["q_proj", "k_proj", "v_proj"] {
            self.add(&format!("encoder.layers.*.self_attn.{part}.weight"), layers, wide, h);
        }
        self.add("encoder.layers.*.self_attn.o_proj.weight", layers, h, wide);
        self.add("encoder.layers.*.self_attn.q_norm.weight", layers, 1, d);
        self.add("encoder.layers.*.self_attn.k_norm.weight", layers, 1, d);
        for part in ["gate_proj", "up_proj"] {
            self.add(&format!("encoder.layers.*.mlp.{part}.weight"), layers, i, h);
        }
        self.add("encoder.layers.*.mlp.down_proj.weight", layers, h, i);
        for norm in [
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
        ] {
            self.add(&format!("encoder.layers.*.{norm}.weight"), layers, 1, h);
        }
        if self.vision.get("standardize").and_then(Value::as_bool).unwrap_or(false) {
            self.add("std_bias", 1, 1, h);
            self.add("std_scale", 1, 1, h);
        }
        self.add("embed_vision.embedding_projection.weight", 1, text, h);
        let merge = self.size("pooling_kernel_size", Some(3))?;
        // What the processor is told goes before what the model was made with.
        let told = checkpoint.preprocessor_config().and_then(|file| file.get("max_soft_tokens"));
        let stated = fields.outer("vision_soft_tokens_per_image");
        let tokens = match (told.filter(|v| !v.is_null()), stated) {
            (Some(value), _) => size("preprocessor_config.json's max_soft_tokens", value)?,
            (None, Some(value)) => size("vision_soft_tokens_per_image", value)?,
            (None, None) => self.size("default_output_length", Some(280))?,
        };
        let grid = Grid::Filled { merge, tokens };
        Ok(Tower { hidden, ffn, heads, layers, patch, grid })
    }

    /// The tower of Qwen3-VL and Qwen3.5.
    fn qwen(&mut self, [min_pixels, max_pixels]: [u64; 2]) -> Result<Tower, ModelError> {
        let (hidden, ffn) = (self.size("hidden_size", None)?, self.size("intermediate_size", None)?);
        let (layers, patch) = (self.layers("depth", None)?, self.size("patch_size", None)?);
        let (merge, frames) =
            (self.size("spatial_merge_size", Some(2))?, self.size("temporal_patch_size", Some(2))?);
        let (channels, positions) =
            (self.size("in_channels", Some(3))?, self.size("num_position_embeddings", Some(2304))?);
        let out = u64::from(self.size("out_hidden_size", None)?);
        if merge > 64 || frames > 64 || channels > 64 || patch > 1024 {
            return Err(ModelError::field(
                "vision_config",
                "patches and merges of a tower",
                format!("{merge}, {patch}"),
            ));
        }
        let (h, i, p) = (u64::from(hidden), u64::from(ffn), u64::from(patch));
        let merged = h * u64::from(merge).pow(2);
        self.biased("patch_embed.proj", 1, h, u64::from(channels) * u64::from(frames) * p * p);
        self.add("pos_embed.weight", 1, positions.into(), h);
        self.biased("blocks.*.attn.qkv", layers, 3 * h, h);
        self.biased("blocks.*.attn.proj", layers, h, h);
        self.biased("blocks.*.mlp.linear_fc1", layers, i, h);
        self.biased("blocks.*.mlp.linear_fc2", layers, h, i);
        self.layer_norm("blocks.*.norm1", layers, h);
        self.layer_norm("blocks.*.norm2", layers, h);
        self.layer_norm("merger.norm", 1, h);
        let deep = self.vision.get("deepstack_visual_indexes").and_then(Value::as_array).map_or(0, Vec::len);
        let deep = u32::try_from(deep).unwrap_or(u32::MAX);
        if deep > layers {
            let expected = format!("at most the {layers} layers of the tower");
            return Err(ModelError::field(
                "vision_config.deepstack_visual_indexes",
                expected,
                deep.to_string(),
            ));
        }
        for (name, count) in [("merger", 1), ("deepstack_merger_list.*", deep)] {
            if count > 0 {
                self.biased(&format!("{name}.linear_fc1"), count, merged, merged);
                self.biased(&format!("{name}.linear_fc2"), count, out, merged);
            }
        }
        if deep > 0 {
            self.layer_norm("deepstack_merger_list.*.norm", deep, merged);
        }
        let heads = self.size("num_heads", Some(16))?;
        let grid = Grid::Native { merge, min_pixels, max_pixels };
        Ok(Tower { hidden, ffn, heads, layers, patch, grid })
    }

    /// Pixtral and Mistral 3's projector.
    fn pixtral(&mut self, fields: &Fields<'_>, text: u64) -> Result<Tower, ModelError> {
        let (hidden, ffn) =
            (self.size("hidden_size", Some(1024))?, self.size("intermediate_size", Some(4096))?);
        let (layers, patch) =
            (self.layers("num_hidden_layers", Some(24))?, self.size("patch_size", Some(16))?);
        let side = self.size("image_size", Some(1024))?;
        let merge = match fields.outer("spatial_merge_size") {
            Some(value) => size("spatial_merge_size", value)?,
            None => 2,
        };
        if merge > MAX_MERGE {
            let expected = format!("1 to {MAX_MERGE}");
            return Err(ModelError::field("spatial_merge_size", expected, merge.to_string()));
        }
        let (h, i, p, m) = (u64::from(hidden), u64::from(ffn), u64::from(patch), u64::from(merge));
        self.add("patch_conv.weight", 1, h, 3 * p * p);
        self.add("ln_pre.weight", 1, 1, h);
        for part in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            self.add(&format!("transformer.layers.*.attention.{part}.weight"), layers, h, h);
        }
        for part in ["gate_proj", "up_proj"] {
            self.add(&format!("transformer.layers.*.feed_forward.{part}.weight"), layers, i, h);
        }
        self.add("transformer.layers.*.feed_forward.down_proj.weight", layers, h, i);
        self.add("transformer.layers.*.attention_norm.weight", layers, 1, h);
        self.add("transformer.layers.*.ffn_norm.weight", layers, 1, h);
        self.add("multi_modal_projector.norm.weight", 1, 1, h);
        self.add("multi_modal_projector.patch_merger.merging_layer.weight", 1, h, m * m * h);
        self.add("multi_modal_projector.linear_1.weight", 1, text, h);
        self.add("multi_modal_projector.linear_2.weight", 1, text, text);
        let heads = self.size("num_attention_heads", Some(16))?;
        let grid = Grid::Native { merge, min_pixels: (p * m).pow(2), max_pixels: u64::from(side).pow(2) };
        Ok(Tower { hidden, ffn, heads, layers, patch, grid })
    }

    /// Llama 4's tower and adapter.
    fn llama4(&mut self, text: u64) -> Result<Tower, ModelError> {
        let (hidden, ffn) =
            (self.size("hidden_size", Some(768))?, self.size("intermediate_size", Some(5632))?);
        let (layers, patch) =
            (self.layers("num_hidden_layers", Some(34))?, self.size("patch_size", Some(14))?);
        let side = self.size("image_size", Some(448))?;
        let into = u64::from(self.size("projector_input_dim", Some(4096))?);
        let out = u64::from(self.size("projector_output_dim", Some(4096))?);
        let last = u64::from(self.size("vision_output_dim", Some(7680))?);
        let (h, i, p) = (u64::from(hidden), u64::from(ffn), u64::from(patch));
        self.add("patch_embedding.linear.weight", 1, h, 3 * p * p);
        self.add("class_embedding", 1, 1, h);
        let patches = u64::from(side / patch).pow(2);
        self.add("positional_embedding_vlm", 1, patches + 1, h);
        self.layer_norm("layernorm_pre", 1, h);
        self.layer_norm("layernorm_post", 1, h);
        for part in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            self.biased(&format!("model.layers.*.self_attn.{part}"), layers, h, h);
        }
        self.biased("model.layers.*.mlp.fc1", layers, i, h);
        self.biased("model.layers.*.mlp.fc2", layers, h, i);
        self.layer_norm("model.layers.*.input_layernorm", layers, h);
        self.layer_norm("model.layers.*.post_attention_layernorm", layers, h);
        self.add("vision_adapter.mlp.fc1.weight", 1, into, i);
        self.add("vision_adapter.mlp.fc2.weight", 1, out, into);
        self.add("multi_modal_projector.linear_1.weight", 1, text, last);
        let ratio =
            self.vision.get("pixel_shuffle_ratio").map(|v| float("pixel_shuffle_ratio", v)).transpose()?;
        let ratio = ratio.unwrap_or(0.5);
        if !(0.01..=1.0).contains(&ratio) {
            return Err(ModelError::field("pixel_shuffle_ratio", "0.01 to 1", ratio.to_string()));
        }
        let tokens = (patches as f64 * ratio * ratio) as u32;
        let heads = self.size("num_attention_heads", Some(16))?;
        Ok(Tower { hidden, ffn, heads, layers, patch, grid: Grid::Fixed { side, tokens } })
    }
}

/// The fewest and the most pixels that an image of Qwen's is scaled to: preprocessor_config.json's, under either of two
/// spellings, or those of the published ones, 65,536 to 16,777,216.
fn pixel_bounds(checkpoint: &Checkpoint) -> Result<[u64; 2], ModelError> {
    let mut bounds = [1 << 16, 1 << 24];
    let Some(file) = checkpoint.preprocessor_config() else { return Ok(bounds) };
    for (bound, (pixels, edge)) in
        bounds.iter_mut().zip([("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge")])
    {
        let size = file.get("size").and_then(|size| size.get(edge)).filter(|v| !v.is_null());
        let Some(value) = file.get(pixels).filter(|v| !v.is_null()).or(size) else { continue };
        *bound = value.as_u64().filter(|n| (1..=1 << 40).contains(n)).ok_or_else(|| {
            ModelError::field(format!("preprocessor_config.json's {pixels}"), "1 to 2^40", shown(value))
        })?;
    }
    let [min, max] = bounds;
    if min > max {
        let (key, expected) = ("preprocessor_config.json's min_pixels", format!("at most {max}"));
        return Err(ModelError::field(key, expected, min.to_string()));
    }
    Ok(bounds)
}

/// Tables of weights as parts of layers that draft.
pub(super) fn drafted(matrices: &[Matrix], vectors: &[Vector]) -> Vec<Beside> {
    let beside = |name: &str, rows: u64, cols: u64, format| Beside {
        name: name.to_owned(),
        part: Part::Draft,
        count: 1,
        rows,
        cols,
        format,
    };
    let matrices = matrices.iter().map(|m| beside(m.source.name(), m.rows.into(), m.cols.into(), m.format));
    matrices.chain(vectors.iter().map(|v| beside(&v.tensor, 1, v.len.into(), v.format))).collect()
}

/// The layers of Qwen3-Next and Qwen3.5 that draft: a projection, three norms, and a layer of full attention like the
/// model's own; they share the embedding and the head.
///
/// # Errors
/// When the configuration states more than any model has, or a layer that the model has none like.
fn qwen_drafts(
    checkpoint: &Checkpoint,
    fields: &Fields<'_>,
    format: Format,
    model: &mut Model,
) -> Result<(), ModelError> {
    let mut stated = None;
    for key in ["num_nextn_predict_layers", "mtp_num_hidden_layers"] {
        stated = fields.get(key).map(|value| stated_drafts(key, value)).transpose()?.or(stated);
    }
    // Qwen3-Next's configurations do not say that there is one.
    let there = || checkpoint.names().any(|name| name.starts_with("mtp.layers.0."));
    let count = stated.unwrap_or_else(|| u32::from(there()));
    if count == 0 {
        return Ok(());
    }
    let full = model.states.iter().find(|s| matches!(s, State::KvFull { .. })).copied();
    let state = full.ok_or_else(|| {
        let what = "layers that draft beside a model without full attention";
        ModelError::unsupported(what, "those that are like a layer of the model are")
    })?;
    // Whatever the last layer of full attention has, the drafting layer has, and a projection and norms beside.
    let layer = model.states.iter().rposition(|s| matches!(s, State::KvFull { .. })).unwrap_or(0);
    let of_layer = |name: &str| name.contains(&format!(".layers.{layer}."));
    let mut tensors = Vec::new();
    let mut add = |name: &str, rows: u64, cols: u64, format: Format| {
        let name = name.replace(&format!(".layers.{layer}."), ".mtp.layers.*.");
        tensors.push(Beside { name, part: Part::Draft, count: count.into(), rows, cols, format });
    };
    for matrix in model.matrices.iter().filter(|m| of_layer(m.source.name())) {
        add(matrix.source.name(), matrix.rows.into(), matrix.cols.into(), matrix.format);
    }
    for vector in model.vectors.iter().filter(|v| of_layer(&v.tensor)) {
        add(&vector.tensor, 1, vector.len.into(), vector.format);
    }
    let hidden = u64::from(model.hidden);
    for (name, rows, cols) in [
        ("mtp.fc.weight", hidden, 2 * hidden),
        ("mtp.pre_fc_norm_hidden.weight", 1, hidden),
        ("mtp.pre_fc_norm_embedding.weight", 1, hidden),
        ("mtp.norm.weight", 1, hidden),
    ] {
        tensors.push(Beside { name: name.into(), part: Part::Draft, count: 1, rows, cols, format });
    }
    model.extras.tensors.append(&mut tensors);
    model.extras.draft = vec![state; count as usize];
    Ok(())
}
