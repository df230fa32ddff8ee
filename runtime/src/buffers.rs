//! The plan's buffers on a device: created all or not at all, every byte of them touched before the first step.

use crate::books::Buffer;
use crate::{Device, RuntimeError, huge_pages};
use plimsoll_estimator::Plan;
use plimsoll_estimator::plan::{ALIGN, Role, View};
use std::ops::Range;

/// The plan's buffers, by index.
pub(crate) struct Buffers {
    all: Vec<Buffer>,
}

impl Buffers {
    /// Creates them. When one fails those before it are freed, and the error names it.
    ///
    /// # Errors
    /// [`RuntimeError::OutOfMemory`] and other errors of [`Device::create_buffer`].
    pub fn create(device: &Device, plan: &Plan) -> Result<Self, RuntimeError> {
        let before = huge_pages::Before::making(device);
        let created = plan
            .buffers
            .iter()
            .map(|b| device.create_buffer(&b.name, b.bytes, usage(b.role), b.role == Role::Upload))
            .collect::<Result<Vec<_>, _>>();
        before.made();
        if created.is_err() {
            // What was created is dropped by now; a poll lets the device let go of it.
            device.poll();
        }
        Ok(Self { all: created? })
    }

    /// The buffer with this index; plans are checked before they get here.
    pub fn get(&self, index: u32) -> Result<&Buffer, RuntimeError> {
        let count = self.all.len();
        self.all
            .get(index as usize)
            .ok_or_else(|| RuntimeError::plan("buffer index", format!("under {count}"), index))
    }

    /// Zeroes every byte that the load does not write: memory that was promised is memory from now on, and what
    /// the kernels read before they write is zero.
    pub fn clear(
        &self,
        plan: &Plan,
        encoder: &mut wgpu::CommandEncoder,
        written: &[View],
    ) -> Result<(), RuntimeError> {
        for (index, planned) in (0u32..).zip(&plan.buffers) {
            // Mapped at creation: zeroed by wgpu.
            if planned.role == Role::Upload {
                continue;
            }
            let buffer = self.get(index)?;
            for gap in gaps(buffer.bytes(), written.iter().filter(|v| v.buffer == index)) {
                encoder.clear_buffer(buffer.raw(), gap.start, Some(gap.end - gap.start));
            }
        }
        Ok(())
    }
}

/// The ranges under `bytes` that no view covers, in whole words.
fn gaps<'a>(bytes: u64, views: impl Iterator<Item = &'a View>) -> Vec<Range<u64>> {
    let mut covered: Vec<(u64, u64)> = views.map(|v| (v.offset, v.offset + v.bytes)).collect();
    covered.sort_unstable();
    let mut gaps = Vec::new();
    let mut at = 0;
    for (start, end) in covered.into_iter().chain([(bytes, bytes)]) {
        if start > at {
            gaps.push(at..start);
        }
        at = at.max(end);
    }
    gaps
}

fn usage(role: Role) -> wgpu::BufferUsages {
    use wgpu::BufferUsages as U;
    match role {
        Role::Matrices | Role::Vectors | Role::Step => U::STORAGE | U::COPY_DST,
        Role::Arena | Role::Kv | Role::Recurrent => U::STORAGE | U::COPY_DST | U::COPY_SRC,
        Role::Params => U::UNIFORM | U::COPY_DST,
        Role::Upload => U::MAP_WRITE | U::COPY_SRC,
        Role::Readback => U::MAP_READ | U::COPY_DST,
        Role::Retained => U::COPY_SRC | U::COPY_DST,
    }
}

