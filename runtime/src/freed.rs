//! What a trim or an unload gave back, and where the rest of it is. Three witnesses are asked before and after: our own
//! books, the driver's allocator, and the system about this process. They rarely agree, for good reasons, and a
//! difference that is not named looks like a leak.
//!
//! The **residue** is what was released less what the process fell by. It is divided among what readings show, and
//! what is left over says that nobody knows.

use crate::process::{Parts, ProcessMemory};
use crate::{AdapterKind, Device};
use plimsoll_estimator::grouped;
use serde::Serialize;
use std::fmt;

/// What gave something back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FreedBy {
    /// [`Engine::trim`](crate::Engine::trim): what was retained is room for sequences again.
    Trim,
    /// [`Runtime::unload`](crate::Runtime::unload): every buffer of the load.
    Unload,
}

/// Where a part of the residue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Room of the plan, whose buffers stay.
    Plan,
    /// In what the adapter has apart from the process.
    Adapter,
    /// Nowhere: since before the load the process had not grown by so much. Never touched, or taken from what it had kept
    /// of earlier loads.
    NeverResident,
    /// The other way round, below 0: since before the load the process had grown by that much more, on the host.
    HostBeside,
    /// Blocks that the driver's allocator keeps for small buffers.
    DriverBlocks,
    /// Pages of mapped files, which the system takes back when it needs them.
    MappedFiles,
    /// What the C library keeps of its heap.
    Heap,
    /// What the C library keeps of the heaps of other threads: mostly those in which a driver compiles.
    ThreadHeaps,
    /// No reading says.
    Unexplained,
}

impl Place {
    /// Whether the process has it still.
    fn in_process(self) -> bool {
        !matches!(self, Place::Plan | Place::Adapter | Place::NeverResident | Place::HostBeside)
    }

    fn text(self) -> &'static str {
        match self {
            Place::Plan => "stay in the plan's buffers, as room",
            Place::Adapter => "were the adapter's own memory, not the process's",
            Place::NeverResident => "had never come to the process since the load (untouched, or reused)",
            Place::HostBeside => "beside the load's buffers",
            Place::DriverBlocks => "in blocks that the driver's allocator keeps",
            Place::MappedFiles => {
                "in pages of mapped files (the checkpoint, libraries), which the system takes back"
            }
            Place::Heap => "in the heap of the C library",
            Place::ThreadHeaps => "in its heaps for other threads (a driver's compiler)",
            Place::Unexplained => "that no reading names",
        }
    }
}

/// A part of the residue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// Where it is.
    pub place: Place,
    /// Bytes; below 0 where there is less than before.
    pub bytes: i64,
}

/// What was released, and what came of it. Falls are below 0 where something has grown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Freed {
    /// What gave it back.
    pub by: FreedBy,
    /// Bytes that we released: by the books of the pool for a trim, by those of the device for an unload.
    pub released: u64,
    /// What the driver's reservation for the whole device fell by; `None` where nobody says.
    pub reservation: Option<i64>,
    /// What the resident memory of the process fell by; `None` where nobody says.
    pub resident: Option<i64>,
    /// What its swapped memory fell by, as well; `None` where nobody says.
    pub swap: Option<i64>,
    /// What was released less what the process fell by, swap included; `None` where nobody says.
    pub residue: Option<i64>,
    /// Where the residue is: its sum, without parts of nothing.
    pub parts: Vec<Part>,
}

/// All readings at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// Bytes of the load's buffers by the books.
    live: u64,
    reserved: Option<u64>,
    process: ProcessMemory,
    parts: Parts,
}

/// How much more `then` was than `now` is.
fn fall(then: u64, now: u64) -> i64 {
    let difference = i128::from(then) - i128::from(now);
    i64::try_from(difference).unwrap_or(if difference < 0 { i64::MIN } else { i64::MAX })
}

