//! The mixes of GGUF's quantiser: which tensor gets which type.
//!
//! The rules are those of llama.cpp's `llama-quant.cpp` (commit 007dbbf3), checked against 92 published file sizes of
//! twelve repositories (`estimator/tests/weights_gguf.rs`). Files made before the
//! quantiser told categories apart gave a fused `attn_qkv` a type of its own: [`Mix::old_qkv`].

use super::role::Role;
use plimsoll_kernels::Format;
use std::borrow::Cow;

/// A type of GGUF: those that kernels exist for, and those that can only be sized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stored {
    /// One that kernels exist for.
    Format(Format),
    /// Another: its name, bytes of a block, values of a block.
    Sized(&'static str, u32, u32),
}

use Stored::Sized;
const F16: Stored = Stored::Format(Format::F16);
const F32: Stored = Stored::Format(Format::F32);
const Q4_0: Stored = Stored::Format(Format::Q4_0);
const Q4_1: Stored = Stored::Format(Format::Q4_1);
const Q5_0: Stored = Stored::Format(Format::Q5_0);
const Q5_1: Stored = Stored::Format(Format::Q5_1);
const Q8_0: Stored = Stored::Format(Format::Q8_0);
const Q2K: Stored = Stored::Format(Format::Q2K);
const Q3K: Stored = Stored::Format(Format::Q3K);
const Q4K: Stored = Stored::Format(Format::Q4K);
const Q5K: Stored = Stored::Format(Format::Q5K);
const Q6K: Stored = Stored::Format(Format::Q6K);
const IQ4_NL: Stored = Stored::Format(Format::Iq4Nl);
const IQ4_XS: Stored = Stored::Format(Format::Iq4Xs);
const MXFP4: Stored = Stored::Format(Format::Mxfp4);
const IQ3_S: Stored = Sized("iq3_s", 110, 256);
const IQ3_XXS: Stored = Sized("iq3_xxs", 98, 256);
const IQ2_S: Stored = Sized("iq2_s", 82, 256);
const IQ2_XS: Stored = Sized("iq2_xs", 74, 256);
const IQ2_XXS: Stored = Sized("iq2_xxs", 66, 256);
const IQ1_M: Stored = Sized("iq1_m", 56, 256);
const IQ1_S: Stored = Sized("iq1_s", 50, 256);
const TQ1_0: Stored = Sized("tq1_0", 54, 256);
const TQ2_0: Stored = Sized("tq2_0", 66, 256);

impl Stored {
    /// Bytes of a row of `cols` values; `None` when that is no whole number of blocks.
    pub fn row_bytes(self, cols: u64) -> Option<u64> {
        match self {
            Stored::Format(format) => format.row_bytes(cols),
            Sized(_, bytes, block) if cols.is_multiple_of(block.into()) => {
                (cols / u64::from(block)).checked_mul(bytes.into())
            }
            Sized(..) => None,
        }
    }

    /// The lower-case name.
    pub fn name(self) -> Cow<'static, str> {
        match self {
            Stored::Format(format) => format.name(),
            Sized(name, ..) => Cow::Borrowed(name),
        }
    }

    /// Whether rows of `cols` values are whole blocks.
    fn suits(self, cols: u32) -> bool {
        self.row_bytes(cols.into()).is_some()
    }
}

/// What a mix is called, and the type of most of its tensors.
const MIXES: [(&str, Stored); 30] = [
    ("q8_0", Q8_0),
    ("q6_k", Q6K),
    ("q5_k_m", Q5K),
    ("q5_k_s", Q5K),
    ("q5_1", Q5_1),
    ("q5_0", Q5_0),
    ("q4_k_m", Q4K),
    ("q4_k_s", Q4K),
    ("q4_1", Q4_1),
    ("q4_0", Q4_0),
    ("iq4_nl", IQ4_NL),
    ("iq4_xs", IQ4_XS),
    ("mxfp4_moe", MXFP4),
    ("q3_k_l", Q3K),
    ("q3_k_m", Q3K),
    ("q3_k_s", Q3K),
    ("q2_k", Q2K),
    ("q2_k_s", Q2K),
    ("iq3_m", IQ3_S),
    ("iq3_s", IQ3_S),
    ("iq3_xs", IQ3_S),
    ("iq3_xxs", IQ3_XXS),
    ("iq2_m", IQ2_S),
    ("iq2_s", IQ2_XS),
    ("iq2_xs", IQ2_XS),
    ("iq2_xxs", IQ2_XXS),
    ("iq1_m", IQ1_M),
    ("iq1_s", IQ1_S),
    ("tq1_0", TQ1_0),
    ("tq2_0", TQ2_0),
];

