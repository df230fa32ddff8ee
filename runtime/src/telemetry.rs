//! Where the bytes are while requests run: in use, kept, and planned; beside what is allocated, what the device reports
//! and what the process occupies. Taken when asked for; nothing of it is remembered but the peaks.
//!
//! Those who listen to `tracing` hear of the spans `load`, `admit` (of a request to a slot), `step` (with its tokens, and
//! the program of the plan that ran it) and `unload`.

use crate::freed::{Freed, FreedBy, Moment};
use crate::step::Stepper;
use crate::{Account, Engine, MemoryReading, Runtime};
use plimsoll_estimator::grouped;
use serde::Serialize;
use std::fmt;

/// Bytes of the pool: pages of keys and values, recurrent states, snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Pages and states that requests hold now.
    pub active: u64,
    /// The pool, as it was planned and is allocated.
    pub reserved: u64,
    /// Kept without being in use: pages for those that begin alike, and snapshots.
    pub retained: u64,
    /// The most that was active since the load.
    pub peak_active: u64,
}

/// Everything that is known about memory at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Telemetry {
    /// The pool.
    #[serde(flatten)]
    pub usage: Usage,
    /// The most bytes of buffers that ever were on the device at once, since it was opened.
    pub peak_allocated: u64,
    /// Requests that hold a slot.
    pub running: usize,
    /// Requests that wait for one.
    pub waiting: usize,
    /// What the device, or the machine where they share memory, says is free.
    pub device: MemoryReading,
    /// Planned and allocated, term by term; what the driver has reserved, and what the process occupies.
    pub account: Account,
}

impl fmt::Display for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Usage { active, reserved, retained, peak_active } = self.usage;
        let said = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), grouped);
        let [active, reserved, retained, peak_active] =
            [active, reserved, retained, peak_active].map(grouped);
        writeln!(
            f,
            "pool      active {active} of {reserved} bytes, retained {retained}, peak active {peak_active}"
        )?;
        write!(
            f,
            "device    allocated {} of {} planned, peak {}; driver reserved {}; free {} by {}",
            grouped(self.account.total.allocated),
            grouped(self.account.total.planned),
            grouped(self.peak_allocated),
            said(self.account.reserved.figure.bytes),
            said(self.device.available),
            self.device.named(),
        )?;
        let process = &self.account.process;
        let [resident, peak, swap] =
            [process.resident, process.peak, process.swap].map(|figure| said(figure.bytes));
        write!(f, "\nprocess   resident {resident}, peak {peak}, swap {swap}")
    }
}

impl<S: Stepper> Engine<S> {
    /// What of the pool is in use, kept, and there.
    pub fn usage(&self) -> Usage {
        self.pool().usage()
    }
}

impl Engine<Runtime> {
    /// What is known about memory now.
    pub fn telemetry(&self) -> Telemetry {
        let device = self.stepper().device();
        Telemetry {
            usage: self.usage(),
            peak_allocated: device.totals().peak_bytes,
            running: self.running(),
            waiting: self.waiting(),
            device: device.memory(),
            account: self.stepper().account(),
        }
    }

    /// [Trims](Engine::trim), and says what came of it.
    pub fn trim_reported(&mut self) -> Freed {
        let before = Moment::take(self.stepper().device());
        let released = self.trim();
        let freed = self.stepper().freed_since(FreedBy::Trim, released, &before);
        freed.log();
        freed
    }
}
