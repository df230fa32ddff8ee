//! The kernels of Plimsoll: WGSL sources, their parameters, their planning functions and their CPU twins.
//!
//! Nothing here knows a GPU. A *planning function* takes an op's sizes and a [`Profile`] and answers with a
//! [`Call`]: which pipeline, which parameters, how many workgroups as a function of the step, what it reads,
//! writes and computes. A *CPU twin* computes the same function in plain Rust with f64 sums; tests compare the two.
//!
//! Dimensions are single letters, the same in WGSL, Rust and docs: `T` tokens, `D` hidden, `V` vocabulary, `Hq`/`Hk`
//! query and KV heads, `E` head size, `W` window, `S` KV length, `F` feed-forward width, `N × K` a matrix of `N`
//! rows (outputs) by `K` columns (inputs).

pub mod call;
mod codes;
pub mod dequant;
pub mod format;
pub mod kv;
pub mod ops;
pub mod profile;
pub mod record;
pub mod recurrent;
pub mod shader;
pub mod step;
pub mod tuning;
mod unpack;

pub use call::{Call, Cost, Count, StepShape, Unit};
pub use format::Format;
pub use kv::{AttentionShape, KvFormat, KvLayout};
pub use ops::Kernel;
pub use profile::{Facts, Limits, Profile};
pub use record::{Record, RecordError};
pub use recurrent::{DeltaShape, RecurrentShape, SsmShape};
pub use shader::{Access, Shader};
pub use step::StepLayout;
pub use tuning::{Delta, Reduce, Ssd, Tuned, Tuning, TuningError};
