//! A loaded plan: its buffers, pipelines and bind groups, and the steps it runs. After the load nothing is
//! allocated on the device.

use crate::account;
use crate::buffers::{self, Buffers};
use crate::freed::{Freed, FreedBy, Moment};
use crate::pipelines::Pipelines;
use crate::profiler::Profiler;
use crate::readings::{Watch, still_fits};
use crate::recording::{self, Cursor, Recordings};
use crate::recurrent::Standing;
use crate::snapshots;
use crate::tables::Tables;
use crate::telemetry::{Telemetry, Usage};
use crate::transfer::{self, Ring};
use crate::{
    Account, Cancel, Candidates, Device, MemoryChange, RuntimeError, Sampling, StepInput, StepOutput,
    Stepper, weights,
};
use plimsoll_estimator::plan::View;
use plimsoll_estimator::{Admitted, Plan};
use plimsoll_kernels::ops::top_k;
use plimsoll_models::Model;
use plimsoll_models::checkpoint::Checkpoint;
use std::sync::Mutex;
use std::time::Instant;

/// How far a load is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadProgress<'a> {
    /// Pipelines compiled, of how many.
    Pipelines {
        /// Compiled.
        done: usize,
        /// In all.
        total: usize,
    },
    /// Bytes of weights on the device, of how many. Told for every tensor of each batch that was copied; packed
    /// weights go by the name of their codes.
    Weights {
        /// The tensor, by its name in the checkpoint.
        tensor: &'a str,
        /// Bytes of the tensor on the device.
        tensor_done: u64,
        /// Bytes of the tensor in all, as the device keeps them.
        tensor_total: u64,
        /// Bytes of everything on the device.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
}

/// An admitted plan on a device.
pub struct Runtime {
    pub(crate) device: Device,
    pub(crate) admitted: Admitted,
    pub(crate) buffers: Buffers,
    pipelines: Pipelines,
    recordings: Recordings,
    tables: Tables,
    standing: Standing,
    pub(crate) ring: Ring,
    watch: Watch,
    pub(crate) profiler: Profiler,
    /// What was there before the load.
    before: Moment,
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plan = self.admitted.plan();
        f.debug_struct("Runtime")
            .field("model", &plan.model.name)
            .field("device", &self.device.info().name)
            .field("bytes", &plan.total())
            .finish_non_exhaustive()
    }
}

/// What a step reads back.
struct ReadBack {
    view: View,
    bytes: u64,
}