/// One of GGUF's mixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Its name.
    pub name: &'static str,
    /// The type of most tensors.
    default: Stored,
    /// It was made with a matrix of importances, as some rules ask.
    pub imatrix: bool,
    /// The rule that older quantisers had for a fused `attn_qkv`; unstated: the newer one, but for phi3, whose public
    /// files are from before.
    pub old_qkv: Option<bool>,
}

impl Mix {
    /// The mix of this name, perhaps followed by `+imatrix`, `+old-qkv` or `+new-qkv`.
    pub fn from_name(text: &str) -> Option<Self> {
        let mut parts = text.split('+');
        let name = match parts.next()? {
            // What the quantiser takes these to mean.
            "q4_k" => "q4_k_m",
            "q5_k" => "q5_k_m",
            "q3_k" => "q3_k_m",
            other => other,
        };
        let (name, default) = MIXES.into_iter().find(|(n, _)| *n == name)?;
        let mut mix = Self { name, default, imatrix: false, old_qkv: None };
        for part in parts {
            match part {
                "imatrix" => mix.imatrix = true,
                "old-qkv" => mix.old_qkv = Some(true),
                "new-qkv" => mix.old_qkv = Some(false),
                _ => return None,
            }
        }
        Some(mix)
    }
}

/// What the rules ask of a model as a whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole {
    /// Layers.
    pub layers: u32,
    /// Query heads that share a key's; 0 where the first layer has no attention.
    pub gqa: u32,
    /// Experts; 0 of a dense model.
    pub experts: u32,
    /// The head reads the embedding table.
    pub tied: bool,
    /// Tensors that the quantiser counts as `attn_v`.
    pub values: u32,
    /// A llama or qwen2 of 80 layers whose heads share keys.
    pub is_70b: bool,
    /// A fused `attn_qkv` has the type that older quantisers gave it.
    pub old_qkv: bool,
}

/// Types of a model's tensors, one after the other in the quantiser's order: those of no layer, then layer by layer.
pub(super) struct Types {
    mix: Mix,
    whole: Whole,
    values: u32,
    downs: u32,
}

impl Types {
    pub(super) fn new(mix: Mix, whole: Whole) -> Self {
        Self { mix, whole, values: 0, downs: 0 }
    }

    /// The type of a tensor of this role in this layer with rows of `cols` values. `stacked`: of three dimensions.
    /// `plain` is what tensors that the quantiser leaves alone are stored in.
    pub(super) fn of(&mut self, role: Role, layer: u32, cols: u32, stacked: bool, plain: Format) -> Stored {
        match role {
            Role::Router | Role::SharedGate | Role::Conv => return F32,
            Role::LayerInputs => return Stored::Format(plain),
            _ => {}
        }
        let wanted = self.wanted(role, layer, cols, stacked);
        if wanted.suits(cols) {
            return wanted;
        }
        let second = match wanted {
            Q4K => Q5_0,
            Q5K => Q5_1,
            Q6K => Q8_0,
            Q2K | Q3K | TQ1_0 | TQ2_0 => Q4_0,
            Sized(..) | IQ4_XS => IQ4_NL,
            _ => F16,
        };
        if second.suits(cols) { second } else { F16 }
    }

