//! The executor of plans on wgpu: device, buffers, weights, pipelines and steps; above them the paged pool,
//! scheduler, sampler and sessions.
//!
//! This is the only crate that knows wgpu. It decides nothing about memory: it creates the buffers a
//! [`Plan`](plimsoll_estimator::Plan) lists, and after a load it creates none.

pub mod error;
pub mod step;

pub use error::RuntimeError;
pub use step::{Cancel, Candidates, Sampling, SequenceInput, StepInput, StepOutput, Stepper, Wanted};
