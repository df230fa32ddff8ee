//! Plans priced to the byte: arena, limits, budget, verdict and inverse solve. No GPU is touched here.
//!
//! `plan = f(model, geometry, profile)`: [`Plan::new`] places every byte and every dispatch; [`admit`] holds the plan
//! against a [`Budget`] and answers with a [`Verdict`]; [`report::Report`] is what people and scripts read.

mod alike;
pub mod arena;
pub mod budget;
mod build;
pub mod bytes;
pub mod chart;
#[cfg(feature = "cli")]
pub mod cli;
pub mod coefficients;
pub mod company;
pub mod devices;
pub mod error;
mod folds;
pub mod geometry;
mod groups;
pub mod html;
pub mod images;
mod kv;
mod lower;
mod marks;
mod memo;
pub mod others;
pub mod peers;
pub mod plan;
pub mod policy;
mod pool;
mod prepare;
pub mod pricer;
mod recurrent;
pub mod report;
mod retained;
pub mod roofline;
pub mod shards;
mod show;
pub mod solve;
mod sound;
mod vectors;
pub mod verdict;
pub mod weights;

pub use budget::{Budget, Reading};
pub use build::PLAN_SCHEMA;
pub use coefficients::Coefficients;
pub use error::{PlanError, grouped};
pub use geometry::{Geometry, KvPair, KvStore, Priced};
pub use plan::Plan;
pub use policy::{CacheLimit, MemoryPolicy, SettingError};
pub use pricer::{Price, Pricer};
pub use report::Report;
pub use retained::snapshot_bytes;
pub use solve::{Frontier, FrontierPoint, Solver};
pub use verdict::{Admitted, Overhead, Refusal, Verdict, admit, admit_within};
