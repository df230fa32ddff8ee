//! The staging buffer: what stands between a checkpoint and the device while it loads, and no more than the plan says.

use super::run::{Run, pack};
use crate::account::STAGING;
use crate::books::Buffer;
use crate::buffers::Buffers;
use crate::transfer::Upload;
use crate::{Device, RuntimeError};
use plimsoll_estimator::Plan;
use plimsoll_estimator::plan::ALIGN;
use rayon::prelude::*;

/// Runs of one flush: what is kept about many short ones must not outgrow the bytes they stand for.
const MOST_RUNS: usize = 1024;

/// Two halves where a half holds the longest row, so that the host packs one while the device copies the other; else
/// one.
pub(super) struct Staging<'a> {
    device: &'a Device,
    buffers: &'a Buffers,
    halves: Vec<(Buffer, Upload)>,
    turn: usize,
    /// Bytes that one flush may hold.
    room: usize,
    batch: Vec<Run<'a>>,
    used: usize,
    /// Where a batch is packed: mappings may be write-combining memory, which is best written once and in order.
    packed: Vec<u8>,
}

impl<'a> Staging<'a> {
    pub fn new(device: &'a Device, plan: &Plan, buffers: &'a Buffers) -> Result<Self, RuntimeError> {
        let longest = plan.groups.iter().map(|g| g.record.stride()).max().unwrap_or(0).max(ALIGN);
        let half = plan.staging_bytes / 2 / ALIGN * ALIGN;
        let sizes =
            if half >= longest { vec![half, plan.staging_bytes - half] } else { vec![plan.staging_bytes] };
        let usage = wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC;
        let room = sizes.iter().min().map_or(0, |&bytes| bytes as usize);
        let halves = (0..)
            .zip(sizes)
            .map(|(i, bytes)| {
                let buffer = device.create_buffer(&format!("{STAGING}.{i}"), bytes, usage, true)?;
                Ok((buffer, Upload::new()))
            })
            .collect::<Result<_, RuntimeError>>()?;
        Ok(Self { device, buffers, halves, turn: 0, room, batch: Vec::new(), used: 0, packed: Vec::new() })
    }

    /// Takes a run in, flushing as often as it takes. `flushed` is told of every run that was flushed.
    pub fn push(&mut self, mut run: Run<'a>, flushed: &mut dyn FnMut(&Run<'a>)) -> Result<(), RuntimeError> {
        while run.units > 0 {
            let fit = (self.room - self.used) / run.to.max(1);
            if fit == 0 || self.batch.len() == MOST_RUNS {
                if self.batch.is_empty() {
                    let what = "bytes of the staging buffer";
                    return Err(RuntimeError::plan(what, format!("at least {}", run.to), self.room));
                }
                self.flush(flushed)?;
                continue;
            }
            let (head, tail) = run.split(fit);
            self.used += head.bytes();
            self.batch.push(head);
            run = tail;
        }
        Ok(())
    }

    /// Packs what was taken in into the half whose turn it is and has the device copy it, then tells of each run.
    pub fn flush(&mut self, flushed: &mut dyn FnMut(&Run<'a>)) -> Result<(), RuntimeError> {
        self.used = 0;
        if self.batch.is_empty() {
            return Ok(());
        }
        let turn = self.turn;
        self.turn = (turn + 1) % self.halves.len();
        let (buffer, upload) = &mut self.halves[turn];
        self.packed.resize(self.batch.iter().map(Run::bytes).sum(), 0);
        pack(&self.batch, &mut self.packed)?;
        let packed = &self.packed;
        upload.write(self.device, buffer, |out| {
            copy(out.into_slice(..packed.len()), packed);
            Ok(())
        })?;
        let mut encoder = self.device.encoder("weights");
        let mut at = 0;
        for run in &self.batch {
            let bytes = run.bytes() as u64;
            let target = self.buffers.get(run.buffer)?.raw();
            encoder.copy_buffer_to_buffer(buffer.raw(), at, target, run.offset, bytes);
            at += bytes;
        }
        upload.used(buffer, self.device.submit(encoder.finish())?);
        self.batch.drain(..).for_each(|run| flushed(&run));
        Ok(())
    }
}

/// Bytes that one task copies: a mapping can be divided among threads in pieces of one size only.
const PIECE: usize = 64 << 10;

/// Copies into a mapping, in tasks side by side.
fn copy(out: wgpu::WriteOnly<'_, [u8]>, packed: &[u8]) {
    let (pieces, mut rest) = out.into_chunks::<PIECE>();
    let (from, tail) = packed.as_chunks::<PIECE>();
    let tasks: Vec<_> = pieces.into_iter().zip(from).collect();
    tasks.into_par_iter().for_each(|(to, from)| wgpu::WriteOnly::<[u8]>::from(to).copy_from_slice(from));
    rest.copy_from_slice(tail);
}
