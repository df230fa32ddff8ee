//! The limits that a shell sets a process (`ulimit -v`, `ulimit -d`). A software driver's buffers, its compiler and the
//! stacks and heaps of all threads share what they allow, and neither driver nor standard library survives when there is
//! no more of it: lavapipe and LLVM follow null pointers (signal 11), Rust's allocator aborts (signal 6). So what is left
//! is read like any other memory, less what a load takes [beside its buffers](beside), and below what a driver takes to
//! start none is opened.

use crate::memory::MemorySource;
use crate::{RuntimeError, books, workers};
use plimsoll_estimator::grouped;
use plimsoll_models::limits::{self, soft};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Builder;

const MIB: u64 = 1 << 20;

/// What opening and loading take of a limit. Measured on Mesa 22.3.6 with LLVM 15 and 2 cores, by the smallest limit under
/// which the bundled model, golden ones, SmolLM2-135M and Gemma 3 270M ran, and by the peaks of loads whose every kernel
/// was compiled, as on the first run, when the driver has none in its cache.
struct Takes {
    /// The loader, lavapipe and LLVM when they are opened.
    libraries: u64,
    /// The heap of each thread.
    heap: u64,
    /// A load and its first steps beside the plan's buffers: the driver's compiler, most of all.
    load: u64,
}

/// Of addresses, of which glibc reserves a whole heap for each thread on machines of 64 bits. A compiler whose heap is full
/// gets another: with kernels from the driver's cache a load took 29 MB at most, and 225 MB without (Gemma 3 270M).
const ADDRESSES: Takes = Takes { libraries: 220 * MIB, heap: HEAP, load: 4 * HEAP };
/// Of data, which are what of heaps is in use: opening took 13 MB and the stacks.
const DATA: Takes = Takes { libraries: 32 * MIB, heap: 0, load: TOUCHED };
/// What a load and its first steps touch beside the plan's buffers, of data as of a machine's or a control group's memory:
/// 153 MB at most with kernels from the driver's cache and 312 MB without (Gemma 3 270M; the bundled model 157 MB,
/// SmolLM2-135M 133 MB).
const TOUCHED: u64 = 320 * MIB;
const HEAP: u64 = 64 * MIB;
/// The stack of a thread of the driver's where no limit gives it another, and of ours.
const STACK: u64 = 8 * MIB;
const OWN_STACK: u64 = 2 * MIB;
/// What those of the driver's need at least: with this much every golden model ran, with half of it a tiny Llama did, and with
/// a quarter the process crashed.
const LEAST_STACK: u64 = 64 << 10;
/// Threads of wgpu and lavapipe beside one for each core, and the most cores that it uses.
const DRIVER_THREADS: u64 = 4;
const DRIVER_CORES: u64 = 16;

/// What a limit leaves this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Which limit.
    pub source: MemorySource,
    /// The limit.
    pub limit: u64,
    /// Bytes below it.
    pub left: u64,
}

/// What the first load of a process takes beside its buffers of what this source reads: of memory that the driver shares
/// with this process. What a device has of its own holds buffers alone.
pub(crate) fn beside(source: MemorySource) -> u64 {
    match source {
        MemorySource::AddressSpace => ADDRESSES.load,
        MemorySource::DataSize => DATA.load,
        MemorySource::MemInfo | MemorySource::CgroupV1 | MemorySource::CgroupV2 => TOUCHED,
        MemorySource::VulkanBudget
        | MemorySource::MetalWorkingSet
        | MemorySource::VideoMemoryInfo
        | MemorySource::Simulated
        | MemorySource::Unknown => 0,
    }
}

/// What a load still has to find of that. What the first one took (the driver's compiler, its heaps) stays with the process
/// and is in what every source says is in use: left out a second time, it would refuse a load for memory that nobody
/// will take.
pub(crate) fn still_beside(source: MemorySource) -> u64 {
    match (beside(source), FIRST.get()) {
        (whole, Some(first)) if whole > 0 => {
            still(whole, first.of(source), Has::now().of(source), books::live_in_all())
        }
        (whole, _) => whole,
    }
}

