//! An open device: the one place where buffers are created and commands submitted, with the books of the former
//! and the health of the latter.

use crate::adapters::{self, AdapterInfo, DeviceOptions};
use crate::books::{Books, Buffer, Entry, Totals};
use crate::faults::Faults;
use crate::memory::MemoryReading;
use crate::point::{Harm, Point};
use crate::readings::MemoryFeed;
use crate::{RuntimeError, rlimit};
use plimsoll_kernels::{Limits, Profile, Tuned};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The block from which the driver's allocator serves small buffers. Larger ones get memory of their own, so that
/// what is reserved is the sum of the buffers and at most one block per memory type.
pub const SMALL_BLOCK: u64 = 4 << 20;

/// The most that the driver's allocator reserves beyond the sum of the plan's buffers, whatever the plan: one block
/// for each of three memory types (device, upload, readback).
pub const RESERVATION_SLACK: u64 = 3 * SMALL_BLOCK;

/// An open device. Clones share it.
#[derive(Clone, Debug)]
pub struct Device {
    inner: Arc<Inner>,
    /// How it was opened, and what that makes of it; clones may have other kernel variants.
    used: Arc<(DeviceOptions, Profile)>,
    /// The load that its buffers belong to; 0 outside of loads.
    load: u64,
    /// Who says what is free, instead of the adapter.
    feed: Option<Arc<dyn MemoryFeed>>,
}

#[derive(Debug)]
struct Inner {
    adapter: wgpu::Adapter,
    info: AdapterInfo,
    device: wgpu::Device,
    queue: wgpu::Queue,
    books: Arc<Books>,
    health: Arc<Health>,
    faults: Faults,
    submits: AtomicU64,
    base: OnceLock<DeviceCounters>,
    _alive: rlimit::Alive,
}

/// What wgpu counts by itself, apart from our books.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Buffers that exist, wgpu's own included.
    pub buffers: i64,
    /// Bytes of device memory behind them.
    pub buffer_memory: i64,
    /// Device memory allocations that exist.
    pub allocations: i64,
}

/// What the driver's allocator says, where it says anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reservation {
    /// Bytes in use.
    pub allocated: u64,
    /// Bytes taken from the driver.
    pub reserved: u64,
}

#[derive(Debug, Default)]
struct Health {
    lost: Mutex<Option<String>>,
    error: Mutex<Option<wgpu::Error>>,
}

impl Health {
    fn lose(&self, reason: String) {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
    }

