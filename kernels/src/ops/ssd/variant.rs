//! From a variant to its text.

use super::{Operand, Params};
use crate::ops::lanes;
use crate::shader::{Access, Shader, Source};
use serde::{Deserialize, Serialize};

/// What the pipeline is generated from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Variant {
    /// Which kernel.
    pub part: Part,
    /// `N`.
    pub state: u32,
    /// `L`; of the sequential form the tokens between barriers.
    pub block: u32,
    /// Rows of a workgroup in the sequential form, quads of rows in the streaming one.
    pub rows: u32,
    /// Tokens a lane holds in registers; in the sequential form the lanes that hand x to each other, or 1.
    pub tokens: u32,
    /// Invocations.
    pub workgroup: u32,
    /// Four values are read at a time; in the sequential form N is a multiple of the lanes.
    pub vec4: bool,
}

/// The kernels of the three forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The sequential form.
    Sequential,
    /// The streaming form.
    Streaming,
    /// Δ and sums of blocks.
    Sums,
    /// States of blocks.
    States,
    /// From block to block.
    Passing,
    /// C·Bᵀ.
    Products,
    /// Outputs.
    Output,
}

impl Part {
    /// Every part.
    pub const ALL: [Part; 7] = [
        Part::Sequential,
        Part::Streaming,
        Part::Sums,
        Part::States,
        Part::Passing,
        Part::Products,
        Part::Output,
    ];

    /// Operands from binding 2 on.
    pub const fn operands(self) -> &'static [Operand] {
        use Operand::{Dt, Out, Scratch, States, Vectors, Xbc};
        match self {
            Part::Sequential | Part::Streaming => &[Xbc, Dt, States, Out, Vectors],
            Part::Sums => &[Dt, Vectors, Scratch],
            Part::States | Part::Products => &[Xbc, Scratch],
            Part::Passing => &[States, Scratch],
            Part::Output => &[Xbc, Out, Vectors, Scratch],
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Part::Sequential => "sequential",
            Part::Streaming => "streaming",
            Part::Sums => "sums",
            Part::States => "states",
            Part::Passing => "passing",
            Part::Products => "products",
            Part::Output => "output",
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Part::Sequential => include_str!("../ssd_sequential.wgsl"),
            Part::Streaming => include_str!("../ssd_streaming.wgsl"),
            Part::Sums => include_str!("../ssd_sums.wgsl"),
            Part::States => include_str!("../ssd_states.wgsl"),
            Part::Passing => include_str!("../ssd_passing.wgsl"),
            Part::Products => include_str!("../ssd_products.wgsl"),
            Part::Output => include_str!("../ssd_output.wgsl"),
        }
    }

    fn has(self, operand: Operand) -> bool {
        self.operands().contains(&operand)
    }

    fn access(self, operand: Operand) -> Access {
        match operand {
            Operand::Xbc | Operand::Dt => Access::ReadArena,
            Operand::Vectors => Access::Read,
            Operand::Scratch if self == Part::Output => Access::ReadArena,
            Operand::States | Operand::Out | Operand::Scratch => Access::Write,
        }
    }
}

impl Variant {
    /// Variants that between them use every text.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for part in Part::ALL {
            // Real sizes, on CPUs and GPUs, and odd ones.
            let sizes: &[_] = match part {
                Part::Sequential => &[
                    (128, 32, 16, 8, 8, true),
                    (33, 1, 8, 8, 8, false),
                    (128, 8, 8, 1, 8, true),
                    (128, 1, 8, 1, 32, true),
                    (256, 8, 4, 1, 32, true),
                    (17, 7, 5, 1, 8, false),
                    (1, 2, 1, 1, 1, true),
                ],
                Part::Streaming => &[
                    (128, 16, 4, 8, 8, true),
                    (128, 32, 4, 2, 64, true),
                    (256, 32, 2, 1, 64, true),
                    (17, 12, 1, 4, 8, false),
                ],
                Part::Output => {
                    &[(128, 64, 0, 8, 64, true), (128, 128, 0, 4, 64, true), (17, 12, 0, 1, 64, false)]
                }
                _ => &[(128, 128, 0, 1, 64, true), (17, 12, 0, 1, 64, false)],
            };
            for &(state, block, rows, tokens, workgroup, vec4) in sizes {
                all.push(Self { part, state, block, rows, tokens, workgroup, vec4 });
            }
        }
        all
    }
}

impl Shader for Variant {
    fn name(&self) -> String {
        format!(
            "ssd_{}_n{}_l{}_{}x{}{}_wg{}",
            self.part.name(),
            self.state,
            self.block,
            self.rows,
            self.tokens,
            if self.vec4 { "_vec4" } else { "" },
            self.workgroup
        )
    }

    fn wgsl(&self) -> String {
        let part = self.part;
        let mut source = Source::new(Params::WGSL).constant("WG", self.workgroup).constant("N", self.state);
        let sequential = part == Part::Sequential;
        let quads = self.vec4 && !sequential;
        if sequential {
            source = source
                .constant("TOKENS", self.block)
                .constant("ROWS", self.rows)
                .constant("WIDTH", self.tokens)
                .flag("EVEN", self.state.is_multiple_of(self.workgroup));
        } else {
            source = source
                .constant("L", self.block)
                .constant("TOKENS", self.tokens)
                .constant("QUADS", self.rows)
                .constant("NQ", self.state.div_ceil(4));
        }
        for (index, operand) in (0..).zip(part.operands()) {
            let four = if quads { "array<vec4<f32>>" } else { "array<f32>" };
            let (name, ty) = match operand {
                Operand::Xbc => ("xbc", four),
                Operand::Dt => ("dt", "array<f32>"),
                Operand::States => ("states", four),
                Operand::Out => ("out", "array<f32>"),
                Operand::Vectors => ("vectors", "array<f32>"),
                Operand::Scratch => ("scratch", "array<vec4<f32>>"),
            };
            source = source.operand(index, part.access(*operand), name, ty);
        }
        source = source.text(include_str!("../ssd.wgsl"));
        if part.has(Operand::Dt) {
            source = source.text(include_str!("../ssd_delta.wgsl"));
        }
        if !sequential && part.has(Operand::Xbc) {
            source = source.text(if quads {
                include_str!("../ssd_quads.wgsl")
            } else {
                include_str!("../ssd_singles.wgsl")
            });
        }
        if !sequential && part.has(Operand::States) {
            source = source.text(if quads {
                include_str!("../ssd_states_quads.wgsl")
            } else {
                include_str!("../ssd_states_singles.wgsl")
            });
        }
        if part.has(Operand::Scratch) {
            source = source.text(include_str!("../ssd_blocks.wgsl"));
        }
        let counts = [
            ("OCTS", self.rows / self.tokens),
            ("WIDTH", self.tokens),
            ("SPREAD", u32::from(self.tokens > 1)),
            ("STAGED", u32::from(self.tokens == 1)),
            ("VALUES", self.state.div_ceil(self.workgroup)),
            ("TOKENS", self.tokens),
            ("QUAD", 4),
        ];
        source.text(&lanes::unroll(part.text(), &counts)).finish()
    }

    fn operands(&self) -> Vec<Access> {
        self.part.operands().iter().map(|o| self.part.access(*o)).collect()
    }

    fn workgroup(&self) -> u32 {
        self.workgroup
    }
}
