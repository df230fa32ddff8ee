//! What a load costs beside what it cannot do without: the weights' way from the file to the device against a plain
//! read-and-copy of the same file, in turns, and rows of every format repacked against a copy of the same bytes.
//!
//! `cargo bench --bench load [-- FILTER]`; `PLIMSOLL_BENCH_MODEL=file.gguf` names another model than those that
//! `make models` fetched.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use plimsoll::kernels::{Format, Record};
use plimsoll::{Device, DeviceOptions, LoadProgress};
use rayon::prelude::*;
use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Rounds of the comparison in turns.
const ROUNDS: usize = 7;

/// The bytes of a file, read in pieces and copied into fresh memory.
fn plain(path: &Path) -> Duration {
    let start = Instant::now();
    let mut file = File::open(path).unwrap();
    let mut copied = vec![0u8; file.metadata().unwrap().len() as usize];
    let mut piece = vec![0u8; 1 << 20];
    let mut at = 0;
    loop {
        let read = file.read(&mut piece).unwrap();
        if read == 0 {
            break;
        }
        copied[at..at + read].copy_from_slice(&piece[..read]);
        at += read;
    }
    black_box(&copied);
    start.elapsed()
}

/// A whole load, and the part of it that is the weights': from the last pipeline to the end.
fn load(path: &Path) -> (Duration, Duration) {
    let opened = plimsoll::open(path).unwrap();
    let device = Device::open(&DeviceOptions::default()).unwrap();
    let mut geometry = opened.geometry();
    geometry.context = 512;
    let admitted = opened.admit(&geometry, device.profile(), None).unwrap();
    let (start, compiled) = (Instant::now(), Mutex::new(None));
    let engine = opened
        .load_engine(device, admitted, &mut |progress| {
            if let LoadProgress::Pipelines { done, total } = progress
                && done == total
            {
                *compiled.lock().unwrap() = Some(Instant::now());
            }
        })
        .unwrap();
    let whole = start.elapsed();
    let weights = compiled.lock().unwrap().unwrap().elapsed();
    drop(engine);
    (whole, weights)
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64()
}

fn models() -> Vec<PathBuf> {
    if let Ok(path) = std::env::var("PLIMSOLL_BENCH_MODEL") {
        return vec![path.into()];
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/models");
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<_> =
        entries.map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "gguf")).collect();
    found.sort();
    found
}

fn whole(c: &mut Criterion) {
    let filter = std::env::args().skip(1).find(|a| !a.starts_with('-'));
    for path in models() {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if filter.as_ref().is_some_and(|f| !format!("load/{name}").contains(f.as_str())) {
            continue;
        }
        let bytes = path.metadata().unwrap().len();
        let (mut copies, mut wholes, mut weights) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            copies.push(plain(&path));
            let (whole, part) = load(&path);
            wholes.push(whole);
            weights.push(part);
        }
        let [copy, whole, part] = [copies, wholes, weights].map(median);
        println!(
            "load/{name}: {bytes} bytes; read and copied in {:.1} ms, {:.2} GB/s; weights uploaded in {:.1} ms, \
             {:.2} GB/s, {:.0} % of that; the whole load {:.1} ms",
            copy * 1e3,
            bytes as f64 / copy / 1e9,
            part * 1e3,
            bytes as f64 / part / 1e9,
            100.0 * copy / part,
            whole * 1e3
        );
        let mut group = c.benchmark_group(format!("load/{name}"));
        group.sample_size(10).throughput(Throughput::Bytes(bytes));
        group.bench_function("read_and_copy", |b| b.iter_custom(|n| (0..n).map(|_| plain(&path)).sum()));
        group.bench_function("weights", |b| b.iter_custom(|n| (0..n).map(|_| load(&path).1).sum()));
    }
}

fn repack(c: &mut Criterion) {
    const COLS: u32 = 2048;
    const ROWS: usize = 4096;
    let mut group = c.benchmark_group("repack");
    group
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(300));
    for format in Format::ALL {
        let record = Record::new(format, COLS).unwrap();
        let row = format.row_bytes(COLS.into()).unwrap() as usize;
        let rows: Vec<u8> = (0..row * ROWS).map(|i| ((i * 7919) >> 3) as u8).collect();
        let mut out = vec![0u8; record.stride() as usize * ROWS];
        group.throughput(Throughput::Bytes(rows.len() as u64));
        group.bench_function(format!("{format}"), |b| {
            b.iter(|| {
                let tasks = rows.par_chunks(64 * row).zip(out.par_chunks_mut(64 * record.stride() as usize));
                tasks.for_each(|(rows, out)| record.repack(rows, out).unwrap());
            });
        });
    }
    group.finish();
}

criterion_group!(benches, whole, repack);
criterion_main!(benches);
