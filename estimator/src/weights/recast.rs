//! The same model in other weights.

use super::gguf::{Mix, Stored, Types, Whole};
use super::inventory::{Group, groups, inventory, role_of};
use super::layout::{Laid, Layout};
use super::role::Role;
use super::{Entry, Parts, Scheme, WeightsError};
use plimsoll_kernels::Format;
use plimsoll_kernels::format::ScaleType;
use plimsoll_models::Model;
use plimsoll_models::checkpoint::{Checkpoint, Source};
use plimsoll_models::model::{Part, Recasting, State};
use plimsoll_models::zoo::fields::Fields;
use std::collections::HashMap;

/// A model in other weights.
#[derive(Clone, Debug)]
pub struct Recast {
    /// The model: the same, with the formats of the scheme. It can be priced, not run. Its `extras.recast` holds the
    /// scheme's name and both files' bytes for a report.
    pub model: Model,
    /// What the scheme did that a reader should know; the model has them too.
    pub notes: Vec<String>,
    /// The tensors that a file in this scheme has.
    pub entries: Vec<Entry>,
    /// Their bytes: the file's size without its header.
    pub stored: Parts,
}

/// The same model with each matrix in the format that a scheme gives it, whatever it was stored in.
///
/// # Errors
/// [`WeightsError::Unknown`] when there is no such scheme; [`WeightsError::NoKernels`] when it stores tensors in formats
/// that can be sized and not planned for; [`WeightsError::Ragged`].
pub fn recast(model: &Model, scheme: &str, checkpoint: &Checkpoint) -> Result<Recast, WeightsError> {
    let chosen = Scheme::from_name(scheme)?;
    let name = scheme.trim().to_ascii_lowercase();
    let groups = groups(model);
    let work = Work { model, checkpoint, groups: &groups, base: base(model, checkpoint) };
    let mut notes = Vec::new();
    let files = match chosen {
        Scheme::Plain(format) => work.plain(format),
        Scheme::Gguf(mix) => work.gguf(mix, &mut notes),
        Scheme::Mlx { bits, group } => work.mlx(work.affine(bits, group), group.into(), &mut notes),
        Scheme::MlxFloat(format) => work.mlx(format, format.block_len() as u32, &mut notes),
        Scheme::Nvfp4 => work.linears(Format::Nvfp4Scaled, Role::is_linear),
        Scheme::Fp8 => work.linears(Format::Fp8, Role::is_linear),
        Scheme::Mxfp4 => work.mxfp4(&mut notes),
    };
    work.finish(&name, chosen, files, notes)
}

/// The type of plain tensors: the model's own, where its vectors say.
fn base(model: &Model, checkpoint: &Checkpoint) -> Format {
    let mut formats = model.vectors.iter().map(|v| v.format);
    match formats.find(|f| *f != Format::F32) {
        Some(format) => format,
        None if checkpoint.source() == Source::Gguf || model.vectors.is_empty() => Format::BF16,
        None => Format::F32,
    }
}

/// What a scheme makes of a model: a format for each group of matrices and one for all vectors.
struct Files {
    /// A tensor, or the tensors that the scheme makes of it, as they are stored.
    matrices: Vec<Choice>,
    /// `None`: as they are, in the model's type.
    vectors: Option<Format>,
    layout: Layout,
    /// Tensors that the scheme's writer adds: name, values, f32.
    added: Vec<(String, u64)>,
    /// Towers and draft layers are in the same file, as they are published.
    beside: bool,
}

/// How one group of matrices is stored.
#[derive(Clone, Copy)]
struct Choice {
    /// What the device holds.
    device: Stored,
    /// Two tensors that a writer makes of it instead: rows, values of a row, type of each.
    split: Option<[(u64, u64, Stored); 2]>,
}

impl From<Format> for Choice {
    fn from(format: Format) -> Self {
        Self { device: Stored::Format(format), split: None }
    }
}

struct Work<'a> {
    model: &'a Model,
    checkpoint: &'a Checkpoint,
    groups: &'a [Group<'a>],
    /// The type of plain tensors.
    base: Format,
}

