//! What a control group leaves is a budget that holds: whatever its limit, a load is refused or it runs, and the kernel
//! kills none. Every kernel is compiled, as on the first run on a machine: that takes most beside a plan.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod commands;
mod groups;
mod support;

use commands::{code, document, stderr};

const MIB: u64 = 1 << 20;

/// The exit codes of a verb in groups of so many MiB: 0 or 3, and none that was killed.
fn codes(name: &str, verb: &str, limits: &[u64]) -> Option<Vec<i32>> {
    let mut codes = Vec::new();
    for &limit in limits {
        let group = groups::group(&format!("{name}-{limit}"), limit * MIB)?;
        let plimsoll = env!("CARGO_BIN_EXE_plimsoll");
        let output = group.run(&format!("env MESA_SHADER_CACHE_DISABLE=true {plimsoll} {verb} --json"));
        assert!(output.status.code().is_some(), "{verb} in {limit} MiB: {}", output.status);
        codes.push(code(&output));
        match code(&output) {
            0 => assert_eq!(document(&output)["overridden"], false),
            3 => {
                let (said, of) = (stderr(&output), group.limit.display().to_string());
                let refused = document(&output);
                // Where it is from, what it allows, and what was left out of it.
                for part in [&of, " in use", "335,544,320 for what a load takes beside its buffers"] {
                    assert!(said.contains(part), "{part}: {said}");
                }
                assert_eq!(
                    refused["budget"]["source"].as_str().map(|source| source.contains(&of)),
                    Some(true)
                );
            }
            other => panic!("{verb} in {limit} MiB: {other}: {}", stderr(&output)),
        }
    }
    println!("{verb}: {limits:?} MiB: {codes:?}");
    Some(codes)
}

#[test]
fn a_run_is_refused_or_runs_and_is_not_killed() {
    let Some(codes) = codes("run", "run -n 4 --prompt hi --ignore-eos", &[40, 60, 100, 180, 340, 380, 500])
    else {
        return;
    };
    assert_eq!((codes.first(), codes.last()), (Some(&3), Some(&0)), "{codes:?}");
}

#[test]
fn a_bench_is_refused_or_runs_and_is_not_killed() {
    let Some(codes) = codes("bench", "bench -p 8 -n 2 -r 1", &[60, 120, 360, 500]) else { return };
    assert_eq!((codes.first(), codes.last()), (Some(&3), Some(&0)), "{codes:?}");
}

/// A larger model, whose buffers are most of what it takes.
#[cfg(feature = "real-models")]
#[test]
fn a_real_model_is_refused_or_runs_and_is_not_killed() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/.cache/models/SmolLM2-135M-Instruct.Q4_1.gguf");
    let run = format!("run {model} -n 4 --prompt hi --ignore-eos --context 512");
    let Some(codes) = codes("real", &run, &[300, 320, 340, 360, 380, 500, 640]) else { return };
    assert_eq!((codes.first(), codes.last()), (Some(&3), Some(&0)), "{codes:?}");
}
