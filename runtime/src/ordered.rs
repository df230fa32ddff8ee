//! Faults that a test orders of a process it starts: there is nobody in it to arm them. Compiled with the feature
//! `faults` only.

use crate::faults::Faults;
use plimsoll_kernels::Kernel;
use std::sync::atomic::{AtomicUsize, Ordering};

/// `KERNEL=FROM=TO`: in kernels whose name begins with `KERNEL` (all, where that is empty), `FROM` becomes `TO`.
pub const MUTATION: &str = "PLIMSOLL_FAULT_MUTATION";

/// `N,N,…`: the first device that the process opens is lost at its `N`-th submit, the second at its, and so on; 0 or
/// nothing is never.
pub const LOSE: &str = "PLIMSOLL_FAULT_LOSE";

/// Devices that have been opened.
static OPENED: AtomicUsize = AtomicUsize::new(0);

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
    let at = OPENED.fetch_add(1, Ordering::Relaxed);
    let order = std::env::var(LOSE).ok().and_then(|order| order.split(',').nth(at)?.trim().parse().ok());
    faults.lose_device(order.unwrap_or(0));
    faults
}
