//! A run of device buffers that fill one after the other, none past the adapter's limit.

use crate::plan::{ALIGN, Buffer, Role, Segment, View};

/// Places views in buffers of one role.
pub(crate) struct Pool {
    name: &'static str,
    segment: Segment,
    role: Role,
    max: u64,
    /// Index in the plan of this pool's first buffer.
    base: u32,
    sizes: Vec<u64>,
}

impl Pool {
    /// A pool whose first buffer will have index `base`; buffers hold at most `max` bytes.
    pub fn new(name: &'static str, segment: Segment, role: Role, max: u64, base: usize) -> Self {
        Self { name, segment, role, max: max / ALIGN * ALIGN, base: base as u32, sizes: Vec::new() }
    }

    /// Bytes left in the current buffer; the whole limit when the next view opens a new one.
    pub fn room(&self) -> u64 {
        self.sizes.last().map(|used| self.max - used).filter(|&left| left > 0).unwrap_or(self.max)
    }

    /// The next `bytes`, which must fit a buffer.
    pub fn place(&mut self, bytes: u64) -> View {
        let padded = padded(bytes);
        if self.sizes.last().is_none_or(|used| used + padded > self.max) {
            self.sizes.push(0);
        }
        let buffer = self.base + self.sizes.len() as u32 - 1;
        let offset = self.sizes.last().copied().unwrap_or(0);
        if let Some(used) = self.sizes.last_mut() {
            *used += padded;
        }
        View { buffer, offset, bytes }
    }

    /// The buffers.
    pub fn slabs(self) -> impl Iterator<Item = Slab> {
        let Self { name, segment, role, sizes, .. } = self;
        (0..).zip(sizes).map(move |(i, bytes)| Slab { name, index: Some(i), segment, role, bytes })
    }
}

/// Bytes that a view takes of its buffer.
pub(crate) fn padded(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(ALIGN)
}

/// A buffer before anybody needs its name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slab {
    pub name: &'static str,
    /// What follows the name, of several.
    pub index: Option<u32>,
    pub segment: Segment,
    pub role: Role,
    pub bytes: u64,
}

impl Slab {
    /// Its name.
    pub fn name(&self) -> String {
        self.index.map_or_else(|| self.name.to_owned(), |i| format!("{}.{i}", self.name))
    }
}

impl From<&Slab> for Buffer {
    fn from(slab: &Slab) -> Self {
        let Slab { segment, role, bytes, .. } = *slab;
        Buffer { name: slab.name(), segment, role, bytes }
    }
}
