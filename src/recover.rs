//! After a fault: the same plan once more, on the same device or, where that was lost, on one that is opened anew.

use crate::{Error, Opened, budget};
use plimsoll_estimator::verdict::{Overhead, admit};
use plimsoll_runtime::{Device, Engine, Event, LoadProgress, Runtime, RuntimeError};
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
    /// plan's geometry fits what is free now under the operator's ceiling (`requested`, with the name of its setting),
    /// and whether the device still gives what the plan was made for.
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
        let budget = budget(requested, &device.memory());
        let admitted =
            admit(&self.model, &geometry, &profile, budget.as_ref(), Overhead::default())?.admitted()?;
        let mut engine = self.load_engine(device, admitted, progress)?;
        engine.take_over(account);
        tracing::info!(reopened, ended = ended.len(), "recovered");
        Ok(Recovered { engine, ended, reopened })
    }
}