/// The same of two readings; `None` where there is none.
fn fell(then: Option<u64>, now: Option<u64>) -> Option<i64> {
    Some(fall(then?, now?))
}

impl Moment {
    pub fn take(device: &Device) -> Self {
        Self {
            live: device.own_buffers().iter().map(|entry| entry.bytes).fold(0, u64::saturating_add),
            reserved: device.reservation().map(|reservation| reservation.reserved),
            process: ProcessMemory::take(),
            parts: Parts::take(),
        }
    }

    pub fn live(&self) -> u64 {
        self.live
    }

    /// What the process takes of the machine, in memory or in swap.
    fn occupied(&self) -> Option<u64> {
        Some(self.process.resident.bytes?.saturating_add(self.process.swap.bytes.unwrap_or(0)))
    }
}

impl Freed {
    /// What came of releasing `released` bytes between two moments; `base` was before the load, or is `before` where there
    /// is no other.
    pub(crate) fn between(
        by: FreedBy,
        released: u64,
        [base, before, after]: [&Moment; 3],
        adapter: AdapterKind,
    ) -> Self {
        let mut freed = Self {
            by,
            released,
            reservation: fell(before.reserved, after.reserved),
            resident: fell(before.process.resident.bytes, after.process.resident.bytes),
            swap: fell(before.process.swap.bytes, after.process.swap.bytes),
            residue: None,
            parts: Vec::new(),
        };
        let [Some(first), Some(then), Some(now)] = [base, before, after].map(Moment::occupied) else {
            return freed;
        };
        freed.residue = Some(fall(released, 0).saturating_sub(fall(then, now)));
        // From here on the parts add up, whatever the readings are: each takes from what is left.
        let gone = fall(before.live, after.live);
        let apart = matches!(adapter, AdapterKind::Discrete | AdapterKind::Virtual);
        let absent = gone.saturating_sub(fall(then, first));
        let place = match absent {
            ..0 => Place::HostBeside,
            _ if apart => Place::Adapter,
            _ => Place::NeverResident,
        };
        freed.part(Place::Plan, fall(released, 0).saturating_sub(gone));
        freed.part(place, absent);
        let mut left = fall(now, first);
        let mut take = |place, bytes: i64| {
            left = left.saturating_sub(bytes);
            freed.part(place, bytes);
            left
        };
        take(Place::MappedFiles, fell(after.parts.files, base.parts.files).unwrap_or(0));
        take(Place::Heap, fell(after.parts.heap, base.parts.heap).unwrap_or(0));
        let left = take(Place::ThreadHeaps, fell(after.parts.arenas, base.parts.arenas).unwrap_or(0));
        // Blocks may lie in the heap, where they are counted already, and need not have been touched.
        let blocks = fell(after.reserved, base.reserved).filter(|_| !apart).unwrap_or(0);
        let rest = take(Place::DriverBlocks, blocks.clamp(0, left.max(0)));
        freed.part(Place::Unexplained, rest);
        freed
    }

    fn part(&mut self, place: Place, bytes: i64) {
        if bytes != 0 {
            self.parts.push(Part { place, bytes });
        }
    }

    /// What the process fell by, in memory and in swap.
    pub fn process(&self) -> Option<i64> {
        Some(self.resident?.saturating_add(self.swap.unwrap_or(0)))
    }

    /// What the process still has of everything it has taken since before the load, or since before the trim; `None` where
    /// nobody says.
    pub fn left(&self) -> Option<i64> {
        let left = self.parts.iter().filter(|part| part.place.in_process());
        self.residue.map(|_| left.map(|part| part.bytes).fold(0, i64::saturating_add))
    }

    /// Says so to those who listen.
    pub(crate) fn log(&self) {
        let Self { by, released, reservation, residue, .. } = self;
        let process = self.process();
        tracing::info!(?by, released, reservation, process, residue, "freed: {self}");
    }
}

