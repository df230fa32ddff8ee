//! How a matrix lies in a file: the tensors that a packed one is stored in, and their bytes.

use super::Entry;
use super::gguf::Stored;
use super::role::{Named, Role};
use plimsoll_kernels::Format;
use plimsoll_models::Checkpoint;
use plimsoll_models::model::Part;
use plimsoll_models::zoo::fields::Fields;
use serde_json::Value;

/// What a packer stores beside the codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// One tensor each: plain floats, GGUF.
    Plain,
    /// Codes, scales and offsets in tensors of their own, as MLX names them.
    Mlx,
    /// Blocks and their scales, as gpt-oss names them.
    Blocked,
    /// NVIDIA modelopt and compressed-tensors: each linear layer has factors of its own, f32.
    Factors {
        /// Names of the factor of NVFP4's weights and of the factor of inputs.
        names: [&'static str; 2],
        /// Inputs are packed too, with a factor each.
        inputs: bool,
        /// FP8's factors are one for each row.
        by_row: bool,
    },
    /// Square blocks of FP8 with an f32 scale each, as DeepSeek publishes them.
    Blocks {
        /// Rows and values of a block.
        size: [u32; 2],
        /// The model's formats say which matrices are in blocks; else all linear layers are.
        by_format: bool,
    },
}

impl Layout {
    /// modelopt's, of packed inputs.
    pub(super) const MODELOPT: Layout =
        Layout::Factors { names: ["weight_scale_2", "input_scale"], inputs: true, by_row: false };

    /// What the configuration says.
    pub(super) fn of(checkpoint: &Checkpoint) -> Self {
        let fields = Fields::of(checkpoint).ok();
        let side = checkpoint.hf_quant_config();
        let block = fields.and_then(|f| f.any(&["quantization", "quantization_config"]));
        let Some(block) = block.or(side.map(|file| file.get("quantization").unwrap_or(file))) else {
            return Layout::Plain;
        };
        let text = |key: &str| block.get(key).and_then(Value::as_str);
        // All that a file of one packer states of inputs, wherever it does.
        let stated = |key: &str| {
            let groups = block.get("config_groups").and_then(Value::as_object);
            groups
                .and_then(|groups| groups.values().find_map(|group| group.get(key).filter(|v| !v.is_null())))
        };
        match (text("quant_method"), text("quant_algo")) {
            (Some("fp8"), _) => match block_size(block) {
                Some(size) => Layout::Blocks { size, by_format: false },
                // Scales of inputs are stored where they are not made as they come.
                None => Layout::Factors {
                    names: ["weight_scale_2", "input_scale"],
                    inputs: text("activation_scheme") == Some("static"),
                    by_row: false,
                },
            },
            (Some("compressed-tensors"), _) => {
                let strategy = stated("weights").and_then(|w| w.get("strategy")).and_then(Value::as_str);
                // Dynamic scales of inputs are made as they come, and not stored; NVFP4's factor is.
                let dynamic =
                    stated("input_activations").map(|v| v.get("dynamic") == Some(&Value::Bool(true)));
                Layout::Factors {
                    names: ["weight_global_scale", "input_global_scale"],
                    inputs: dynamic == Some(false),
                    by_row: strategy == Some("channel"),
                }
            }
            (Some("modelopt"), algo) | (None, algo @ Some(_)) => Layout::Factors {
                names: ["weight_scale_2", "input_scale"],
                inputs: !algo.is_some_and(|algo| algo.starts_with("W4A16")),
                by_row: algo == Some("FP8_PER_CHANNEL_PER_TOKEN"),
            },
            (Some("mxfp4"), _) => Layout::Blocked,
            _ => Layout::Mlx,
        }
    }
}

fn block_size(block: &Value) -> Option<[u32; 2]> {
    let sizes = block.get("weight_block_size")?.as_array()?;
    let size = |at: usize| u32::try_from(sizes.get(at)?.as_u64()?).ok().filter(|n| *n > 0);
    Some([size(0)?, size(1)?])
}

/// Whether values of a KV cache have stored scales: two numbers in each layer of attention.
pub(super) fn has_kv_scales(checkpoint: &Checkpoint) -> bool {
    let Ok(fields) = Fields::of(checkpoint) else { return false };
    fields.get("quantization_config").is_some_and(|q| {
        ["kv_cache_scheme", "kv_cache_quant_algo"].iter().any(|k| q.get(k).is_some_and(|v| !v.is_null()))
    })
}

/// A matrix to lay out: all rows of all experts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Laid<'a> {
    pub name: &'a str,
    pub part: Part,
    pub named: Named,
    pub rows: u64,
    pub cols: u64,
    /// Experts; 1 of a plain one.
    pub experts: u64,
    pub stored: Stored,
    /// How many there are of it.
    pub count: u64,
}