    fn record(&self, error: wgpu::Error) {
        tracing::error!(%error, "wgpu reported an error outside of any scope");
        // The first is the cause; what follows are mostly consequences.
        self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    fn check(&self, what: &str) -> Result<(), RuntimeError> {
        if let Some(reason) = &*self.lost.lock().unwrap_or_else(PoisonError::into_inner) {
            return Err(RuntimeError::DeviceLost { reason: reason.clone() });
        }
        match self.error.lock().unwrap_or_else(PoisonError::into_inner).take() {
            None => Ok(()),
            Some(error) => Err(refused(what, &error)),
        }
    }
}

/// A wgpu error about something other than a buffer.
fn refused(what: &str, error: &wgpu::Error) -> RuntimeError {
    match error {
        wgpu::Error::OutOfMemory { .. } => {
            RuntimeError::OutOfMemory { buffer: what.to_owned(), bytes: 0, live: 0 }
        }
        other => RuntimeError::Validation { what: what.to_owned(), reason: reason(other) },
    }
}

/// An error with its causes, in one line each.
fn reason(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// What a driver says that does not start, with the limit on threads where that is reached: a driver starts some, and
/// without them says only that the device is lost.
fn starved(reason: String) -> String {
    match plimsoll_models::threads::at_limit() {
        Some(limit) => format!("{reason}; {limit}"),
        None => reason,
    }
}

impl Device {
    /// Whether the limits that a shell sets a process (`ulimit -v`, `-d`, `-s`) leave enough to open an adapter. What is
    /// read of a model before then takes memory as well, so ask first.
    ///
    /// # Errors
    /// [`RuntimeError::Confined`], [`RuntimeError::Stacks`].
    pub fn could_open() -> Result<(), RuntimeError> {
        rlimit::could_open()
    }

    /// Opens an adapter.
    ///
    /// # Errors
    /// [`RuntimeError::Confined`], [`RuntimeError::Stacks`], [`RuntimeError::NoAdapter`], [`RuntimeError::Open`], [`RuntimeError::Tuning`].
    pub fn open(options: &DeviceOptions) -> Result<Self, RuntimeError> {
        let alive = rlimit::check()?;
        let (adapter, info) = adapters::choose(&options.adapter)?;
        let mut profile = info.profile(options);
        if let Some(tuned) = &options.tuning {
            profile = profile.tuned(tuned)?;
        }
        let mut features = wgpu::Features::empty();
        features.set(wgpu::Features::SUBGROUP, profile.subgroups);
        let timestamps = wgpu::Features::TIMESTAMP_QUERY | wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES;
        features.set(timestamps, options.timestamps && adapter.features().contains(timestamps));
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("plimsoll"),
            required_features: features,
            required_limits: required(&profile.limits, &adapter.limits()),
            memory_hints: wgpu::MemoryHints::Manual {
                suballocated_device_memory_block_size: SMALL_BLOCK..SMALL_BLOCK,
            },
            ..Default::default()
        };
        let (device, queue) = pollster::block_on(adapter.request_device(&descriptor))
            .map_err(|e| RuntimeError::Open { adapter: info.name.clone(), reason: starved(reason(&e)) })?;
        let health = Arc::new(Health::default());
        let at_loss = Arc::clone(&health);
        device.set_device_lost_callback(move |why, message| {
            at_loss.lose(if message.is_empty() { format!("{why:?}") } else { message });
        });
        let at_error = Arc::clone(&health);
        device.on_uncaptured_error(Arc::new(move |error| at_error.record(error)));
        // wgpu fills buffers of its own at the first submit, from a staging buffer that goes with it: now, so that
        // its counters stand still from here on.
        queue.submit([]);
        tracing::info!(adapter = info.name, backend = info.backend, "device opened");
        let opened = Self {
            inner: Arc::new(Inner {
                adapter,
                info,
                device,
                queue,
                books: Arc::default(),
                health,
                #[cfg(feature = "faults")]
                faults: crate::ordered::faults(),
                #[cfg(not(feature = "faults"))]
                faults: Faults::default(),
                submits: AtomicU64::new(0),
                base: OnceLock::new(),
                _alive: alive,
            }),
            used: Arc::new((options.clone(), profile)),
            load: 0,
            feed: None,
        };
        opened.wait_idle()?;
        rlimit::settle()?;
        let _ = opened.inner.base.set(opened.counters());
        Ok(opened)
    }

    /// What plans for this device may assume.
    pub fn profile(&self) -> &Profile {
        &self.used.1
    }

    /// This device with other kernel variants for plans to come. What is loaded keeps those of its plan.
    ///
    /// # Errors
    /// [`RuntimeError::Tuning`]: the adapter cannot have them.
    pub fn with_tuning(mut self, tuned: Tuned) -> Result<Self, RuntimeError> {
        let (options, profile) = &*self.used;
        let profile = profile.clone().tuned(&tuned)?;
        self.used = Arc::new((DeviceOptions { tuning: Some(tuned), ..options.clone() }, profile));
        Ok(self)
    }

    /// How it was opened.
    pub fn options(&self) -> &DeviceOptions {
        &self.used.0
    }

    /// The adapter, with its free memory as it was at opening.
    pub fn info(&self) -> &AdapterInfo {
        &self.inner.info
    }

    /// Free memory now: the adapter's, or what a feed says.
    pub fn memory(&self) -> MemoryReading {
        match &self.feed {
            Some(feed) => feed.read(),
            None => MemoryReading::take(&self.inner.adapter).with_ours(self.totals().live_bytes),
        }
    }

    /// This device with readings of free memory from elsewhere than its adapter, for whoever knows better, and for tests.
    #[must_use]
    pub fn with_feed(mut self, feed: Arc<dyn MemoryFeed>) -> Self {
        self.feed = Some(feed);
        self
    }

    /// Sums of the books.
    pub fn totals(&self) -> Totals {
        self.inner.books.totals()
    }

    /// Every live buffer, in order of creation.
    pub fn buffers(&self) -> Vec<Entry> {
        self.inner.books.entries()
    }

    /// This device for a load: what it creates stands in the books as that load's.
    pub(crate) fn for_load(&self) -> Self {
        Self { load: self.inner.books.next_load(), ..self.clone() }
    }

    /// Every live buffer of this load.
    pub(crate) fn own_buffers(&self) -> Vec<Entry> {
        self.inner.books.entries_of(self.load)
    }

    /// wgpu's own counters as they were when the device was opened: what it keeps for itself.
    pub fn base(&self) -> DeviceCounters {
        self.inner.base.get().copied().unwrap_or_default()
    }

    /// wgpu's own counters. Destroyed buffers leave them once the device has been polled, which this does.
    pub fn counters(&self) -> DeviceCounters {
        let _ = self.inner.device.poll(wgpu::PollType::Poll);
        let hal = self.inner.device.get_internal_counters().hal;
        DeviceCounters {
            buffers: hal.buffers.read() as i64,
            buffer_memory: hal.buffer_memory.read() as i64,
            allocations: hal.memory_allocations.read() as i64,
        }
    }

    /// What the driver's allocator has taken; `None` where wgpu does not allocate by itself (Metal).
    pub fn reservation(&self) -> Option<Reservation> {
        let _ = self.inner.device.poll(wgpu::PollType::Poll);
        let report = self.inner.device.generate_allocator_report()?;
        Some(Reservation { allocated: report.total_allocated_bytes, reserved: report.total_reserved_bytes })
    }

    /// Faults on order, for tests.
    #[cfg(feature = "faults")]
    pub fn faults(&self) -> &Faults {
        &self.inner.faults
    }

    #[cfg(not(feature = "faults"))]
    pub(crate) fn faults(&self) -> &Faults {
        &self.inner.faults
    }

    /// Whether a test has ordered that this event fails. Where it has ordered that the device goes, it is gone.
    pub(crate) fn harmed(&self, point: Point) -> bool {
        match self.inner.faults.at(point) {
            None => false,
            Some(Harm::Fail) => true,
            Some(Harm::Lose) => {
                self.inner.device.destroy();
                false
            }
        }
    }

    /// Destroys the device at once, as a driver does that is reset, for tests.
    #[cfg(feature = "faults")]
    pub fn lose(&self) {
        self.inner.device.destroy();
    }

    /// Whether the device can be used.
    ///
    /// # Errors
    /// [`RuntimeError::DeviceLost`], or an error that wgpu reported outside of any call of ours.
    pub fn check(&self, what: &str) -> Result<(), RuntimeError> {
        self.inner.health.check(what)
    }

    /// Whether the device can be used, asked of the device itself: one that is lost while nobody uses it says so when it
    /// is polled.
    ///
    /// # Errors
    /// As [`Device::check`].
    pub fn health(&self) -> Result<(), RuntimeError> {
        self.poll();
        self.check("the device")
    }

    /// Creates a buffer. The one place where this is done.
    pub(crate) fn create_buffer(
        &self,
        name: &str,
        bytes: u64,
        usage: wgpu::BufferUsages,
        mapped: bool,
    ) -> Result<Buffer, RuntimeError> {
        rlimit::buffers_begin();
        let live = self.totals().live_bytes;
        let out_of_memory = || RuntimeError::OutOfMemory { buffer: name.to_owned(), bytes, live };
        // A lost device hands out dead buffers without a word.
        self.check(name)?;
        if self.harmed(Point::Buffer) {
            return Err(out_of_memory());
        }
        let size = self.inner.faults.resized(bytes);
        let descriptor =
            wgpu::BufferDescriptor { label: Some(name), size, usage, mapped_at_creation: mapped };
        #[allow(clippy::disallowed_methods)]
        let created = self.scoped(|device| device.create_buffer(&descriptor));
        self.health()?;
        let raw = created.map_err(|error| match error {
            wgpu::Error::OutOfMemory { .. } => out_of_memory(),
            other => refused(&format!("buffer {name} of {bytes} bytes"), &other),
        })?;
        Ok(Buffer::new(raw, name, Arc::clone(&self.inner.books), self.load))
    }

    /// Creates something other than a buffer; what wgpu says against it names `what`.
    pub(crate) fn create<T>(
        &self,
        point: Point,
        what: impl FnOnce() -> String,
        make: impl FnOnce(&wgpu::Device) -> T,
    ) -> Result<T, RuntimeError> {
        if self.harmed(point) {
            return Err(RuntimeError::Validation { what: what(), reason: "ordered by a test".to_owned() });
        }
        let made = self.scoped(make).map_err(|error| refused(&what(), &error));
        // What a lost device makes is dead, and mostly it does not say so; a poll has it say that it is lost.
        self.health()?;
        made
    }

    /// Whether it was opened to take timestamps between dispatches.
    pub fn takes_timestamps(&self) -> bool {
        self.inner.device.features().contains(wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES)
    }

    /// A set of timestamps: driver memory that no plan knows, for whoever measures.
    pub(crate) fn query_set(&self, name: &str, count: u32) -> Result<wgpu::QuerySet, RuntimeError> {
        let descriptor =
            wgpu::QuerySetDescriptor { label: Some(name), ty: wgpu::QueryType::Timestamp, count };
        let made = self.scoped(|device| device.create_query_set(&descriptor));
        self.health()?;
        made.map_err(|error| refused(&format!("timestamps {name}"), &error))
    }

    fn scoped<T>(&self, make: impl FnOnce(&wgpu::Device) -> T) -> Result<T, wgpu::Error> {
        let device = &self.inner.device;
        let internal = device.push_error_scope(wgpu::ErrorFilter::Internal);
        let validation = device.push_error_scope(wgpu::ErrorFilter::Validation);
        let memory = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let made = make(device);
        let memory = pollster::block_on(memory.pop());
        let validation = pollster::block_on(validation.pop());
        let internal = pollster::block_on(internal.pop());
        match memory.or(validation).or(internal) {
            None => Ok(made),
            Some(error) => Err(error),
        }
    }

    /// The handles, for what is not part of a plan.
    pub(crate) fn raw(&self) -> (&wgpu::Device, &wgpu::Queue) {
        (&self.inner.device, &self.inner.queue)
    }

    /// An empty list of commands.
    pub(crate) fn encoder(&self, label: &str) -> wgpu::CommandEncoder {
        self.inner.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some(label) })
    }

    /// Hands commands to the device. The one place where this is done.
    pub(crate) fn submit(
        &self,
        commands: wgpu::CommandBuffer,
    ) -> Result<wgpu::SubmissionIndex, RuntimeError> {
        let submit = self.inner.submits.fetch_add(1, Ordering::Relaxed);
        self.check("a submit")?;
        if self.harmed(Point::Submit) {
            return Err(RuntimeError::Submit { submit, reason: "ordered by a test".to_owned() });
        }
        let index = self.inner.queue.submit([commands]);
        self.check("a submit")?;
        Ok(index)
    }

    /// Waits until a submit is done and callbacks have run.
    pub(crate) fn wait(&self, index: &wgpu::SubmissionIndex) -> Result<(), RuntimeError> {
        self.poll_until(Some(index.clone()))
    }

    /// Waits until the device has nothing left to do and callbacks have run.
    pub(crate) fn wait_idle(&self) -> Result<(), RuntimeError> {
        self.poll_until(None)
    }

    fn poll_until(&self, submission_index: Option<wgpu::SubmissionIndex>) -> Result<(), RuntimeError> {
        let polled = self.inner.device.poll(wgpu::PollType::Wait { submission_index, timeout: None });
        if polled.is_err() {
            // A device that is gone knows nothing of the submit; its callback, which says why, comes once what was
            // handed over before is done.
            let everything = wgpu::PollType::Wait { submission_index: None, timeout: None };
            let _ = self.inner.device.poll(everything);
        }
        self.check("a submit")?;
        polled.map(drop).map_err(|e| RuntimeError::Submit { submit: self.submits(), reason: e.to_string() })
    }

    /// Lets callbacks run that are due.
    pub(crate) fn poll(&self) {
        let _ = self.inner.device.poll(wgpu::PollType::Poll);
    }

    /// Commands handed over since opening.
    pub fn submits(&self) -> u64 {
        self.inner.submits.load(Ordering::Relaxed)
    }
}

/// The limits to open with: those of the profile, WebGPU's defaults for the rest, less where the adapter has less.
fn required(profile: &Limits, adapter: &wgpu::Limits) -> wgpu::Limits {
    let limits = wgpu::Limits {
        max_buffer_size: profile.max_buffer_size,
        max_storage_buffer_binding_size: profile.max_storage_buffer_binding_size,
        max_storage_buffers_per_shader_stage: profile.max_storage_buffers_per_shader_stage,
        max_compute_workgroup_storage_size: profile.max_compute_workgroup_storage_size,
        max_compute_invocations_per_workgroup: profile.max_compute_invocations_per_workgroup,
        max_compute_workgroup_size_x: profile.max_compute_invocations_per_workgroup,
        max_compute_workgroups_per_dimension: profile.max_compute_workgroups_per_dimension,
        ..wgpu::Limits::defaults()
    };
    limits.or_worse_values_from(adapter)
}
