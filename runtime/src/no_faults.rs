//! What stands for `faults` where the feature of that name is off: nothing ever fails on order, and the compiler takes
//! the questions away.

use plimsoll_kernels::Kernel;

#[derive(Debug, Default)]
pub(crate) struct Faults {}

impl Faults {
    pub(crate) fn mutated(&self, _: &Kernel, wgsl: String) -> String {
        wgsl
    }

    pub(crate) fn buffer_fails(&self) -> bool {
        false
    }

    pub(crate) fn resized(&self, bytes: u64) -> u64 {
        bytes
    }

    pub(crate) fn submit_fails(&self) -> bool {
        false
    }

    pub(crate) fn map_fails(&self) -> bool {
        false
    }

    pub(crate) fn device_goes(&self) -> bool {
        false
    }
}
