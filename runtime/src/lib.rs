//! The executor of plans on wgpu: device, buffers, paged pool, scheduler, sampler, sessions

pub mod lone;