/// `whole` less what a process has now beyond its live buffers and beyond what it had before the first of them.
fn still(whole: u64, first: u64, now: u64, live: u64) -> u64 {
    whole.saturating_sub(now.saturating_sub(live).saturating_sub(first))
}

/// What this process has, as sources count it, but for the files it maps: those are checkpoints and libraries, and what a
/// load takes beside its buffers is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Has {
    addresses: u64,
    data: u64,
    touched: u64,
}

/// What it had when the first buffer was about to be created: drivers and threads are there, and no kernel is compiled.
static FIRST: OnceLock<Has> = OnceLock::new();

/// A buffer is about to be created.
pub(crate) fn buffers_begin() {
    FIRST.get_or_init(Has::now);
}

impl Has {
    fn now() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        Self::parse(&read("/proc/self/status"), &read("/proc/self/maps"))
    }

    /// Of the texts of those files.
    fn parse(status: &str, maps: &str) -> Self {
        let of = |name| crate::process::line(status, name).unwrap_or(0);
        let anonymous = maps.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            let (start, end) = words.next()?.split_once('-')?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            // What has no inode is no file.
            (words.nth(3)? == "0").then_some(number(end)?.saturating_sub(number(start)?))
        });
        let addresses = anonymous.fold(0, u64::saturating_add);
        Self { addresses, data: of("VmData:"), touched: of("RssAnon:").saturating_add(of("RssShmem:")) }
    }

    fn of(self, source: MemorySource) -> u64 {
        match source {
            MemorySource::AddressSpace => self.addresses,
            MemorySource::DataSize => self.data,
            _ => self.touched,
        }
    }
}

fn takes(source: MemorySource) -> &'static Takes {
    if source == MemorySource::DataSize { &DATA } else { &ADDRESSES }
}

/// The limits there are, of addresses and of data. `root` is `/`, and another folder in tests.
pub(crate) fn rooms(root: &Path) -> Vec<Room> {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
    parse(&read("proc/self/limits"), &read("proc/self/status"))
}

/// The same of the texts of `/proc/self/limits` and `/proc/self/status`.
fn parse(limits: &str, status: &str) -> Vec<Room> {
    let room = |source, name, of| {
        let limit = soft(limits, name)?;
        // A limit whose use cannot be read is a limit all the same.
        let used = crate::process::line(status, of).unwrap_or(0);
        Some(Room { source, limit, left: limit.saturating_sub(used) })
    };
    let addresses = room(MemorySource::AddressSpace, "Max address space", "VmSize:");
    let data = room(MemorySource::DataSize, "Max data size", "VmData:");
    addresses.into_iter().chain(data).collect()
}

/// Which device of the process it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opening {
    /// The first: it brings the libraries, and our threads will follow.
    First,
    /// One after others that are gone, whose threads' heaps its own take over.
    Again,
    /// One beside another.
    Beside,
}

/// What opening a software driver takes with so many cores and stacks of so many bytes.
fn start(of: &Takes, opening: Opening, cores: u64, stack: u64) -> u64 {
    let driver = DRIVER_THREADS + cores.min(DRIVER_CORES);
    match opening {
        Opening::First => of.libraries + driver * (of.heap + stack) + cores * (of.heap + OWN_STACK),
        Opening::Again => driver * stack,
        Opening::Beside => driver * (of.heap + stack),
    }
}

/// Devices that are open, and those that ever were.
static ALIVE: AtomicUsize = AtomicUsize::new(0);
static EVER: AtomicUsize = AtomicUsize::new(0);

/// A device that is open, or about to be.
#[derive(Debug)]
pub(crate) struct Alive(());

