//! WGSL kernels, their CPU twins and their planning functions.

pub mod format;

pub use format::Format;
