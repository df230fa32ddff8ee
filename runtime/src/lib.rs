//! The executor of plans on wgpu: device, buffers, weights, pipelines and steps; above them the paged pool,
//! scheduler, sampler and sessions.
//!
//! This is the only crate that knows wgpu. It decides nothing about memory: it creates the buffers a
//! [`Plan`](plimsoll_estimator::Plan) lists, and after a load it creates none.

pub mod account;
pub mod adapters;
pub mod books;
mod buffers;
mod cgroup;
pub mod device;
pub mod engine;
pub mod error;
pub mod evaluate;
#[cfg(test)]
mod fake;
#[cfg(feature = "faults")]
pub mod faults;
#[cfg(not(feature = "faults"))]
#[path = "no_faults.rs"]
mod faults;
mod fill;
pub mod freed;
pub mod host;
mod huge_pages;
pub mod lone;
pub mod memory;
#[cfg(feature = "faults")]
pub mod ordered;
mod pipelines;
mod point;
pub mod pool;
mod prefix;
pub mod process;
pub mod profiler;
pub mod readings;
mod recording;
mod recurrent;
pub mod request;
mod rlimit;
pub mod rng;
pub mod runtime;
pub mod sampler;
pub mod scheduler;
pub mod session;
mod snapshots;
pub mod step;
pub mod stop;
mod tables;
pub mod telemetry;
mod transfer;
mod weights;
mod workers;

pub use account::Account;
pub use adapters::{AdapterChoice, AdapterInfo, AdapterKind, DeviceOptions, adapters};
pub use device::Device;
pub use engine::{Engine, Feed};
pub use error::RuntimeError;
pub use freed::Freed;
pub use memory::{MemoryReading, MemorySource};
pub use readings::{MemoryChange, MemoryFeed, Simulated};
pub use request::{Event, FinishReason, Refused, Request, RequestId, What};
pub use runtime::{LoadProgress, Runtime};
pub use sampler::SamplerOptions;
pub use session::{GenerateOptions, Generation, Progress, Session};
pub use step::{Cancel, Candidates, Sampling, SequenceInput, StepInput, StepOutput, Stepper, Wanted};
pub use telemetry::{Telemetry, Usage};