impl Laid<'_> {
    /// Linear layers that it stands for where packers keep them apart: each expert's, and gates and ups.
    fn linears(&self) -> u64 {
        let halves = if self.named.expert && self.named.role == Role::GateUp { 2 } else { 1 };
        self.experts.max(1).saturating_mul(halves)
    }

    fn entry(&self, name: String, role: Role, rows: u64, cols: u64, format: &str, bytes: u64) -> Entry {
        let (part, count) = (self.part, self.count);
        let bytes = bytes.saturating_mul(count);
        Entry { name, part, role, rows, cols, count, format: format.to_owned(), bytes, exact: true }
    }

    /// The tensors of codes, scales and offsets, or the one of whole rows.
    fn planes(&self, stored: Stored, layout: Layout, row: u64) -> Vec<Entry> {
        let Laid { name, rows, cols, .. } = *self;
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let names = match layout {
            Layout::Mlx => [name.to_owned(), format!("{module}.scales"), format!("{module}.biases")],
            Layout::Blocked => [format!("{module}_blocks"), format!("{module}_scales"), String::new()],
            _ => Default::default(),
        };
        let role = self.named.role;
        let planes = match stored {
            Stored::Format(format) if !names[0].is_empty() => format.planes(cols).map(|p| (format, p)),
            _ => None,
        };
        let Some((format, planes)) = planes else {
            let bytes = rows.saturating_mul(row);
            return vec![self.entry(name.to_owned(), role, rows, cols, &stored.name(), bytes)];
        };
        let groups = cols / format.block_len() as u64;
        let of = |(at, (bytes, name)): (usize, (u64, String))| {
            let bytes = rows.saturating_mul(bytes);
            match at {
                0 => self.entry(name, role, rows, cols, &stored.name(), bytes),
                _ => self.entry(name, Role::Scale, rows, groups, "scales", bytes),
            }
        };
        planes.into_iter().zip(names).enumerate().map(of).collect()
    }

    /// The tensors it is stored in. `None` when a row is no whole number of blocks.
    pub(super) fn entries(&self, layout: Layout) -> Option<Vec<Entry>> {
        let Laid { name, rows, cols, .. } = *self;
        let role = self.named.role;
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let beside = |part: &str| format!("{module}.{part}");
        let scale = |part: &str, rows: u64, cols: u64, format: &str, bytes: u64| {
            self.entry(beside(part), Role::Scale, rows, cols, format, bytes)
        };
        let row = self.stored.row_bytes(cols)?;
        let codes = |bytes: u64, format: &str| self.entry(name.to_owned(), role, rows, cols, format, bytes);
        let values = rows.saturating_mul(cols);
        let linears = self.linears();
        if let Layout::Blocks { size: [high, wide], by_format } = layout
            && match self.stored {
                Stored::Format(format) if by_format => !format.is_float(),
                _ => role.is_linear() && role != Role::DraftIn,
            }
        {
            let high = (rows / linears).div_ceil(high.into()).saturating_mul(linears);
            let wide = cols.div_ceil(wide.into());
            let scales =
                scale("weight_scale_inv", high, wide, "f32", high.saturating_mul(wide).saturating_mul(4));
            return Some(vec![codes(values, "f8_e4m3"), scales]);
        }
        let factors = |part: &str| scale(part, linears, 1, "f32", linears.saturating_mul(4));
        let (names, inputs, by_row) = match layout {
            Layout::Factors { names, inputs, by_row } => (names, inputs, by_row),
            _ => (["weight_scale_2", "input_scale"], false, false),
        };
        let mut entries = match self.stored {
            Stored::Format(Format::Nvfp4Scaled) => {
                let scales = scale("weight_scale", rows, cols / 16, "f8_e4m3", values / 16);
                vec![codes(values / 2, "nvfp4"), scales, factors(names[0])]
            }
            Stored::Format(Format::Fp8) if by_row => {
                // Whether these are f32 or the model's type, the configuration does not say.
                let scales = scale("weight_scale", rows, 1, "f32", rows.saturating_mul(4));
                vec![codes(values, "f8_e4m3"), Entry { exact: false, ..scales }]
            }
            Stored::Format(Format::Fp8) => vec![codes(values, "f8_e4m3"), factors("weight_scale")],
            stored => return Some(self.planes(stored, layout, row)),
        };
        if inputs {
            let fp8 = self.stored == Stored::Format(Format::Fp8);
            entries.push(factors(if fp8 { "input_scale" } else { names[1] }));
        }
        Some(entries)
    }
}