    /// The type that the rules want, whatever the width.
    fn wanted(&mut self, role: Role, layer: u32, cols: u32, stacked: bool) -> Stored {
        let Mix { name, default, imatrix, .. } = self.mix;
        let Whole { layers, experts, tied, .. } = self.whole;
        let table = matches!(role, Role::Embedding | Role::LayerEmbedding);
        let low = matches!(name, "iq2_xxs" | "iq2_xs" | "iq2_s" | "iq2_m" | "iq1_s" | "iq1_m");
        if role == Role::Head || tied && table {
            return match name {
                "mxfp4_moe" => Q8_0,
                _ if !default.suits(cols) => Q8_0,
                _ if low || name == "iq3_xxs" => Q5K,
                _ if default == Q8_0 => Q8_0,
                _ => Q6K,
            };
        }
        if name == "mxfp4_moe" {
            return if stacked { MXFP4 } else { Q8_0 };
        }
        if table {
            return match name {
                "iq2_xxs" | "iq2_xs" | "iq1_s" | "iq1_m" => Q2K,
                "iq2_s" | "iq2_m" | "iq3_xxs" => IQ3_S,
                "tq1_0" | "tq2_0" => Q4K,
                _ => default,
            };
        }
        let like_values = role == Role::AttnV || role == Role::AttnQkv && !self.whole.old_qkv;
        if low {
            return self.low(role, like_values);
        }
        let eighth = layers / 8;
        match role {
            _ if like_values => self.values(),
            Role::AttnK if experts == 8 => Q8_0,
            Role::AttnK | Role::AttnQ => match name {
                "iq3_xs" => IQ3_XXS,
                "iq3_xxs" => IQ2_S,
                _ => default,
            },
            Role::Down => {
                // Of a mixture the layer counts, of a dense model the tensors do.
                let i = if experts > 1 { layer } else { self.downs };
                self.downs += 1;
                match name {
                    "q2_k" => Q3K,
                    "q2_k_s" if i < eighth => Q4K,
                    "iq3_xxs" if !imatrix => {
                        if i < eighth {
                            Q4K
                        } else {
                            Q3K
                        }
                    }
                    "q3_k_m" => {
                        if i < layers / 16 {
                            Q5K
                        } else {
                            Q4K
                        }
                    }
                    "iq3_m" if i < eighth || experts == 8 && more(i, layers) => Q4K,
                    "q3_k_l" => Q5K,
                    "q4_k_m" | "q5_k_m" if more(i, layers) => Q6K,
                    "iq4_nl" | "iq4_xs" if i < eighth && !imatrix => Q5K,
                    "q4_k_s" if i < eighth => Q5K,
                    "q4_0" if imatrix && i < eighth => Q4_1,
                    "q5_0" if imatrix && i < eighth => Q5_1,
                    _ => default,
                }
            }
            Role::AttnOut if experts == 8 => match name {
                "q2_k" | "iq3_xs" | "iq3_xxs" | "q3_k_s" | "q3_k_m" | "iq4_nl" | "q4_k_s" | "q4_k_m"
                | "iq3_s" | "iq3_m" | "iq4_xs" => Q5K,
                _ => default,
            },
            Role::AttnOut => match name {
                "q2_k" => Q3K,
                "iq3_xxs" => IQ3_S,
                "q3_k_m" | "iq3_m" => Q4K,
                "q3_k_l" => Q5K,
                _ => default,
            },
            Role::AttnQkv => match name {
                "q3_k_m" | "q3_k_l" | "iq3_m" => Q4K,
                "q4_k_m" => Q5K,
                "q5_k_m" => Q6K,
                _ => default,
            },
            Role::Gate | Role::Up | Role::GateUp
                if name == "iq3_xs" && u64::from(layer) < 7 * u64::from(layers) / 8 && layer >= eighth =>
            {
                IQ3_XXS
            }
            _ => default,
        }
    }

    /// Values, and what counts as values.
    fn values(&mut self) -> Stored {
        let Mix { name, default, imatrix, .. } = self.mix;
        let (i, of, shared) = (self.values, self.whole.values, self.whole.gqa >= 4);
        self.values += 1;
        let wanted = match name {
            "q2_k" => {
                if shared {
                    Q4K
                } else {
                    Q3K
                }
            }
            "q2_k_s" | "iq3_xs" | "iq3_s" if shared => Q4K,
            "iq3_xxs" if shared => Q4K,
            "iq3_xxs" => {
                if imatrix {
                    IQ3_XXS
                } else {
                    IQ3_S
                }
            }
            "iq3_m" => Q4K,
            "q3_k_m" => {
                if i < 2 {
                    Q5K
                } else {
                    Q4K
                }
            }
            "q3_k_l" => Q5K,
            "iq4_nl" | "iq4_xs" if shared => Q5K,
            "q4_k_m" | "q5_k_m" if more(i, of) => Q6K,
            "q4_k_s" if i < 4 => Q5K,
            _ => default,
        };
        match wanted {
            _ if self.whole.experts == 8 => Q8_0,
            Q3K | Q4K if self.whole.is_70b => Q5K,
            wanted => wanted,
        }
    }

    /// Mixes of about two bits and less.
    fn low(&mut self, role: Role, like_values: bool) -> Stored {
        let Mix { name, default, .. } = self.mix;
        let Whole { layers, gqa, experts, .. } = self.whole;
        let small = matches!(name, "iq2_s" | "iq2_m");
        match role {
            _ if like_values => {
                self.values += 1;
                match () {
                    () if gqa >= 4 || experts >= 4 => Q4K,
                    () if small => IQ3_S,
                    () => Q2K,
                }
            }
            Role::AttnK if experts == 8 => Q4K,
            Role::Down => {
                let i = self.downs;
                self.downs += 1;
                match small {
                    _ if i >= layers / 8 => default,
                    true => IQ3_S,
                    false => Q2K,
                }
            }
            Role::AttnOut if experts == 8 => Q5K,
            Role::AttnOut if small => IQ3_S,
            Role::AttnOut if matches!(name, "iq1_s" | "iq1_m") => IQ2_XXS,
            _ => default,
        }
    }
}

/// Whether a layer gets more bits: the first and the last eighth, and every third between.
fn more(i: u32, of: u32) -> bool {
    let eighth = of / 8;
    i < eighth || u64::from(i) >= 7 * u64::from(of) / 8 || (i - eighth) % 3 == 2
}

/// Names of the mixes, for help texts.
pub(super) const fn names() -> [&'static str; 30] {
    let mut names = [""; 30];
    let mut i = 0;
    while i < names.len() {
        names[i] = MIXES[i].0;
        i += 1;
    }
    names
}
