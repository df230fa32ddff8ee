//! What the kernels that treat every value by itself share: the grid and the place of an invocation.

use crate::{Call, Cost, Count, Kernel, Unit};

/// Invocations of a workgroup.
pub(crate) const WORKGROUP: u32 = 64;

/// The WGSL: `place_of` gives row and first value of the `EACH` values an invocation treats, `EACH × WG` a
/// workgroup; neighbouring invocations treat neighbouring values. Needs `p.width`, `p.per_row` and `p.count_word`.
pub(crate) const TEXT: &str = include_str!("elementwise.wgsl");

/// Values one invocation treats.
pub(crate) const EACH: u32 = 4;

/// Workgroups a row.
pub(crate) fn per_row(width: u32) -> u32 {
    width.div_ceil(WORKGROUP * EACH).max(1)
}

/// The call of a kernel over rows of `width` values.
pub(crate) fn call(kernel: Kernel, params: Vec<u32>, width: u32, unit: Unit, bytes: u64, flops: u64) -> Call {
    Call {
        kernel,
        params,
        workgroups: Count::each(unit, 1, per_row(width)),
        rows: unit,
        cost: Cost {
            bytes_per_row: bytes * u64::from(width),
            flops_per_row: flops * u64::from(width),
            ..Cost::default()
        },
    }
}
