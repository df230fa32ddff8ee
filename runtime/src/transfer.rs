//! Traffic between host and device after the load: the plan's own mapped buffers, and nothing else.

use crate::books::Buffer;
use crate::buffers::Buffers;
use crate::point::Point;
use crate::{Device, RuntimeError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const UNMAPPED: u8 = 0;
const PENDING: u8 = 1;
const MAPPED: u8 = 2;
const FAILED: u8 = 3;

/// Whether a buffer is mapped, as the device's callbacks say.
#[derive(Clone, Debug)]
struct State(Arc<AtomicU8>);

impl State {
    fn new(state: u8) -> Self {
        Self(Arc::new(AtomicU8::new(state)))
    }

    fn get(&self) -> u8 {
        self.0.load(Ordering::Acquire)
    }

    fn set(&self, state: u8) {
        self.0.store(state, Ordering::Release);
    }

    /// Asks for a mapping of the first `bytes`; the answer comes with a poll after the device is done with it.
    fn request(&self, buffer: &Buffer, mode: wgpu::MapMode, bytes: u64) {
        self.set(PENDING);
        let state = self.clone();
        buffer.raw().map_async(mode, 0..bytes, move |answer| {
            state.set(if answer.is_ok() { MAPPED } else { FAILED });
        });
    }
}

/// Why a buffer cannot be mapped: because the device is gone, or for a reason of its own.
fn failed(device: &Device, buffer: &Buffer, reason: impl ToString) -> RuntimeError {
    // A device that goes while it works says so when its work is done.
    let _ = device.wait_idle();
    if let Err(lost) = device.health() {
        return lost;
    }
    RuntimeError::Map { buffer: buffer.name().to_owned(), reason: reason.to_string() }
}

/// A buffer that the host writes and the device copies from, mapped whenever the device is not using it.
#[derive(Debug)]
pub(crate) struct Upload {
    state: State,
    used_by: Option<wgpu::SubmissionIndex>,
}

impl Upload {
    /// For a buffer that was created mapped.
    pub fn new() -> Self {
        Self { state: State::new(MAPPED), used_by: None }
    }

    /// Waits until the buffer is mapped, lets `write` write it, and unmaps it for the device.
    pub fn write(
        &mut self,
        device: &Device,
        buffer: &Buffer,
        write: impl FnOnce(wgpu::WriteOnly<'_, [u8]>) -> Result<(), RuntimeError>,
    ) -> Result<(), RuntimeError> {
        if device.harmed(Point::UploadMap) {
            return Err(failed(device, buffer, "ordered by a test"));
        }
        if matches!(self.state.get(), UNMAPPED | FAILED) {
            // An earlier submit failed before it asked for the mapping.
            self.state.request(buffer, wgpu::MapMode::Write, buffer.bytes());
        }
        if self.state.get() == PENDING {
            match self.used_by.take() {
                Some(index) => device.wait(&index)?,
                None => device.wait_idle()?,
            }
        }
        if self.state.get() != MAPPED {
            return Err(failed(device, buffer, "the device refused"));
        }
        let mut view = buffer.raw().get_mapped_range_mut(..).map_err(|e| failed(device, buffer, e))?;
        write(view.slice(..))?;
        drop(view);
        buffer.raw().unmap();
        self.state.set(UNMAPPED);
        Ok(())
    }

    /// The device uses the buffer in this submit; it is mapped again after that.
    pub fn used(&mut self, buffer: &Buffer, index: wgpu::SubmissionIndex) {
        self.used_by = Some(index);
        self.state.request(buffer, wgpu::MapMode::Write, buffer.bytes());
    }
}

/// The plan's upload buffers, in turn.
#[derive(Debug)]
pub(crate) struct Ring {
    buffers: Vec<(u32, Upload)>,
    turn: usize,
}

impl Ring {
    /// Over the buffers with these indices, all created mapped.
    pub fn new(indices: &[u32]) -> Self {
        Self { buffers: indices.iter().map(|&i| (i, Upload::new())).collect(), turn: 0 }
    }

    /// The buffer whose turn it is. It stays its turn until [`Ring::advance`].
    pub fn current<'a>(&mut self, buffers: &'a Buffers) -> Result<(&'a Buffer, &mut Upload), RuntimeError> {
        let turn = self.turn;
        let (index, upload) = self
            .buffers
            .get_mut(turn)
            .ok_or_else(|| RuntimeError::plan("upload buffers", "at least one", 0))?;
        Ok((buffers.get(*index)?, upload))
    }

    /// The next buffer's turn.
    pub fn advance(&mut self) {
        self.turn = (self.turn + 1) % self.buffers.len().max(1);
    }
}

/// Reads the first `bytes` of a readback buffer once `index` is done.
pub(crate) fn read<T>(
    device: &Device,
    buffer: &Buffer,
    bytes: u64,
    index: &wgpu::SubmissionIndex,
    parse: impl FnOnce(&[u8]) -> T,
) -> Result<T, RuntimeError> {
    if device.harmed(Point::ReadbackMap) {
        return Err(failed(device, buffer, "ordered by a test"));
    }
    let state = State::new(UNMAPPED);
    state.request(buffer, wgpu::MapMode::Read, bytes);
    let waited = device.wait(index);
    let parsed = match (waited, state.get()) {
        (Err(error), _) => Err(error),
        (Ok(()), MAPPED) => {
            let view = buffer.raw().get_mapped_range(..bytes).map_err(|e| failed(device, buffer, e));
            view.map(|view| parse(&view))
        }
        (Ok(()), _) => Err(failed(device, buffer, "the device refused")),
    };
    if matches!(state.get(), MAPPED | PENDING) {
        buffer.raw().unmap();
    }
    parsed
}