/// Bytes with a sign where they are below 0.
fn signed(bytes: i64) -> String {
    format!("{}{}", if bytes < 0 { "-" } else { "" }, grouped(bytes.unsigned_abs()))
}

impl fmt::Display for Freed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = |bytes: Option<i64>| bytes.map_or("unknown".to_owned(), signed);
        let by = match self.by {
            FreedBy::Trim => "trim",
            FreedBy::Unload => "unload",
        };
        write!(
            f,
            "{by} released {} bytes; the driver's reservation fell by {}, the process by {} (swap by {})",
            grouped(self.released),
            said(self.reservation),
            said(self.process()),
            said(self.swap),
        )?;
        write!(f, "; residue {}", said(self.residue))?;
        let of =
            |in_process: bool| self.parts.iter().filter(move |part| part.place.in_process() == in_process);
        for part in of(false).filter(|part| part.place != Place::HostBeside) {
            write!(f, ": {} bytes {}", signed(part.bytes), part.place.text())?;
        }
        let Some(left) = self.left().filter(|_| of(true).next().is_some()) else { return Ok(()) };
        let since = if self.by == FreedBy::Unload { "before the load" } else { "before" };
        let than = if left < 0 { "smaller" } else { "larger" };
        write!(f, "; the process is {than} by {} than {since}", grouped(left.unsigned_abs()))?;
        if let Some(beside) = self.parts.iter().find(|part| part.place == Place::HostBeside) {
            let (bytes, place) = (grouped(beside.bytes.unsigned_abs()), beside.place.text());
            write!(f, ", having grown by {bytes} {place}")?;
        }
        for (at, part) in of(true).enumerate() {
            let separator = if at == 0 { ": " } else { ", " };
            let more = if part.bytes < 0 { "less" } else { "more" };
            let bytes = grouped(part.bytes.unsigned_abs());
            write!(f, "{separator}{bytes} bytes {more} {}", part.place.text())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::process::Figure;
    use proptest::prelude::*;

    fn moment(live: u64, reserved: u64, resident: u64, swap: u64, files: u64, heap: u64) -> Moment {
        let arenas = Some(heap / 2);
        let figure = |bytes| Figure::new(Some(bytes), "a test");
        Moment {
            live,
            reserved: Some(reserved),
            process: ProcessMemory { resident: figure(resident), peak: figure(resident), swap: figure(swap) },
            parts: Parts { files: Some(files), heap: Some(heap - heap / 2), arenas },
        }
    }

    fn parts(freed: &Freed) -> Vec<(Place, i64)> {
        freed.parts.iter().map(|part| (part.place, part.bytes)).collect()
    }

    #[test]
    fn every_byte_that_a_reading_shows_is_named() {
        // 1,000 were allocated, of which 700 came to be resident, with 400 for the host; 30 are swapped.
        let base = moment(0, 50, 5000, 0, 100, 40);
        let before = moment(1000, 1250, 6070, 30, 130, 90);
        // The driver keeps a block of 200; the files stay, and 20 of the heap; of the rest nobody knows.
        let after = moment(0, 250, 5300, 0, 130, 60);
        let freed = Freed::between(FreedBy::Unload, 1000, [&base, &before, &after], AdapterKind::Cpu);
        assert_eq!((freed.reservation, freed.process()), (Some(1000), Some(800)));
        assert_eq!((freed.resident, freed.swap, freed.residue), (Some(770), Some(30), Some(200)));
        assert_eq!(
            parts(&freed),
            [
                (Place::HostBeside, -100),
                (Place::MappedFiles, 30),
                (Place::Heap, 10),
                (Place::ThreadHeaps, 10),
                (Place::DriverBlocks, 200),
                (Place::Unexplained, 50),
            ]
        );
        assert_eq!(freed.left(), Some(300));
        let text = freed.to_string();
        assert!(text.starts_with(
            "unload released 1,000 bytes; the driver's reservation fell by 1,000, the process by 800"
        ));
        let grown =
            "residue 200; the process is larger by 300 than before the load, having grown by 100 beside";
        assert!(text.contains(grown), "{text}");
        assert!(text.contains(": 30 bytes more in pages of mapped files"), "{text}");
        let last =
            "200 bytes more in blocks that the driver's allocator keeps, 50 bytes more that no reading names";
        assert!(text.ends_with(last), "{text}");
        assert!(!text.contains('-'), "{text}");
    }

    #[test]
    fn what_the_adapter_has_to_itself_is_not_looked_for_in_the_process() {
        let [base, before, after] = [
            moment(0, 0, 500, 0, 10, 10),
            moment(9000, 9000, 600, 0, 10, 10),
            moment(0, 4000, 570, 0, 10, 10),
        ];
        let of = |kind| parts(&Freed::between(FreedBy::Unload, 9000, [&base, &before, &after], kind));
        assert_eq!(of(AdapterKind::Discrete), [(Place::Adapter, 8900), (Place::Unexplained, 70)]);
        // Blocks that were never touched take nothing of the process.
        assert_eq!(of(AdapterKind::Cpu), [(Place::NeverResident, 8900), (Place::DriverBlocks, 70)]);
    }

    #[test]
    fn a_trim_makes_room_in_the_plan_and_no_process_smaller() {
        let before = moment(1000, 1000, 5000, 0, 100, 40);
        let after = Moment { process: moment(0, 0, 5012, 0, 0, 0).process, ..before };
        let freed = Freed::between(FreedBy::Trim, 256, [&before, &before, &after], AdapterKind::Cpu);
        assert_eq!((freed.process(), freed.residue), (Some(-12), Some(268)));
        assert_eq!(parts(&freed), [(Place::Plan, 256), (Place::Unexplained, 12)]);
        assert!(freed.to_string().contains("the process by -12"), "{freed}");
        let room = "residue 268: 256 bytes stay in the plan's buffers, as room; the process is larger by 12 than before: 12";
        assert!(freed.to_string().contains(room), "{freed}");
        let smaller = Moment { process: moment(0, 0, 4996, 0, 0, 0).process, ..before };
        let freed = Freed::between(FreedBy::Trim, 256, [&before, &before, &smaller], AdapterKind::Cpu);
        let less = "the process is smaller by 4 than before: 4 bytes less that no reading names";
        assert!(freed.to_string().ends_with(less), "{freed}");
    }

    #[test]
    fn where_nobody_says_nothing_is_claimed() {
        let unknown = Figure::new(None, "");
        let process = ProcessMemory { resident: unknown, peak: unknown, swap: unknown };
        let at = |live| Moment { live, reserved: None, process, parts: Parts::default() };
        let (base, before) = (at(0), at(9));
        let freed = Freed::between(FreedBy::Unload, 9, [&base, &before, &base], AdapterKind::Cpu);
        assert_eq!((freed.reservation, freed.residue, freed.parts.len()), (None, None, 0));
        assert!(freed.to_string().ends_with("residue unknown"), "{freed}");
    }

    proptest! {
        #[test]
        fn the_parts_are_the_residue(
            numbers in prop::collection::vec(0_u64..1 << 40, 18),
            released in 0_u64..1 << 40,
            kind in 0_usize..3,
        ) {
            let at = |n: usize| {
                let n = &numbers[6 * n..];
                moment(n[0], n[1], n[2], n[3], n[4], n[5])
            };
            let kind = [AdapterKind::Cpu, AdapterKind::Discrete, AdapterKind::Integrated][kind];
            let freed = Freed::between(FreedBy::Unload, released, [&at(0), &at(1), &at(2)], kind);
            let sum: i64 = freed.parts.iter().map(|part| part.bytes).sum();
            prop_assert_eq!(Some(sum), freed.residue);
            prop_assert_eq!(freed.residue, freed.process().map(|fell| released as i64 - fell));
        }
    }
}