/// Whether everything the runtime will index, bind or copy lies where the plan's own buffers are. A plan that was
/// made by the estimator passes; one that was edited may not.
///
/// # Errors
/// [`RuntimeError::EstimateOnly`], [`RuntimeError::Plan`].
pub(crate) fn check(plan: &Plan) -> Result<(), RuntimeError> {
    if let Some(why) = &plan.estimate_only {
        return Err(RuntimeError::EstimateOnly { why: why.clone() });
    }
    for buffer in &plan.buffers {
        if buffer.bytes == 0 || !buffer.bytes.is_multiple_of(ALIGN) {
            let what = format!("bytes of buffer {}", buffer.name);
            return Err(RuntimeError::plan(what, format!("a multiple of {ALIGN}"), buffer.bytes));
        }
    }
    let bytes = |index: u32| plan.buffers.get(index as usize).map_or(0, |b| b.bytes);
    let view = |what: &str, view: &View| {
        let end = view.offset.checked_add(view.bytes);
        let inside = end.is_some_and(|end| end <= bytes(view.buffer));
        if inside && view.bytes > 0 && view.bytes.is_multiple_of(4) && view.offset.is_multiple_of(ALIGN) {
            return Ok(());
        }
        Err(RuntimeError::plan(
            format!("view of {what}"),
            "whole words inside its buffer",
            format!("{view:?}"),
        ))
    };
    let role = |what: &str, index: u32, role: Role, least: u64| match plan.buffers.get(index as usize) {
        Some(b) if b.role == role && b.bytes >= least => Ok(()),
        other => Err(RuntimeError::plan(
            what,
            format!("a {role:?} buffer of at least {least} bytes"),
            format!("{other:?}"),
        )),
    };
    let step = plan.step.words.saturating_mul(4);
    role("step buffer", plan.step_buffer, Role::Step, step)?;
    role("params buffer", plan.params_buffer, Role::Params, plan.params.len() as u64 * ALIGN)?;
    if plan.upload_buffers.is_empty() {
        return Err(RuntimeError::plan("upload buffers", "at least one", 0));
    }
    for &upload in &plan.upload_buffers {
        role("upload buffer", upload, Role::Upload, step)?;
    }
    role("readback buffer", plan.readback_buffer, Role::Readback, 4)?;
    for words in &plan.params {
        if words.len() as u64 * 4 > ALIGN {
            return Err(RuntimeError::plan("words of a parameter slot", ALIGN / 4, words.len()));
        }
    }
    let slots = plan.params.len() as u64;
    let ranges = plan.ranges;
    if u64::from(ranges.first) + u64::from(ranges.count) > slots || u64::from(ranges.whole) >= slots {
        return Err(RuntimeError::plan(
            "slots of the KV ranges",
            format!("under {slots}"),
            format!("{ranges:?}"),
        ));
    }
    plan.vectors.iter().try_for_each(|window| view("vectors", window))?;
    for group in &plan.groups {
        for shard in &group.shards {
            view("a weight shard", &shard.view)?;
            let expected = u64::from(shard.rows) * group.record.stride();
            if shard.view.bytes != expected {
                return Err(RuntimeError::plan("bytes of a weight shard", expected, shard.view.bytes));
            }
        }
        let rows: u64 = group.shards.iter().map(|s| u64::from(s.rows)).sum();
        if rows != u64::from(group.rows) {
            return Err(RuntimeError::plan("rows of the shards of a group", group.rows, rows));
        }
    }
    if plan.step.tables.len() != plan.kv.kinds.len() {
        return Err(RuntimeError::plan("block tables", plan.kv.kinds.len(), plan.step.tables.len()));
    }
    check_recurrent(plan, &view)?;
    for snapshot in &plan.snapshots {
        snapshot.iter().try_for_each(|piece| view("a snapshot", piece))?;
        let got = snapshot.iter().map(|piece| piece.bytes).fold(0, u64::saturating_add);
        let least = crate::snapshots::bytes(plan);
        if got < least || snapshot.iter().any(|piece| role("", piece.buffer, Role::Retained, 0).is_err()) {
            return Err(RuntimeError::plan("bytes of a snapshot", format!("at least {least}"), got));
        }
    }
    for program in &plan.programs {
        for (name, result) in
            [("logits", &program.logits), ("greedy", &program.greedy), ("top_k", &program.top_k)]
        {
            view(name, result)?;
        }
        for dispatch in &program.dispatches {
            for operand in &dispatch.views {
                view(&dispatch.label, operand)?;
            }
            if u64::from(dispatch.params) >= slots {
                return Err(RuntimeError::plan(
                    "a parameter slot",
                    format!("under {slots}"),
                    dispatch.params,
                ));
            }
        }
    }
    Ok(())
}

/// Whether every slot has a place for each copy of its state, and every place its bytes.
fn check_recurrent(
    plan: &Plan,
    view: &impl Fn(&str, &View) -> Result<(), RuntimeError>,
) -> Result<(), RuntimeError> {
    let places = u64::from(plan.geometry.slots) * u64::from(plan.recurrent.copies);
    for layer in &plan.recurrent.layers {
        let mut next = 0;
        for segment in &layer.segments {
            view("recurrent states", &segment.states)?;
            view("convolution tails", &segment.tails)?;
            let expected = [layer.shape.state_bytes(), layer.shape.tail_bytes()]
                .map(|bytes| bytes.saturating_mul(segment.places.into()));
            let got = [segment.states.bytes, segment.tails.bytes];
            if got[0] < expected[0] || got[1] < expected[1] {
                let what = format!("bytes of {} recurrent places", segment.places);
                return Err(RuntimeError::plan(what, format!("{expected:?}"), format!("{got:?}")));
            }
            if u64::from(segment.first) != next {
                return Err(RuntimeError::plan("first place of a recurrent segment", next, segment.first));
            }
            next += u64::from(segment.places);
        }
        if next != places || places == 0 {
            let expected = format!("{} slots × at least 1 copy = {places}", plan.geometry.slots);
            return Err(RuntimeError::plan("places of a recurrent layer", expected, next));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::single_range_in_vec_init)] // one gap is what is meant
    fn gaps_are_what_no_view_covers() {
        let view = |offset, bytes| View { buffer: 0, offset, bytes };
        let of = |views: &[View]| gaps(1024, views.iter());
        assert_eq!(of(&[]), [0..1024]);
        assert_eq!(of(&[view(0, 1024)]), []);
        assert_eq!(of(&[view(512, 100), view(0, 256)]), [256..512, 612..1024]);
        assert_eq!(of(&[view(0, 600), view(256, 100)]), [600..1024]);
    }
}
