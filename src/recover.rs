//! After a fault: the same plan once more, on the same device or, where that was lost, on one that is opened anew.

use crate::{Error, Opened, budget, reading};
use plimsoll_estimator::verdict::{Overhead, admit};
use plimsoll_estimator::{Admitted, Budget, Plan};
use plimsoll_runtime::{Device, Engine, Event, LoadProgress, MemoryReading, Runtime, RuntimeError};
use std::sync::Arc;

/// What [`Opened::recover`] made of an engine.
pub struct Recovered {
    /// An engine on the plan's geometry with nothing to do. It gives out no id that the other gave out.
    pub engine: Engine<Runtime>,
    /// The last events of the requests that were still there: each has [failed](plimsoll_runtime::What::Failed).
    pub ended: Vec<Event>,
    /// Whether the device was opened again. It is not unless it was lost.
    pub reopened: bool,
}

impl Opened {
    /// Takes an engine down and loads its plan again. Where the device was lost another is opened, with the options of
    /// the first; a device that only failed at something is kept.
    ///
    /// The memory of the old engine is freed first. Then everything is asked anew, as at the first load: whether the
    /// plan's geometry fits what is free now, and whether the device still gives what the plan was made for. What the
    /// operator asked of the first load holds: its ceiling (or a lower one: `requested`, with the name of its setting),
    /// its reserve, and that it be loaded although the budget says no.
    ///
    /// Requests of the old engine are not carried over: what of them was on the device is gone. Those that a
    /// [step](Engine::step) has told of the loss have ended; the others end here.
    ///
    /// # Errors
    /// [`Error::Refused`] when it no longer fits; [`Error::Runtime`] when the device cannot be opened, gives less than
    /// it did ([`RuntimeError::Limit`]), or fails again.
    pub fn recover(
        &self,
        mut lost: Engine<Runtime>,
        requested: Option<(u64, &str)>,
        progress: &mut (dyn FnMut(LoadProgress<'_>) + Send),
    ) -> Result<Recovered, Error> {
        let device = lost.stepper().device().clone();
        let health = device.health();
        let reopened = health.as_ref().is_err_and(|error| !error.device_is_usable());
        let told = health.err().unwrap_or(RuntimeError::Unloaded);
        let ended = lost.fail_all(&Arc::new(told));
        let (geometry, profile) = (lost.plan().geometry.clone(), lost.plan().profile.clone());
        let options = device.options().clone();
        let (before, overridden) = {
            let admitted = lost.stepper().admitted();
            (admitted.budget().cloned(), admitted.overridden())
        };
        let account = lost.handover();
        let device = {
            let kept = lost.into_stepper().unload();
            // Before the next is opened: two of them would hold what one may.
            if reopened {
                drop((kept, device));
                Device::open(&options)?
            } else {
                kept
            }
        };
        let budget = again(before, requested, &device.memory());
        let admitted = if overridden {
            Admitted::insist(Plan::new(&self.model, &geometry, &profile)?, budget)
        } else {
            admit(&self.model, &geometry, &profile, budget.as_ref(), Overhead::default())?.admitted()?
        };
        let mut engine = self.load_engine(device, admitted, progress)?;
        engine.take_over(account);
        tracing::info!(reopened, ended = ended.len(), "recovered");
        Ok(Recovered { engine, ended, reopened })
    }
}

/// The budget of a load that is done again: what the operator asked before, against what is free now.
fn again(before: Option<Budget>, requested: Option<(u64, &str)>, memory: &MemoryReading) -> Option<Budget> {
    let Some(mut before) = before else { return budget(requested, memory) };
    if let Some((bytes, setting)) = requested
        && before.requested.is_none_or(|already| bytes < already)
    {
        (before.requested, before.setting) = (Some(bytes), Some(setting.to_owned()));
    }
    before.again(reading(memory))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use plimsoll_estimator::MemoryPolicy;
    use plimsoll_runtime::MemorySource;

    #[test]
    fn what_the_operator_asked_holds_for_the_next_load() {
        let memory = |free| MemoryReading::new(Some((free, 1000)), MemorySource::Simulated);
        let policy = MemoryPolicy::default().with_memory(600, "flag --memory").unwrap();
        let policy = policy.with_reserve(100, "flag --reserve");
        let first = policy.budget(reading(&memory(1000)));
        let of = |requested, free| again(first.clone(), requested, &memory(free)).unwrap();
        assert_eq!(of(None, 1000).bytes, 600);
        assert_eq!(of(None, 500).bytes, 400, "the reserve is left again");
        let lower = of(Some((300, "a test")), 1000);
        assert_eq!((lower.bytes, lower.setting.as_deref()), (300, Some("a test")));
        assert_eq!(of(Some((900, "a test")), 1000).bytes, 600, "the stricter holds");
        assert_eq!(again(None, Some((7, "a test")), &memory(500)).unwrap().bytes, 7);
        let silent = MemoryReading::new(None, MemorySource::Simulated);
        assert_eq!(again(first.clone(), None, &silent).unwrap().bytes, 600);
    }
}
