//! The executor of plans on wgpu: device, buffers, weights, pipelines and steps; above them the paged pool,
//! scheduler, sampler and sessions.
//!
//! This is the only crate that knows wgpu. It decides nothing about memory: it creates the buffers a
//! [`Plan`](plimsoll_estimator::Plan) lists, and after a load it creates none.

pub mod adapters;
pub mod books;
mod buffers;
pub mod device;
pub mod error;
pub mod faults;
pub mod lone;
pub mod memory;
mod pipelines;
mod recording;
pub mod runtime;
pub mod step;
mod tables;
mod transfer;
mod weights;

pub use adapters::{AdapterChoice, AdapterInfo, AdapterKind, DeviceOptions, adapters};
pub use device::Device;
pub use error::RuntimeError;
pub use memory::{MemoryReading, MemorySource};
pub use runtime::{LoadProgress, Runtime};
pub use step::{Cancel, Candidates, Sampling, SequenceInput, StepInput, StepOutput, Stepper, Wanted};