impl Work<'_> {
    fn each(&self, choose: impl Fn(&Group<'_>, Role) -> Format) -> Vec<Choice> {
        self.groups.iter().map(|group| choose(group, group.named.role).into()).collect()
    }

    fn plain(&self, format: Format) -> Files {
        let matrices = self.each(|_, _| format);
        Files { matrices, vectors: Some(format), layout: Layout::Plain, added: Vec::new(), beside: true }
    }

    /// Packs the roles that `packs` names, as modelopt does, where rows are whole blocks.
    fn linears(&self, format: Format, packs: impl Fn(Role) -> bool) -> Files {
        let suits = |group: &Group<'_>| format.row_bytes(group.cols.into()).is_some();
        let matrices = self.each(|group, role| if packs(role) && suits(group) { format } else { self.base });
        Files { matrices, vectors: None, layout: Layout::MODELOPT, added: Vec::new(), beside: true }
    }

    fn mxfp4(&self, notes: &mut Vec<String>) -> Files {
        let mixture = self.groups.iter().any(|group| group.experts > 1);
        let which = if mixture {
            "the experts alone, as gpt-oss is published"
        } else {
            "all linear layers but the head"
        };
        notes.push(format!("mxfp4: packed are {which}"));
        let suits = |group: &Group<'_>| group.cols.is_multiple_of(32) && (!mixture || group.experts > 1);
        let matrices =
            self.each(|group, role| if role.is_linear() && suits(group) { Format::Mxfp4 } else { self.base });
        Files { matrices, vectors: None, layout: Layout::Blocked, added: Vec::new(), beside: true }
    }

    /// MLX's codes with scales in the model's type.
    fn affine(&self, bits: u8, group: u8) -> Format {
        let scales = match self.base {
            Format::F32 => ScaleType::F32,
            Format::F16 => ScaleType::F16,
            _ => ScaleType::BF16,
        };
        Format::Affine { bits, group, scales }
    }

    fn mlx(&self, format: Format, group: u32, notes: &mut Vec<String>) -> Files {
        let begins = |names: &[&str]| names.iter().any(|n| self.model.architecture.starts_with(n));
        // Routers that their models hold as bare arrays are no modules, and stay as they are.
        let bare = begins(&["nemotron", "deepseek", "kimi", "glm"]);
        let chosen = |cols: u32, role: Role| {
            let wide = self.affine(8, 64);
            match role {
                _ if !cols.is_multiple_of(group) => self.base,
                Role::Router if bare => self.base,
                Role::Router if begins(&["llama4"]) => format,
                Role::Router | Role::SharedGate if cols.is_multiple_of(64) => wide,
                Role::Router | Role::SharedGate | Role::Conv => self.base,
                _ => format,
            }
        };
        let matrices = self.each(|group, role| chosen(group.cols, role));
        let layout = Layout::Mlx;
        if self.groups.iter().any(|g| g.named.role == Role::Router) && !bare && !begins(&["llama4"]) {
            notes.push("mlx: routers are packed in 8 bits by 64, as their models ask".to_owned());
        }
        Files { matrices, vectors: None, layout, added: Vec::new(), beside: false }
    }

    fn gguf(&self, mix: Mix, notes: &mut Vec<String>) -> Files {
        let roles: Vec<_> = self.groups.iter().map(|group| group.named).collect();
        let fused = roles.iter().any(|n| n.role == Role::AttnQkv);
        let old_qkv = mix.old_qkv.unwrap_or_else(|| self.model.architecture.starts_with("phi"));
        if fused {
            let which = if old_qkv { "a type of its own, as older" } else { "the type of attn_v, as newer" };
            notes.push(format!("{}: attn_qkv has {which} quantisers give it", mix.name));
        }
        if mix.imatrix {
            notes.push(format!("{}: with a matrix of importances", mix.name));
        }
        let values = |role: Role| matches!(role, Role::AttnV | Role::AttnQkv | Role::LinearQkvz);
        let whole = Whole {
            layers: self.model.layers,
            gqa: self.gqa(),
            experts: self.groups.iter().map(|g| g.experts).filter(|e| *e > 1).max().unwrap_or(0),
            tied: !roles.iter().any(|n| n.role == Role::Head),
            values: roles.iter().filter(|n| values(n.role)).count().try_into().unwrap_or(u32::MAX),
            is_70b: self.is_70b(),
            old_qkv,
        };
        let mut types = Types::new(mix, whole);
        let mut order: Vec<usize> = (0..self.groups.len()).collect();
        order.sort_by_key(|&i| roles.get(i).and_then(|n| n.layer));
        let mut chosen: HashMap<usize, Choice> = HashMap::new();
        for i in order {
            let (Some(group), Some(named)) = (self.groups.get(i), roles.get(i)) else { continue };
            let layer = named.layer.unwrap_or(0);
            let choice = match named.role {
                Role::LinearQkvz => self.qkvz(group, &mut types, layer),
                Role::LatentKv if group.name.contains("kv_b") => self.latent(group, &mut types, layer),
                role => {
                    let stacked = group.experts > 1 || role == Role::LatentKv;
                    let device = types.of(role, layer, group.cols, stacked, self.base);
                    Choice { device, split: None }
                }
            };
            chosen.insert(i, choice);
        }
        let matrices = (0..self.groups.len()).filter_map(|i| chosen.get(&i).copied()).collect();
        let added = self.divisors();
        Files { matrices, vectors: Some(Format::F32), layout: Layout::Plain, added, beside: false }
    }

    /// Queries, keys, values and gates in one tensor: writers part the gates from the rest.
    fn qkvz(&self, group: &Group<'_>, types: &mut Types, layer: u32) -> Choice {
        let qkv = types.of(Role::AttnQkv, layer, group.cols, false, self.base);
        let z = types.of(Role::AttnGate, layer, group.cols, false, self.base);
        let first = group.matrices.first().and_then(|&i| self.model.matrices.get(i));
        let rows = first.map_or(group.rows, |m| u64::from(m.rows)).min(group.rows);
        let cols = group.cols.into();
        Choice { device: qkv, split: Some([(rows, cols, qkv), (group.rows - rows, cols, z)]) }
    }

    /// Keys and values of latent attention in one tensor: writers part them, and turn the keys' over.
    fn latent(&self, group: &Group<'_>, types: &mut Types, layer: u32) -> Choice {
        let latent = self.model.states.iter().find_map(State::latent);
        let Some(latent) = latent else {
            return Choice {
                device: types.of(Role::LatentKv, layer, group.cols, true, self.base),
                split: None,
            };
        };
        let key = types.of(Role::LatentKv, layer, latent.nope, true, self.base);
        let value = types.of(Role::LatentKv, layer, group.cols, true, self.base);
        let heads = u64::from(latent.heads);
        let keys = (heads.saturating_mul(latent.rank.into()), u64::from(latent.nope), key);
        let values = (heads.saturating_mul(latent.value.into()), u64::from(group.cols), value);
        Choice { device: value, split: Some([keys, values]) }
    }

    /// Query heads that share a key's, in the first layer: GGUF states them layer by layer where layers differ, but for
    /// the families of qwen.
    fn gqa(&self) -> u32 {
        let states = &self.model.states;
        let first = if self.model.architecture.starts_with("qwen") {
            states.iter().find(|s| s.attention().is_some())
        } else {
            states.first()
        };
        match first {
            Some(State::KvLatent { latent }) => latent.heads,
            Some(state) => state.attention().map_or(0, |shape| shape.heads / shape.kv_heads.max(1)),
            None => 0,
        }
    }

    fn is_70b(&self) -> bool {
        matches!(self.model.architecture.as_str(), "llama" | "qwen2")
            && self.model.layers == 80
            && self.gqa() > 1
    }

    /// Divisors of a rotation that GGUF's writers add as tensors.
    fn divisors(&self) -> Vec<(String, u64)> {
        let names = ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"];
        if self.checkpoint.source() == Source::Gguf {
            let there = names.iter().filter_map(|name| self.checkpoint.tensor(name));
            return there.map(|tensor| (tensor.name.clone(), tensor.elements())).collect();
        }
        let fields = Fields::of(self.checkpoint).ok();
        let scaling = fields.and_then(|f| f.any(&["rope_scaling", "rope_parameters"]));
        let kind = ["rope_type", "type"].iter().find_map(|key| scaling?.get(key)?.as_str());
        let pairs = self.model.ropes.iter().map(|rope| u64::from(rope.pairs())).max().unwrap_or(0);
        let which: &[&str] = match kind {
            _ if self.model.architecture == "gemma4" => &names[..1],
            Some("llama3") => &names[..1],
            Some("longrope" | "su") => &names[1..],
            _ => &[],
        };
        which.iter().map(|name| ((*name).to_owned(), pairs)).collect()
    }

    fn finish(
        &self,
        name: &str,
        scheme: Scheme,
        files: Files,
        mut notes: Vec<String>,
    ) -> Result<Recast, WeightsError> {
        let mut entries = Vec::new();
        let mut model = self.model.clone();
        let mut without = None;
        for (group, choice) in self.groups.iter().zip(&files.matrices) {
            let laid = group.laid(choice.device);
            let pieces = match choice.split {
                None => vec![laid],
                Some(split) => split
                    .into_iter()
                    .map(|(rows, cols, stored)| Laid { rows, cols, stored, experts: 1, ..laid })
                    .collect(),
            };
            for piece in pieces {
                let tensors = piece.entries(files.layout).ok_or_else(|| WeightsError::Ragged {
                    tensor: group.name.to_owned(),
                    cols: piece.cols,
                    format: piece.stored.name().into_owned(),
                })?;
                entries.extend(tensors);
                if let (Stored::Sized(format, ..), None) = (piece.stored, &without) {
                    without = Some((group.name.to_owned(), format.to_owned()));
                }
            }
            let Stored::Format(format) = choice.device else { continue };
            for &i in &group.matrices {
                if let Some(matrix) = model.matrices.get_mut(i) {
                    matrix.format = format;
                }
            }
            // Of a tensor that is parted, the second matrix has the second part's type.
            if let (Some([_, (_, _, Stored::Format(format))]), [_, second]) =
                (choice.split, &group.matrices[..])
                && let Some(matrix) = model.matrices.get_mut(*second)
            {
                matrix.format = format;
            }
        }
        for vector in &mut model.vectors {
            let role = role_of(vector);
            // What is wider than the model's type stays so, but where GGUF widened everything.
            vector.format = match files.vectors {
                Some(format) => format,
                None if self.checkpoint.source() == Source::Gguf => self.base,
                None => vector.format,
            };
            let len = u64::from(vector.len);
            entries.push(Entry {
                name: vector.tensor.clone(),
                part: Part::Text,
                role,
                rows: 1,
                cols: len,
                count: 1,
                format: vector.format.to_string(),
                bytes: vector.format.row_bytes(len).unwrap_or(0),
                exact: files.vectors.is_some() || !matches!(role, Role::RouterBias | Role::Recurrence),
            });
        }
        for (name, values) in &files.added {
            let bytes = values.saturating_mul(4);
            entries.push(Entry {
                name: name.clone(),
                part: Part::Text,
                role: Role::Rotation,
                rows: 1,
                cols: *values,
                count: 1,
                format: "f32".to_owned(),
                bytes,
                exact: true,
            });
        }
        if let Scheme::Plain(format) = scheme {
            model.extras.tensors.iter_mut().for_each(|beside| beside.format = format);
        }
        let published = inventory(self.checkpoint, self.model);
        self.beside(scheme, &files, &published, &mut entries, &mut notes);
        let fold = |entries: &[Entry]| entries.iter().fold(Parts::default(), Parts::with);
        let (stored, published) = (fold(&entries), fold(&published));
        if let Some((tensor, format)) = without {
            let stored = stored.total();
            return Err(WeightsError::NoKernels { scheme: name.to_owned(), format, tensor, stored });
        }
        let split = files.matrices.iter().any(|c| c.split.is_some_and(|[a, b]| a.2 != b.2))
            && self.groups.iter().any(|g| g.name.contains("kv_b"));
        if split {
            let note = "keys and values of the latent have types of their own in the file; here both are priced in the values'";
            notes.push(format!("{name}: {note}"));
        }
        model.notes.extend(notes.iter().cloned());
        let why = format!("these weights do not exist: they are priced as {name}");
        model.extras.estimate_only = Some(match model.extras.estimate_only.take() {
            Some(other) => format!("{why}; {other}"),
            None => why,
        });
        model.extras.recast = Some(Recasting {
            scheme: name.to_owned(),
            stored: stored.by_part(),
            // Of a model that is recast already, the checkpoint's bytes are known from before.
            published: self.model.extras.recast.as_ref().map_or(published.by_part(), |r| r.published),
        });
        Ok(Recast { model, notes, entries, stored })
    }

    /// What the file has of towers and draft layers.
    fn beside(
        &self,
        scheme: Scheme,
        files: &Files,
        published: &[Entry],
        entries: &mut Vec<Entry>,
        notes: &mut Vec<String>,
    ) {
        let apart = published.iter().filter(|e| e.part != Part::Text);
        if files.beside {
            // Plain types are those of the whole file.
            let cast = |entry: &Entry| match scheme {
                Scheme::Plain(format) if entry.role != Role::Scale => Entry {
                    format: format.to_string(),
                    bytes: entry.parameters().saturating_mul(format.block_bytes() as u64),
                    ..entry.clone()
                },
                _ => entry.clone(),
            };
            entries.extend(apart.map(cast));
            return;
        }
        let bytes = apart.map(|e| e.bytes).fold(0, u64::saturating_add);
        if bytes > 0 {
            let place = if matches!(scheme, Scheme::Gguf(_)) { "files of their own" } else { "no such file" };
            let bytes = crate::grouped(bytes);
            notes.push(format!(
                "what is beside the text model ({bytes} bytes as published) is in {place}, and not counted"
            ));
        }
    }
}
