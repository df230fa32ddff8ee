//! The tensors of a checkpoint, as they are or as its configuration implies them.

use super::gguf::Stored;
use super::layout::{Laid, Layout, has_kv_scales};
use super::role::{Named, Role, named};
use super::{Entry, Parts};
use foldhash::fast::RandomState;
use plimsoll_kernels::Format;
use plimsoll_models::Model;
use plimsoll_models::checkpoint::{Checkpoint, Source};
use plimsoll_models::model::{Matrix, Part, Vector};
use std::collections::{HashMap, HashSet};

/// The tensors of a checkpoint: its own where it has any; of a bare configuration those that the model would read, and
/// those that the family knows to stand beside them, in the layout in which such checkpoints are published.
///
/// Bytes are those of the files, also where the device holds another form: FP8 in square blocks has a scale for each
/// block, NVFP4 and FP8 have factors of each linear layer and of its inputs.
pub fn inventory(checkpoint: &Checkpoint, model: &Model) -> Vec<Entry> {
    if checkpoint.source() == Source::Config { implied(checkpoint, model) } else { stored(checkpoint, model) }
}

/// The bytes of [`inventory`], part by part.
pub fn bytes_by_part(checkpoint: &Checkpoint, model: &Model) -> Parts {
    inventory(checkpoint, model).iter().fold(Parts::default(), Parts::with)
}

/// The model with the bytes of its checkpoint's tensors as they are stored: what engines that load files as they are take.
/// A model in other weights keeps what it was counted with.
#[must_use]
pub fn counted(checkpoint: &Checkpoint, mut model: Model) -> Model {
    if model.extras.recast.is_none() {
        model.extras.stored = Some(bytes_by_part(checkpoint, &model).by_part());
    }
    model
}

/// What is to be told of bytes that an index states where those of the tensors are others. Published indices are sometimes
/// wrong; tensors whose type is not known for certain may make up the difference.
pub fn stated_note(checkpoint: &Checkpoint, model: &Model) -> Option<String> {
    let stated = checkpoint.stated_bytes().filter(|_| model.extras.recast.is_none())?;
    let (mut total, mut unsure) = (0u64, 0u64);
    for entry in inventory(checkpoint, model) {
        total = total.saturating_add(entry.bytes);
        unsure = unsure.saturating_add(if entry.exact { 0 } else { entry.bytes });
    }
    let (said, here) = (crate::grouped(stated), crate::grouped(total));
    (stated.abs_diff(total) > unsure).then(|| {
        format!("the index states {said} bytes of tensors, and those that are priced have {here} as stored")
    })
}

fn stored(checkpoint: &Checkpoint, model: &Model) -> Vec<Entry> {
    let matrices = model.matrices.iter().flat_map(|m| m.source.tensors());
    let vectors: HashMap<&str, Role> =
        model.vectors.iter().flat_map(|v| v.tensors().map(|name| (name, role_of(v)))).collect();
    let read: HashSet<&str> = matrices.chain(vectors.keys().copied()).collect();
    let gguf = checkpoint.source() == Source::Gguf;
    // Scales, of square blocks and of inputs, belong to the matrix beside them; GGUF's divisors of rotations to the text.
    let of_text = |name: &str| {
        let beside =
            |module: &str| read.contains(module) || read.contains(format!("{module}.weight").as_str());
        read.contains(name)
            || name.strip_suffix("_scale_inv").is_some_and(|of| read.contains(of))
            || match named(name).role {
                Role::Scale => name.rsplit_once('.').is_some_and(|(module, _)| beside(module)),
                Role::Rotation => gguf,
                _ => false,
            }
    };
    let entry = |tensor: &plimsoll_models::checkpoint::TensorInfo| {
        let name = tensor.name.as_str();
        let cols = tensor.shape.last().copied().unwrap_or(1);
        let leading = tensor.shape.len().saturating_sub(1);
        Entry {
            name: name.to_owned(),
            part: if of_text(name) { Part::Text } else { Part::beside(name) },
            role: vectors.get(name).copied().unwrap_or_else(|| named(name).role),
            rows: tensor.shape.iter().take(leading).product(),
            cols,
            count: 1,
            format: tensor.dtype.to_string(),
            bytes: tensor.bytes,
            exact: true,
        }
    };
    checkpoint.tensors().map(entry).collect()
}

fn implied(checkpoint: &Checkpoint, model: &Model) -> Vec<Entry> {
    let layout = match Layout::of(checkpoint) {
        Layout::Blocks { size, .. } => {
            Layout::Blocks { size, by_format: model.matrices.iter().any(|m| !m.format.is_float()) }
        }
        other => other,
    };
    let mut entries = Vec::new();
    for group in groups(model) {
        let laid = group.laid(Stored::Format(group.format));
        entries.extend(laid.entries(layout).unwrap_or_else(|| vec![unknown(&laid)]));
    }
    entries.extend(model.vectors.iter().map(|vector| of_vector(model, vector)));
    let attention = model.states.iter().filter(|s| s.attention().is_some()).count() as u64;
    if attention > 0 && has_kv_scales(checkpoint) {
        entries.push(Entry {
            name: "k_scale and v_scale of each layer of attention".to_owned(),
            part: Part::Text,
            role: Role::Scale,
            rows: 1,
            cols: 1,
            count: 2 * attention,
            format: "f32".to_owned(),
            bytes: 8 * attention,
            // They may be there in layers that read another's keys, or be in the model's type.
            exact: false,
        });
    }
    for beside in &model.extras.tensors {
        let mut named = named(&beside.name);
        named.expert = false;
        // Scales of packed weights follow from their formats: what is listed is a weight.
        if named.role == Role::Scale {
            named.role = Role::Other;
        }
        let (format, exact) = published(&model.architecture, named.role, &beside.name, beside.format);
        let laid = Laid {
            name: &beside.name,
            part: beside.part,
            named,
            rows: beside.rows,
            cols: beside.cols,
            experts: 1,
            stored: Stored::Format(format),
            count: beside.count,
        };
        // What stays wide beside packed weights says so by its format.
        let plain = beside.part == Part::Vision
            || (beside.format.is_float() && !matches!(layout, Layout::Blocks { by_format: false, .. }));
        let layout = if plain { Layout::Plain } else { layout };
        // Packers often leave layers that draft as they were, and configurations do not always say so.
        let exact = exact && !(matches!(layout, Layout::Factors { .. }) && beside.part == Part::Draft);
        let tensors = laid.entries(layout).unwrap_or_else(|| vec![unknown(&laid)]);
        entries.extend(tensors.into_iter().map(|entry| Entry { exact: entry.exact && exact, ..entry }));
    }
    entries
}