impl Drop for Alive {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether a driver can be opened within the limits. What it answers is kept for as long as the device is.
///
/// # Errors
/// [`RuntimeError::Confined`], [`RuntimeError::Stacks`].
pub(crate) fn check() -> Result<Alive, RuntimeError> {
    let opening = opening(ALIVE.fetch_add(1, Ordering::Relaxed));
    let alive = Alive(());
    allows(opening)?;
    EVER.fetch_add(1, Ordering::Relaxed);
    Ok(alive)
}

/// Whether a driver could be opened within the limits: where not, it is not to be asked for its adapters either.
///
/// # Errors
/// [`RuntimeError::Confined`], [`RuntimeError::Stacks`].
pub(crate) fn could_open() -> Result<(), RuntimeError> {
    allows(opening(ALIVE.load(Ordering::Relaxed)))
}

/// What the next device is beside so many.
fn opening(alive: usize) -> Opening {
    match (alive, EVER.load(Ordering::Relaxed)) {
        (0, 0) => Opening::First,
        (0, _) => Opening::Again,
        _ => Opening::Beside,
    }
}

fn allows(opening: Opening) -> Result<(), RuntimeError> {
    let stack = limits::stack().unwrap_or(STACK);
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    for Room { source, limit, left } in rooms(Path::new("/")) {
        let need = start(takes(source), opening, cores, stack);
        if left < need {
            return Err(RuntimeError::Confined { by: source, need, have: left, limit });
        }
    }
    let threads = DRIVER_THREADS + cores.min(DRIVER_CORES);
    stacks(stack, threads)
}

/// Whether so many threads of a driver can have stacks of so many bytes, and can do with them: theirs are what a shell
/// allows (`ulimit -s`), and a driver without its threads says that its device is lost.
fn stacks(each: u64, threads: u64) -> Result<(), RuntimeError> {
    if each < LEAST_STACK {
        let why = format!("{} are needed", grouped(LEAST_STACK));
        return Err(RuntimeError::Stacks { limit: each, threads, why });
    }
    // More than is usual may be more than the system has of memory or addresses. Where there are no threads of any size, that
    // is another error.
    let has = |stack: u64| started(usize::try_from(stack).unwrap_or(usize::MAX), threads);
    if each > STACK && !has(each) && has(OWN_STACK) {
        let why = "the system has no room for them".to_owned();
        return Err(RuntimeError::Stacks { limit: each, threads, why });
    }
    Ok(())
}

/// Whether so many threads can be there at once. Nothing of their stacks is touched.
fn started(stack: usize, threads: u64) -> bool {
    let start = |_| Builder::new().stack_size(stack).spawn(std::thread::park).ok();
    let all: Vec<_> = (0..threads).map_while(start).collect();
    let started = all.len() as u64 == threads;
    for thread in all {
        thread.thread().unpark();
        let _ = thread.join();
    }
    started
}

/// Starts what else has stacks and heaps of its own, so that readings have them: the threads that pack and compile.
///
/// # Errors
/// [`RuntimeError::Workers`].
pub(crate) fn settle() -> Result<(), RuntimeError> {
    if rooms(Path::new("/")).is_empty() {
        return Ok(());
    }
    workers::start()?;
    // A thread has a heap from its first allocation on.
    rayon::broadcast(|_| drop(std::hint::black_box(vec![0_u8; 1024])));
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_limit_leaves_what_is_not_used() {
        let limits = |data: &str, space: &str| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max data size             {data}            unlimited            bytes     \n\
                 Max stack size            8388608              unlimited            bytes     \n\
                 Max address space         {space}            unlimited            bytes     \n"
            )
        };
        let status = "VmSize:\t    1000 kB\nVmData:\t 600 kB\n";
        assert_eq!(parse(&limits("unlimited", "unlimited"), status), []);
        assert_eq!(parse("", status), []);
        let room = |source, limit, left| Room { source, limit, left };
        let addresses = |left| room(MemorySource::AddressSpace, 2_048_000, left);
        assert_eq!(parse(&limits("unlimited", "2048000"), status), [addresses(1_024_000)]);
        assert_eq!(parse(&limits("unlimited", "2048000"), ""), [addresses(2_048_000)]);
        let data = room(MemorySource::DataSize, 1024, 0);
        assert_eq!(parse(&limits("1024", "2048000"), status), [addresses(1_024_000), data]);
        assert_eq!(soft(&limits("1", "2"), "Max stack size"), Some(8 << 20));
    }

    #[test]
    fn stacks_are_large_enough_and_can_be_had() {
        let of = |each| stacks(each, 4).map_err(|error| error.to_string());
        for good in [LEAST_STACK, MIB, STACK, 2 * STACK] {
            assert_eq!(of(good), Ok(()), "{good}");
        }
        for (bad, why) in
            [(0, "are needed"), (LEAST_STACK - 1, "are needed"), (1 << 60, "no room"), (u64::MAX, "no room")]
        {
            let error = of(bad).unwrap_err();
            assert!(error.contains("ulimit -s") && error.contains(why), "{error}");
        }
    }

    #[test]
    fn what_the_first_load_took_is_not_left_out_again() {
        // Before the first buffer all of it is.
        assert_eq!(still(320, 60, 60, 0), 320);
        // Buffers alone, touched or not, are nothing of it.
        assert_eq!((still(320, 60, 160, 100), still(320, 60, 90, 100)), (320, 320));
        // A compiler that took 40 and keeps them, with the buffers and once they are gone.
        assert_eq!((still(320, 60, 200, 100), still(320, 60, 100, 0)), (280, 280));
        // More than was measured leaves nothing to be found, and a process that has less than at first all of it.
        assert_eq!((still(320, 60, 800, 0), still(320, 60, 20, 0)), (0, 320));
        // So that a limit leaves the second load what it left the first.
        let left = |used: u64, live| 1000 - used - still(320, 60, used, live);
        assert_eq!(left(60, 0), left(60 + 40, 0));
    }

    #[test]
    fn files_that_are_mapped_are_nothing_that_a_load_took() {
        let maps = "1000-3000 rw-p 00000000 00:00 0 \n\
                    4000-4800 rw-p 00000000 00:00 0                          [heap]\n\
                    8000-f000 r--s 00000000 08:01 77                         /models/x.gguf\nno mapping\n";
        let status = "VmData:\t 7 kB\nRssAnon:\t 3 kB\nRssFile:\t 900 kB\nRssShmem:\t 1 kB\n";
        let has = Has { addresses: 0x2800, data: 7 << 10, touched: 4 << 10 };
        assert_eq!(Has::parse(status, maps), has);
        assert_eq!(has.of(MemorySource::CgroupV1), has.of(MemorySource::MemInfo));
        assert_eq!(Has::parse("", ""), Has::default());
    }

    #[test]
    fn what_starting_takes_grows_with_the_cores_and_is_what_was_measured() {
        // 37 MB of the program to 852 MB with all threads: `VmSize` on the machine of the constants.
        let measured = (852 - 37) * 1_024_000;
        let first = |cores, stack| start(&ADDRESSES, Opening::First, cores, stack);
        assert!(first(2, STACK).abs_diff(measured) < 32 * MIB, "{}", first(2, STACK) / MIB);
        assert!(first(1, STACK) < first(2, STACK) && first(2, MIB) < first(2, STACK));
        assert_eq!(first(64, STACK) - first(63, STACK), HEAP + OWN_STACK);
        assert!(start(&DATA, Opening::First, 2, STACK) < first(2, STACK) / 4);
        let of = |opening| start(&ADDRESSES, opening, 2, STACK);
        assert!(of(Opening::Again) < of(Opening::Beside) && of(Opening::Beside) < of(Opening::First));
    }
}
