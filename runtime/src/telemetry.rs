//! Where the bytes are while requests run: in use, kept, and planned; beside what is allocated, what the device reports
//! and what the process occupies. Taken when asked for; nothing of it is remembered but the peaks.
//!
//! Those who listen to `tracing` hear of the spans `load`, `admit` (of a request to a slot), `step` (with its tokens, and
//! the program of the plan that ran it) and `unload`; and, at the level of debugging, of all these figures in events
//! `telemetry` (field `after`): when a model was loaded, when something was trimmed, when a request has ended, and when a
//! model was unloaded.

use crate::freed::{Freed, FreedBy, Moment};
use crate::request::{Event, What};
use crate::step::Stepper;
use crate::{Account, Device, Engine, MemoryReading, Runtime};
use plimsoll_estimator::{Plan, grouped};
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

impl Telemetry {
    /// Of a plan on a device, whose pool is in this use by so many requests that run and that wait.
    pub(crate) fn of(device: &Device, plan: &Plan, usage: Usage, [running, waiting]: [usize; 2]) -> Self {
        Self {
            usage,
            peak_allocated: device.totals().peak_bytes,
            running,
            waiting,
            device: device.memory(),
            account: Account::take(device, plan),
        }
    }

    /// Whether anybody hears of it: taking it costs a few reads of the system's files.
    pub(crate) fn is_heard() -> bool {
        tracing::enabled!(tracing::Level::DEBUG)
    }

    /// Tells those who listen, with the request after whose end it is.
    pub(crate) fn log(&self, after: &str, request: Option<u64>) {
        let Usage { active, reserved, retained, peak_active } = self.usage;
        let (process, total) = (&self.account.process, &self.account.total);
        tracing::debug!(
            after,
            request,
            active,
            reserved,
            retained,
            peak_active,
            planned = total.planned,
            allocated = total.allocated,
            peak_allocated = self.peak_allocated,
            running = self.running,
            waiting = self.waiting,
            resident = process.resident.bytes,
            peak_resident = process.peak.bytes,
            swap = process.swap.bytes,
            device_reserved = self.account.reserved.figure.bytes,
            device_free = self.device.available,
            device_source = self.device.named(),
            "telemetry"
        );
    }
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

    /// Tells those who listen what is known about memory, of each request that has ended where it is after such.
    pub(crate) fn tell(&self, after: &str, requests: impl IntoIterator<Item = Option<u64>>) {
        let mut requests = requests.into_iter().peekable();
        if requests.peek().is_none() || !Telemetry::is_heard() {
            return;
        }
        if let Some(telemetry) = self.stepper().telemetry(self.usage(), [self.running(), self.waiting()]) {
            requests.for_each(|request| telemetry.log(after, request));
        }
    }

    /// The same of the requests whose last events are among these.
    pub(crate) fn tell_of_ends(&self, events: &[Event]) {
        let ended = |event: &Event| matches!(event.what, What::Done(_) | What::Failed(_));
        self.tell("request", events.iter().filter(|event| ended(event)).map(|event| Some(event.request.0)));
    }
}

impl Engine<Runtime> {
    /// What is known about memory now.
    pub fn telemetry(&self) -> Telemetry {
        let runtime = self.stepper();
        Telemetry::of(runtime.device(), self.plan(), self.usage(), [self.running(), self.waiting()])
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::Request;
    use crate::fake::{Fake, PAGE_BYTES, SNAPSHOT_BYTES, caching_plan};
    use plimsoll_estimator::plan::{RecurrentSegment, View};

    fn ask(engine: &mut Engine<Fake>, length: u32, max_new: u32) {
        let prompt = (0..length).map(|i| i % 90).collect();
        engine.submit(Request { prompt, max_new, ..Request::default() }).unwrap();
    }

    /// Steps until nobody is left; the most that was active.
    fn drain(engine: &mut Engine<Fake>) -> u64 {
        let mut most = 0;
        while !engine.is_idle() {
            engine.step();
            let usage = engine.usage();
            most = most.max(usage.active);
            assert!(usage.active <= usage.peak_active && usage.active + usage.retained <= usage.reserved);
        }
        most
    }

    #[test]
    fn the_life_of_a_request_in_bytes() {
        let mut engine = Engine::new(Fake::new(caching_plan(0, 128, 2, 64, 0))).unwrap();
        let reserved = 2 * 4 * PAGE_BYTES;
        let fresh = Usage { reserved, ..Usage::default() };
        assert_eq!(engine.usage(), fresh);
        // 49 tokens are two pages of 32; a request that waits has none.
        ask(&mut engine, 40, 9);
        assert_eq!(engine.usage(), fresh);
        engine.step();
        let active = Usage { active: 2 * PAGE_BYTES, peak_active: 2 * PAGE_BYTES, ..fresh };
        assert_eq!(engine.usage(), active);
        // One that begins alike shares the first page, which is one page.
        ask(&mut engine, 40, 9);
        engine.step();
        assert_eq!(engine.usage().active, 3 * PAGE_BYTES);
        drain(&mut engine);
        let kept = Usage { retained: PAGE_BYTES, peak_active: 3 * PAGE_BYTES, ..fresh };
        assert_eq!(engine.usage(), kept);
        assert_eq!(engine.trim(), PAGE_BYTES);
        assert_eq!(engine.usage(), Usage { peak_active: 3 * PAGE_BYTES, ..fresh });
        engine.pool().check().unwrap();
    }

    #[test]
    fn states_and_snapshots_count() {
        // Full attention, a window and a recurrent layer, with two snapshots.
        let mut plan = caching_plan(3, 128, 2, 64, 2);
        let view = |bytes| View { buffer: 0, offset: 0, bytes };
        plan.recurrent.layers[0].segments =
            vec![RecurrentSegment { first: 0, places: 2, states: view(1000), tails: view(600) }];
        let pages: u64 = plan.kv.kinds.iter().map(|kind| u64::from(kind.pages)).sum();
        let ring = u64::from(plan.kv.kinds[1].pages_per_slot);
        let mut engine = Engine::new(Fake::new(plan)).unwrap();
        assert_eq!(engine.usage().reserved, pages * PAGE_BYTES + 1600 + 2 * SNAPSHOT_BYTES);
        ask(&mut engine, 70, 9);
        let most = drain(&mut engine);
        assert_eq!(most, (3 + ring) * PAGE_BYTES + 800);
        let usage = engine.usage();
        assert_eq!((usage.active, usage.retained), (0, 2 * PAGE_BYTES + SNAPSHOT_BYTES));
        engine.trim();
        assert_eq!(engine.usage().retained, 0);
    }

    /// Whoever fails or is cancelled leaves nothing in use.
    #[test]
    fn nothing_stays_active_on_any_way_out() {
        let mut engine = Engine::new(Fake::new(caching_plan(2, 128, 2, 16, 1))).unwrap();
        for _ in 0..2 {
            ask(&mut engine, 60, 9);
        }
        engine.step();
        assert!(engine.usage().active > 0);
        engine.end_all();
        assert_eq!(engine.usage().active, 0);
        ask(&mut engine, 60, 9);
        engine.step();
        engine.stepper_mut().lost = true;
        engine.step();
        assert_eq!((engine.usage().active, engine.usage().retained), (0, 0));
    }
}