/// A tensor whose rows are no whole blocks of its format: sized by its share of one, and not exact.
fn unknown(laid: &Laid<'_>) -> Entry {
    let format = match laid.stored {
        Stored::Format(format) => format,
        Stored::Sized(..) => Format::BF16,
    };
    let blocks = laid.cols.div_ceil(format.block_len() as u64);
    let row = blocks.saturating_mul(format.block_bytes() as u64);
    Entry {
        name: laid.name.to_owned(),
        part: laid.part,
        role: laid.named.role,
        rows: laid.rows,
        cols: laid.cols,
        count: laid.count,
        format: format.to_string(),
        bytes: row.saturating_mul(laid.rows).saturating_mul(laid.count),
        exact: false,
    }
}

/// The vectors of a bare configuration, in the type they are published in where that is known.
fn of_vector(model: &Model, vector: &Vector) -> Entry {
    let role = role_of(vector);
    let (format, exact) = published(&model.architecture, role, &vector.tensor, vector.format);
    let len = u64::from(vector.len);
    Entry {
        name: vector.tensor.clone(),
        part: Part::Text,
        role,
        rows: 1,
        cols: len,
        count: 1,
        format: format.to_string(),
        bytes: format.row_bytes(len).unwrap_or(0),
        exact,
    }
}

/// What a vector is for. Factors that the model multiplies by are weights, whatever they are called.
pub(super) fn role_of(vector: &Vector) -> Role {
    match named(&vector.tensor).role {
        Role::Scale => Role::Other,
        role => role,
    }
}

/// The type of a vector in published files of a family, and whether that is known: parameters of recurrences and
/// biases of routers are often f32 beside bf16.
fn published(architecture: &str, role: Role, name: &str, assumed: Format) -> (Format, bool) {
    let begins = |names: &[&str]| names.iter().any(|n| architecture.starts_with(n));
    match role {
        // DeepSeek-V3: 41,555,600 f32 values of its census are scales of blocks and these. LFM2-8B-A1B: 704 of them.
        Role::RouterBias if begins(&["deepseek", "kimi", "lfm2", "afmoe"]) => (Format::F32, true),
        Role::RouterBias | Role::Recurrence => (assumed, assumed == Format::F32),
        Role::Norm if name.contains("linear_attn.norm") => (assumed, assumed == Format::F32),
        _ => (assumed, true),
    }
}

/// Matrices of one tensor: parts of it are matrices of their own where a step reads them apart.
pub(super) struct Group<'a> {
    /// The tensor, or the first of a stack's.
    pub name: &'a str,
    /// What its name says; of gates and ups that are stored apart and read as one, both.
    pub named: Named,
    /// Which of the model's matrices.
    pub matrices: Vec<usize>,
    pub rows: u64,
    pub cols: u32,
    pub experts: u32,
    pub format: Format,
}

impl Group<'_> {
    pub(super) fn laid(&self, stored: Stored) -> Laid<'_> {
        Laid {
            name: self.name,
            part: Part::Text,
            named: self.named,
            rows: self.rows,
            cols: self.cols.into(),
            experts: self.experts.into(),
            stored,
            count: 1,
        }
    }
}

fn named_of(matrix: &Matrix) -> Named {
    let first = named(matrix.source.name());
    let second = matrix.source.pieces.get(1).and_then(|piece| piece.planes.first());
    match second.map(|name| named(name).role) {
        Some(Role::Up) if first.role == Role::Gate => Named { role: Role::GateUp, ..first },
        _ => first,
    }
}

/// The model's matrices by their tensors, in the model's order.
pub(super) fn groups(model: &Model) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut places: HashMap<&str, usize, RandomState> =
        HashMap::with_capacity_and_hasher(model.matrices.len(), RandomState::default());
    for (i, matrix) in model.matrices.iter().enumerate() {
        let name = matrix.source.name();
        match places.get(name).and_then(|&at| groups.get_mut(at)) {
            Some(group) if group.cols == matrix.cols && group.format == matrix.format => {
                group.matrices.push(i);
                group.rows = group.rows.saturating_add(matrix.rows.into());
            }
            _ => {
                places.insert(name, groups.len());
                groups.push(Group {
                    name,
                    named: named_of(matrix),
                    matrices: vec![i],
                    rows: matrix.rows.into(),
                    cols: matrix.cols,
                    experts: matrix.experts,
                    format: matrix.format,
                });
            }
        }
    }
    groups
}
