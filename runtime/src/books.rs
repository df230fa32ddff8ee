//! The books: every buffer that exists on a device, by name and size. What the plan promises is compared with
//! these, and these with wgpu's own counters.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of live buffers of every device of this process.
static LIVE: AtomicU64 = AtomicU64::new(0);

/// The same.
pub(crate) fn live_in_all() -> u64 {
    LIVE.load(Ordering::Relaxed)
}

/// Entries of one device.
#[derive(Debug, Default)]
pub(crate) struct Books {
    ledger: Mutex<Ledger>,
}

#[derive(Debug, Default)]
struct Ledger {
    /// With the load that each belongs to.
    live: BTreeMap<u64, (u64, Entry)>,
    loads: u64,
    created: u64,
    live_bytes: u64,
    peak_bytes: u64,
}

/// One live buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name in the plan.
    pub name: String,
    /// Its size.
    pub bytes: u64,
}

/// Sums of the books at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Buffers created since the device was opened.
    pub created: u64,
    /// Buffers that exist.
    pub live: u64,
    /// Their bytes.
    pub live_bytes: u64,
    /// The most bytes that ever existed at once.
    pub peak_bytes: u64,
}

impl Books {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // A thread that panicked between two sums of integers left them whole.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn totals(&self) -> Totals {
        let ledger = self.ledger();
        Totals {
            created: ledger.created,
            live: ledger.live.len() as u64,
            live_bytes: ledger.live_bytes,
            peak_bytes: ledger.peak_bytes,
        }
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.ledger().live.values().map(|(_, entry)| entry.clone()).collect()
    }

    /// What belongs to one load, in order of creation.
    pub(crate) fn entries_of(&self, load: u64) -> Vec<Entry> {
        let ledger = self.ledger();
        ledger.live.values().filter(|(of, _)| *of == load).map(|(_, entry)| entry.clone()).collect()
    }

    /// A number that no load of this device has had.
    pub(crate) fn next_load(&self) -> u64 {
        let mut ledger = self.ledger();
        ledger.loads += 1;
        ledger.loads
    }

    fn enter(&self, load: u64, entry: Entry) -> u64 {
        let mut ledger = self.ledger();
        let id = ledger.created;
        ledger.created += 1;
        ledger.live_bytes += entry.bytes;
        LIVE.fetch_add(entry.bytes, Ordering::Relaxed);
        ledger.peak_bytes = ledger.peak_bytes.max(ledger.live_bytes);
        ledger.live.insert(id, (load, entry));
        id
    }

    fn strike(&self, id: u64) {
        let mut ledger = self.ledger();
        if let Some((_, entry)) = ledger.live.remove(&id) {
            ledger.live_bytes -= entry.bytes;
            LIVE.fetch_sub(entry.bytes, Ordering::Relaxed);
        }
    }
}

/// A buffer that stands in the books until it is dropped, and is freed then.
#[derive(Debug)]
pub(crate) struct Buffer {
    raw: wgpu::Buffer,
    books: Arc<Books>,
    id: u64,
    name: String,
}

impl Buffer {
    pub(crate) fn new(raw: wgpu::Buffer, name: &str, books: Arc<Books>, load: u64) -> Self {
        let id = books.enter(load, Entry { name: name.to_owned(), bytes: raw.size() });
        Self { raw, books, id, name: name.to_owned() }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.raw.size()
    }

    pub(crate) fn raw(&self) -> &wgpu::Buffer {
        &self.raw
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // Bind groups may hold the handle for longer; the memory goes now, or when the device is done with it.
        self.raw.destroy();
        self.books.strike(self.id);
    }
}
