//! Plans priced to the byte: arena, limits, budget, verdict and inverse solve. No GPU is touched here.

pub mod geometry;
pub mod plan;

pub use geometry::Geometry;
pub use plan::Plan;
