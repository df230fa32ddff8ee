//! Runs every file of the seed corpora, and a fixed number of seeded mutations of them, through its target. Stable
//! Rust, no fuzzer: what continuous integration runs.
//!
//!     cargo run --manifest-path fuzz/Cargo.toml --bin replay -- --runs 2000 [--seed 1] [--target gguf_header] [FILE…]
//!
//! With files, only those are run, unchanged (`--target` says through which target).

use plimsoll_fuzz::{Mutator, TARGETS};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// A single input may take this long before it counts as a hang.
const SLOW: Duration = Duration::from_secs(60);

struct Options {
    runs: u64,
    seed: u64,
    target: Option<String>,
    files: Vec<PathBuf>,
}

fn options() -> Result<Options, String> {
    let mut options = Options { runs: 1000, seed: 1, target: None, files: Vec::new() };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|e| format!("{text}: {e}"));
        match arg.as_str() {
            "--runs" => options.runs = number(value()?)?,
            "--seed" => options.seed = number(value()?)?,
            "--target" => options.target = Some(value()?),
            flag if flag.starts_with("--") => return Err(format!("unknown option {flag}")),
            file => options.files.push(file.into()),
        }
    }
    Ok(options)
}

/// Runs one input and keeps it where a panic, a hang or an abort leaves it to be looked at.
fn run(body: fn(&[u8]), input: &[u8], kept: &Path) -> Result<(), String> {
    std::fs::write(kept, input).map_err(|e| format!("{}: {e}", kept.display()))?;
    let start = Instant::now();
    body(input);
    let took = start.elapsed();
    if took > SLOW {
        return Err(format!("{} took {took:?}", kept.display()));
    }
    Ok(())
}

fn main() -> ExitCode {
    match replay() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn replay() -> Result<(), String> {
    let options = options()?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let artifacts = root.join("artifacts");
    std::fs::create_dir_all(&artifacts).map_err(|e| format!("{}: {e}", artifacts.display()))?;
    let wanted = |name: &str| options.target.as_deref().is_none_or(|t| t == name);
    if !TARGETS.iter().any(|(name, _)| wanted(name)) {
        return Err(format!("no target {:?}", options.target.unwrap_or_default()));
    }
    for (name, body) in TARGETS.into_iter().filter(|(name, _)| wanted(name)) {
        let kept = artifacts.join(format!("replay-{name}"));
        let start = Instant::now();
        let read = |path: &PathBuf| std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()));
        if !options.files.is_empty() {
            for file in &options.files {
                run(body, &read(file)?, &kept)?;
            }
            continue;
        }
        let corpus = root.join("corpus").join(name);
        let entries = std::fs::read_dir(&corpus).map_err(|e| format!("{}: {e}", corpus.display()))?;
        let mut paths: Vec<PathBuf> = entries.filter_map(|e| e.ok().map(|e| e.path())).collect();
        paths.sort();
        let seeds: Vec<Vec<u8>> = paths.iter().map(read).collect::<Result<_, _>>()?;
        if seeds.is_empty() {
            return Err(format!("{}: no seeds", corpus.display()));
        }
        for seed in &seeds {
            run(body, seed, &kept)?;
        }
        let mut mutator = Mutator::new(options.seed);
        for i in 0..options.runs {
            let input = &seeds[(i % seeds.len() as u64) as usize];
            let other = &seeds[(mutator.number() % seeds.len() as u64) as usize];
            let mutated = mutator.mutate(input, other);
            run(body, &mutated, &kept)?;
        }
        std::fs::remove_file(&kept).map_err(|e| format!("{}: {e}", kept.display()))?;
        eprintln!("{name}: {} seeds, {} mutations, {:.1?}", seeds.len(), options.runs, start.elapsed());
    }
    Ok(())
}
