//! The kernels: one op is one `<op>.rs` (variant, parameters, planning function, CPU twin) beside one `<op>.wgsl`.

pub mod activate;
pub mod add;
pub mod attention;
pub mod attention_merge;
pub mod clamped_gate;
pub mod combine;
pub mod conv;
pub mod delta;
pub mod delta_blocks;
pub mod delta_sequential;
mod elementwise;
pub mod embed;
pub mod expert_sort;
pub mod experts;
pub mod gate;
pub mod gated_norm;
mod lanes;
pub mod linear;
pub mod mat_mat;
pub mod mat_vec;
pub mod multiply;
mod norm;
pub mod rms_norm;
pub mod rope_kv;
pub mod route;
mod row_lanes;
pub mod scale;
pub mod select_rows;
pub mod softcap;
pub mod ssd;
pub mod top_k;

use crate::shader::{Access, Shader};
use crate::step::{HEADER_TILES, TILE_WORDS, TileTable};
use serde::{Deserialize, Serialize};

/// Implements [`Shader`] for the enum by asking the variant.
macro_rules! kernels {
    ($($(#[$meta:meta])* $variant:ident($module:ident)),* $(,)?) => {
        /// Every pipeline a plan can name: an op and the constants its text is generated with.
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(tag = "op", rename_all = "snake_case")]
        pub enum Kernel { $($(#[$meta])* $variant($module::Variant)),* }

        impl Kernel {
            fn shader(&self) -> &dyn Shader {
                match self { $(Kernel::$variant(v) => v),* }
            }

            /// Kernels that between them use every text and every branch of generation: what translation and
            /// reflection tests walk.
            pub fn variants() -> Vec<Kernel> {
                let mut all = Vec::new();
                $(all.extend($module::Variant::all().into_iter().map(Kernel::$variant));)*
                all
            }
        }

        $(impl From<$module::Variant> for Kernel {
            fn from(v: $module::Variant) -> Self { Kernel::$variant(v) }
        })*
    };
}

kernels! {
    /// Rows of the embedding table.
    Embed(embed),
    /// Root-mean-square norm of rows.
    RmsNorm(rms_norm),
    /// Matrix × up to 8 vectors.
    MatVec(mat_vec),
    /// Matrix × matrix.
    MatMat(mat_mat),
    /// Head norms, rope and the KV write.
    RopeKv(rope_kv),
    /// Attention over pages.
    Attention(attention),
    /// Joins the splits of an attention.
    AttentionMerge(attention_merge),
    /// Gated activation.
    Gate(gate),
    /// Clamped gated activation.
    ClampedGate(clamped_gate),
    /// Residual sum.
    Add(add),
    /// Rows whose logits are wanted.
    SelectRows(select_rows),
    /// Product with a number.
    Scale(scale),
    /// Product with a tensor.
    Multiply(multiply),
    /// Gated delta rule, token by token.
    DeltaSequential(delta_sequential),
    /// Gated delta rule in blocks.
    DeltaBlocks(delta_blocks),
    /// `cap·tanh(x/cap)`.
    Softcap(softcap),
    /// The k largest logits of each row.
    TopK(top_k),
    /// Causal convolution of channels, and its tail.
    Conv(conv),
    /// Selective state space.
    Ssd(ssd),
    /// Norm with a gate.
    GatedNorm(gated_norm),
    /// The experts of each token and their weights.
    Route(route),
    /// Choices sorted by expert.
    ExpertSort(expert_sort),
    /// Products with a stack of experts.
    Experts(experts),
    /// The experts' answers, summed.
    Combine(combine),
    /// Activation in place.
    Activate(activate),
}

/// The entries of a tile table: first token, tokens, slot, position of the first.
fn sequences(step: &[u32], (index, table): (u32, TileTable)) -> impl Iterator<Item = [u32; 4]> {
    let count = step[(HEADER_TILES + index) as usize] as usize;
    let entries = step[table.offset as usize..].chunks_exact(TILE_WORDS as usize);
    entries.take(count).map(|e| [e[0], e[1], e[2], e[3]])
}

impl Kernel {
    /// A short unique name.
    pub fn name(&self) -> String {
        self.shader().name()
    }

    /// The WGSL module, entry point `main`.
    pub fn wgsl(&self) -> String {
        self.shader().wgsl()
    }

    /// Operands from binding 2 on.
    pub fn operands(&self) -> Vec<Access> {
        self.shader().operands()
    }

    /// Invocations of a workgroup.
    pub fn workgroup(&self) -> u32 {
        self.shader().workgroup()
    }
}