impl Runtime {
    /// Loads an admitted plan: checks it against device, model, checkpoint and what is free now, creates its buffers all or none,
    /// compiles its pipelines and uploads its weights, and sees that exactly what was planned is allocated, with the
    /// load's staging and after it. When anything fails everything is freed again, and the
    /// device can be used for another load unless it was lost.
    ///
    /// # Errors
    /// [`RuntimeError`], naming the tensor, limit, buffer or kernel.
    pub fn load(
        device: Device,
        model: &Model,
        checkpoint: &Checkpoint,
        admitted: Admitted,
        progress: &mut (dyn FnMut(LoadProgress<'_>) + Send),
    ) -> Result<Self, RuntimeError> {
        let plan = admitted.plan();
        let _span = tracing::info_span!("load", model = plan.model.name, bytes = plan.total()).entered();
        let kept = device.clone();
        let loaded = Self::load_all(device, model, checkpoint, admitted, progress);
        if loaded.is_err() {
            // What was uploaded may still be on its way: its buffers are freed once the device is done with it.
            let _ = kept.wait_idle();
        }
        loaded
    }

    fn load_all(
        device: Device,
        model: &Model,
        checkpoint: &Checkpoint,
        admitted: Admitted,
        progress: &mut (dyn FnMut(LoadProgress<'_>) + Send),
    ) -> Result<Self, RuntimeError> {
        let plan = admitted.plan();
        device.check("the device")?;
        expect_profile(&device, plan)?;
        still_fits(&admitted, &device.memory())?;
        buffers::check(plan)?;
        weights::check(model, checkpoint)?;
        let tables = Tables::new(plan, &model.ropes)?;

        // From here on the books know what is this load's.
        let device = device.for_load();
        let before = Moment::take(&device);
        let buffers = Buffers::create(&device, plan)?;
        account::check(&device, plan, 0)?;
        let total = plan.kernels.len();
        // Said before the first, too: what compiling takes is told from what the buffers took.
        progress(LoadProgress::Pipelines { done: 0, total });
        let shared = Mutex::new(&mut *progress);
        let pipelines = Pipelines::compile(&device, &plan.kernels, |done| {
            if let Ok(mut progress) = shared.lock() {
                progress(LoadProgress::Pipelines { done, total });
            }
        })?;
        let recordings = Recordings::new(&device, plan, &buffers, &pipelines)?;
        weights::upload(&device, plan, model, checkpoint, &buffers, progress)?;
        account::check(&device, plan, 0)?;
        tracing::info!(
            model = plan.model.name,
            bytes = plan.total(),
            pipelines = total,
            bind_groups = recordings.groups(),
            "loaded"
        );
        let (ring, standing) = (Ring::new(&plan.upload_buffers), Standing::new(plan));
        // What others do from here on is a change.
        let watch = Watch::new(device.memory(), plan.geometry.slots);
        let profiler = Profiler::default();
        let loaded = Self {
            device,
            buffers,
            pipelines,
            recordings,
            tables,
            standing,
            ring,
            watch,
            profiler,
            before,
            admitted,
        };
        Ok(loaded)
    }

    /// Frees everything and gives the device back.
    pub fn unload(self) -> Device {
        self.unload_reported().0
    }

    /// The same, with what was released and what came of it.
    pub fn unload_reported(self) -> (Device, Freed) {
        let _span = tracing::info_span!("unload", model = self.plan().model.name).entered();
        let (device, base) = (self.device.clone(), self.before);
        let before = Moment::take(&device);
        let plan = Telemetry::is_heard().then(|| self.plan().clone());
        drop(self);
        // A step that was cancelled may still be on its way.
        let _ = device.wait_idle();
        let after = Moment::take(&device);
        let released = before.live().saturating_sub(after.live());
        let freed = Freed::between(FreedBy::Unload, released, [&base, &before, &after], device.info().kind);
        freed.log();
        if let Some(plan) = plan {
            Telemetry::of(&device, &plan, Usage::default(), [0, 0]).log("unload", None);
        }
        (device, freed)
    }

    /// What came of something that released `released` bytes since `before`.
    pub(crate) fn freed_since(&self, by: FreedBy, released: u64, before: &Moment) -> Freed {
        let after = Moment::take(&self.device);
        Freed::between(by, released, [before, before, &after], self.device.info().kind)
    }

    /// The admitted plan.
    pub fn admitted(&self) -> &Admitted {
        &self.admitted
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What was planned beside what is allocated, and beside what wgpu, the driver and the system say now. The load has
    /// seen to it that they agree.
    pub fn account(&self) -> Account {
        Account::take(&self.device, self.admitted.plan())
    }

    /// Free memory at the end of the load, and now.
    pub fn memory_change(&self) -> MemoryChange {
        self.watch.change(self.device.memory())
    }

    /// Free memory at the end of the load, and when the last sequence began; `None` before any has.
    pub fn memory_when_last_begun(&self) -> Option<&MemoryChange> {
        self.watch.last()
    }

    /// Records and submits the step that stands in the tables. Answers the last submit.
    fn run(
        &mut self,
        sampling: Sampling,
        cancel: Option<&Cancel>,
        result: Option<&ReadBack>,
    ) -> Result<wgpu::SubmissionIndex, RuntimeError> {
        let plan = self.admitted.plan();
        let shape = self.tables.shape();
        let index = plan
            .programs
            .iter()
            .position(|p| shape.tokens <= p.max_tokens)
            .ok_or_else(|| RuntimeError::plan("programs", "one for every step", shape.tokens))?;
        // A decode step is one submit: its work is bounded by the slots, and waiting costs more than it does.
        let decode = shape.tokens <= plan.geometry.slots;
        let budget = if decode { u64::MAX } else { plan.profile.work_budget };
        let alone = self.profiler.alone();
        let budget = if alone { 0 } else { budget };
        let (upload_buffer, upload) = self.ring.current(&self.buffers)?;
        let tables = &self.tables;
        upload.write(&self.device, upload_buffer, |mut out| {
            for range in tables.used() {
                let bytes: &[u8] = bytemuck::cast_slice(tables.words(range));
                out.slice(range.start * 4..range.end * 4).copy_from_slice(bytes);
            }
            Ok(())
        })?;
        let step = self.buffers.get(plan.step_buffer)?.raw();
        let mut cursor = Some(Cursor::default());
        let mut before: Option<wgpu::SubmissionIndex> = None;
        let mut first = true;
        loop {
            if cancel.is_some_and(Cancel::is_cancelled) {
                return Err(RuntimeError::Cancelled);
            }
            let begun = Instant::now();
            let mut encoder = self.device.encoder("step");
            if first {
                for range in self.tables.used() {
                    let (at, bytes) = (range.start as u64 * 4, range.len() as u64 * 4);
                    encoder.copy_buffer_to_buffer(upload_buffer.raw(), at, step, at, bytes);
                }
            }
            // Who times dispatches alone has the tables go before them.
            if let Some(from) = cursor.filter(|_| !(first && alone)) {
                let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
                let shape = self.tables.shape();
                cursor = self.recordings.record(
                    &mut pass,
                    plan,
                    &self.pipelines,
                    index,
                    from,
                    shape,
                    sampling,
                    budget,
                    &mut self.profiler.trace,
                )?;
            }
            self.profiler.resolve(&mut encoder);
            if let (None, Some(ReadBack { view, bytes })) = (cursor, result) {
                let (from, to) = (self.buffers.get(view.buffer)?, self.buffers.get(plan.readback_buffer)?);
                encoder.copy_buffer_to_buffer(from.raw(), view.offset, to.raw(), 0, *bytes);
            }
            let commands = encoder.finish();
            let recorded = begun.elapsed();
            let submitted = self.device.submit(commands)?;
            self.profiler.submitted(recorded, begun.elapsed().saturating_sub(recorded));
            let shape = self.tables.shape();
            self.profiler.collect(&self.device, plan, (index, shape), &submitted, begun)?;
            if std::mem::take(&mut first) {
                upload.used(upload_buffer, submitted.clone());
                self.tables.uploaded();
            }
            if cursor.is_none() {
                self.ring.advance();
                return Ok(submitted);
            }
            // One submit runs while the next is recorded; more in flight would outrun a cancellation.
            if let Some(earlier) = before.replace(submitted) {
                self.device.wait(&earlier)?;
            }
        }
    }

    /// What is read back of a step with these rows.
    fn result(&self, sampling: Sampling) -> Result<Option<ReadBack>, RuntimeError> {
        let plan = self.admitted.plan();
        let shape = self.tables.shape();
        let Some(program) = plan.program(shape.tokens) else { return Ok(None) };
        let Some((view, row)) = recording::result(plan, program, sampling) else { return Ok(None) };
        let bytes = u64::from(shape.logit_rows) * row;
        let most = view.bytes.min(self.buffers.get(plan.readback_buffer)?.bytes());
        if bytes > most {
            return Err(RuntimeError::plan("bytes of a result", format!("at most {most}"), bytes));
        }
        Ok((bytes > 0).then_some(ReadBack { view, bytes }))
    }
}

impl Stepper for Runtime {
    fn plan(&self) -> &Plan {
        self.admitted.plan()
    }

    fn set_block_table(&mut self, kind: u32, slot: u32, pages: &[u32]) -> Result<(), RuntimeError> {
        self.tables.set_block_table(kind, slot, pages)
    }

    fn telemetry(&self, usage: Usage, requests: [usize; 2]) -> Option<Telemetry> {
        Some(Telemetry::of(&self.device, self.plan(), usage, requests))
    }

    fn begin(&mut self, slot: u32) {
        self.watch.begin(slot);
    }

    fn snapshot(&mut self, slot: u32, position: u32, index: u32) -> Result<(), RuntimeError> {
        self.standing.check_at(slot, position)?;
        self.copy_snapshot(slot, position, index, snapshots::Way::Out)
    }

    fn restore(&mut self, index: u32, slot: u32, position: u32) -> Result<(), RuntimeError> {
        self.standing.put(slot, None);
        self.copy_snapshot(slot, position, index, snapshots::Way::Back)?;
        self.standing.put(slot, Some(position));
        Ok(())
    }

    fn step(&mut self, input: &StepInput<'_>) -> Result<StepOutput, RuntimeError> {
        let (tokens, rows) = (input.tokens(), input.logit_rows());
        let program = self.plan().programs.iter().find(|program| tokens <= u64::from(program.max_tokens));
        let program = program.map(|program| program.name.as_str());
        let _span =
            tracing::debug_span!("step", tokens, rows, sequences = input.sequences.len(), program).entered();
        let begun = Instant::now();
        self.device.check("the device")?;
        if input.cancel.is_some_and(Cancel::is_cancelled) {
            return Err(RuntimeError::Cancelled);
        }
        self.standing.check(input)?;
        self.tables.fill(input)?;
        let result = self.result(input.sampling)?;
        self.watch.see(input, || self.device.memory());
        self.standing.begin(input);
        self.profiler.begin(input);
        let output = self.launch(input, result)?;
        self.standing.done(input);
        self.profiler.done(self.admitted.plan(), self.tables.shape(), begun);
        Ok(output)
    }
}

impl Runtime {
    /// Copies what a slot keeps beside pages of full attention into a snapshot, or back.
    fn copy_snapshot(
        &self,
        slot: u32,
        position: u32,
        index: u32,
        way: snapshots::Way,
    ) -> Result<(), RuntimeError> {
        self.device.check("the device")?;
        let table = |kind| self.tables.block_table(kind, slot);
        let copies = snapshots::copies(self.admitted.plan(), slot, position, index, table)?;
        let mut encoder = self.device.encoder("snapshot");
        for snapshots::Copy { live, kept, bytes } in copies {
            let (from, to) = match way {
                snapshots::Way::Out => (live, kept),
                snapshots::Way::Back => (kept, live),
            };
            let [source, target] = [self.buffers.get(from.0)?, self.buffers.get(to.0)?];
            encoder.copy_buffer_to_buffer(source.raw(), from.1, target.raw(), to.1, bytes);
        }
        // Later steps come after it in the queue; nobody waits for it here.
        self.device.submit(encoder.finish()).map(|_| ())
    }

    /// Runs the step that stands in the tables and reads its result.
    fn launch(
        &mut self,
        input: &StepInput<'_>,
        result: Option<ReadBack>,
    ) -> Result<StepOutput, RuntimeError> {
        let submitted = self.run(input.sampling, input.cancel, result.as_ref())?;
        let Some(ReadBack { bytes, .. }) = result else {
            self.device.wait(&submitted)?;
            return Ok(StepOutput::None);
        };
        let plan = self.admitted.plan();
        let readback = self.buffers.get(plan.readback_buffer)?;
        transfer::read(&self.device, readback, bytes, &submitted, |bytes| match input.sampling {
            Sampling::None => StepOutput::None,
            Sampling::Greedy => StepOutput::Candidates(candidates(bytes, 1)),
            Sampling::TopK => StepOutput::Candidates(candidates(bytes, plan.top_k())),
            Sampling::Logits => StepOutput::Logits {
                vocab: plan.model.vocab,
                values: words(bytes).map(f32::from_bits).collect(),
            },
        })
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

/// Rows of `k` pairs of id and logit, and one of nothing and the log-sum-exp.
fn candidates(bytes: &[u8], k: u32) -> Vec<Candidates> {
    let pairs: Vec<(u32, f32)> = bytes
        .chunks_exact(8)
        .map(|pair| {
            let mut pair = words(pair);
            (pair.next().unwrap_or(0), f32::from_bits(pair.next().unwrap_or(0)))
        })
        .collect();
    pairs
        .chunks_exact(k as usize + 1)
        .filter_map(|row| row.split_last())
        .map(|(last, best)| Candidates {
            best: best.iter().copied().filter(|(id, _)| *id != top_k::NONE).collect(),
            log_sum_exp: last.1,
        })
        .collect()
}

/// Whether the device gives what the plan was made for.
fn expect_profile(device: &Device, plan: &Plan) -> Result<(), RuntimeError> {
    let (wanted, given) = (&plan.profile, device.profile());
    let (w, g) = (&wanted.limits, &given.limits);
    for (limit, expected, got) in [
        ("maxBufferSize", w.max_buffer_size, g.max_buffer_size),
        ("maxStorageBufferBindingSize", w.max_storage_buffer_binding_size, g.max_storage_buffer_binding_size),
        (
            "maxStorageBuffersPerShaderStage",
            w.max_storage_buffers_per_shader_stage.into(),
            g.max_storage_buffers_per_shader_stage.into(),
        ),
        (
            "maxComputeWorkgroupStorageSize",
            w.max_compute_workgroup_storage_size.into(),
            g.max_compute_workgroup_storage_size.into(),
        ),
        (
            "maxComputeInvocationsPerWorkgroup",
            w.max_compute_invocations_per_workgroup.into(),
            g.max_compute_invocations_per_workgroup.into(),
        ),
        (
            "maxComputeWorkgroupsPerDimension",
            w.max_compute_workgroups_per_dimension.into(),
            g.max_compute_workgroups_per_dimension.into(),
        ),
        ("subgroups", wanted.subgroups.into(), given.subgroups.into()),
    ] {
        if expected > got {
            return Err(RuntimeError::Limit { adapter: given.name.clone(), limit, expected, got });
        }
    }
    Ok(())
}
