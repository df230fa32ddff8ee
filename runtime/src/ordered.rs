//! Faults that a test orders of a process it starts: there is nobody in it to arm them. Compiled with the feature
//! `faults` only.

use crate::faults::Faults;
use plimsoll_kernels::Kernel;

/// `KERNEL=FROM=TO`: in kernels whose name begins with `KERNEL` (all, where that is empty), `FROM` becomes `TO`.
pub const MUTATION: &str = "PLIMSOLL_FAULT_MUTATION";

/// What the environment orders.
pub(crate) fn faults() -> Faults {
    let faults = Faults::default();
    if let Ok(order) = std::env::var(MUTATION) {
        let mut parts = order.splitn(3, '=').map(str::to_owned);
        if let (Some(name), Some(from), Some(to)) = (parts.next(), parts.next(), parts.next()) {
            faults.mutate(Some(Box::new(move |kernel: &Kernel, wgsl: String| {
                if kernel.name().starts_with(&name) { wgsl.replace(&from, &to) } else { wgsl }
            })));
        }
    }
    faults
}
