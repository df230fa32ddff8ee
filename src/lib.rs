//! **Plimsoll compiles a model and a geometry into a plan, prices the plan to the byte, refuses it or runs it, and
//! never allocates again.**
//!
//! ```no_run
//! use plimsoll::{Device, DeviceOptions, GenerateOptions};
//!
//! # fn main() -> Result<(), plimsoll::Error> {
//! // Headers only: nothing is read that is not needed to say what the model costs.
//! let opened = plimsoll::open("model.gguf")?;
//!
//! // What it would cost, and whether it may: a refusal is a value that says what was needed and what there was.
//! let device = Device::open(&DeviceOptions::default())?;
//! let geometry = opened.geometry();
//! let budget = plimsoll::budget(None, &device.memory());
//! let admitted = opened.admit(&geometry, device.profile(), budget.as_ref())?;
//! eprintln!("{} bytes", admitted.plan().total());
//!
//! // Buffers are created here and never again.
//! let mut session = opened.load(device, admitted, &mut |_| ())?;
//! for piece in session.generate("The capital of France is", &GenerateOptions::greedy(48))? {
//!     print!("{}", piece?);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`demo`] is a model that is built in. The crates below can be used by themselves, and are here under short names: [`kernels`], [`models`],
//! [`estimator`], [`runtime`].

pub use plimsoll_estimator as estimator;
pub use plimsoll_kernels as kernels;
pub use plimsoll_models as models;
pub use plimsoll_runtime as runtime;

pub use plimsoll_estimator::{
    Admitted, Budget, CacheLimit, Geometry, MemoryPolicy, Plan, Reading, Refusal, Report, Verdict,
};
pub use plimsoll_kernels::{KvFormat, Limits, Profile};
pub use plimsoll_models::chat::{ChatTemplate, Message, RenderOptions};
pub use plimsoll_models::{Checkpoint, Model, Registry, Tokenizer};
pub use plimsoll_runtime::{
    AdapterChoice, Cancel, Device, DeviceOptions, Engine, FinishReason, GenerateOptions, LoadProgress,
    MemoryFeed, Refused, Runtime, RuntimeError, SamplerOptions,
};

mod demo;
mod error;
mod open;
mod recover;
pub mod tuning;

pub use demo::{DEMO, demo, demo_checkpoint};
pub use error::Error;
pub use open::{Opened, budget, open, open_with, reading};
pub use recover::Recovered;

/// A session on a loaded plan.
pub type Session = plimsoll_runtime::Session<Runtime>;

/// The README's examples, run as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
