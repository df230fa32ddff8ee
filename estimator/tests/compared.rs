//! The document of what is no closed form elsewhere has our figures as they are.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "common/asked.rs"]
mod asked;
mod common;

use asked::{ask, config};
use common::open;
use plimsoll_estimator::plan::Segment;
use plimsoll_estimator::{Geometry, Plan, grouped, peers};
use plimsoll_kernels::{KvFormat, Limits, Profile};

#[test]
fn the_document_has_our_figures() {
    let limits = Limits {
        max_buffer_size: 1 << 40,
        max_storage_buffer_binding_size: 1 << 32,
        ..Limits::webgpu_default()
    };
    let profile = Profile::new("roomy", limits, None, false);
    let activations = |name: &str, context, prefill_chunk, kv| {
        let (_, model) = open(name);
        let geometry = Geometry { context, prefill_chunk, kv, ..Geometry::default_for(context) };
        Plan::new(&model, &geometry, &profile).unwrap().segment_bytes(Segment::Activations)
    };
    let mut rows = Vec::new();
    for (id, name, context, chunk, kv) in [
        ("cb-01", "configs/qwen3.5-27b.json", 4096, 512, KvFormat::Q8_0),
        ("cb-05", "configs/gpt-oss-20b.json", 4096, 512, KvFormat::Q8_0),
        ("cb-07", "configs/mamba2-codestral-7b.json", 4096, 512, KvFormat::Q8_0),
        ("cb-09", "../../models/tests/data/priced/mistral-small-4-119b.json", 4096, 512, KvFormat::Q8_0),
        ("cb-11", "configs/qwen3-30b-a3b.json", 70_016, 512, KvFormat::F16),
        ("cb-13, step 2048", "configs/qwen3.5-27b.json", 131_072, 2048, KvFormat::F16),
        ("cb-13, step 1024", "configs/qwen3.5-27b.json", 131_072, 1024, KvFormat::F16),
        ("cb-13, step 512", "configs/qwen3.5-27b.json", 131_072, 512, KvFormat::F16),
        ("cb-13, step 256", "configs/qwen3.5-27b.json", 131_072, 256, KvFormat::F16),
    ] {
        rows.push(format!("| {id} | {} |", grouped(activations(name, context, chunk, kv))));
    }
    let document = include_str!("../COMPARED.md");
    let begins = |row: &String| document.lines().any(|line| line.starts_with(row.as_str()));
    let missing: Vec<&String> = rows.iter().filter(|row| !begins(row)).collect();
    assert!(missing.is_empty(), "{missing:#?}");
    // The part of cb-11 that is a closed form.
    let (_, qwen) = open("configs/qwen3-30b-a3b.json");
    assert_eq!(peers::unfused_scores(&qwen, 512, 70_016, 4), 4_588_568_576);
    assert!(document.contains("4,588,568,576"));
}

/// Each row of the other estimators' errors has the command line that says ours.
#[test]
fn the_command_lines_of_the_document_say_its_figures() {
    let document = include_str!("../COMPARED.md");
    let rows: Vec<Vec<&str>> = document
        .lines()
        .filter(|line| line.starts_with("| e-"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let ids: Vec<&str> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(ids, ["e-03", "e-06", "e-09"]);
    for row in rows {
        let [_, ours, line, ..] = row[..] else { panic!("{row:?}") };
        let (command, field) = line.split_once(": ").unwrap();
        let mut words = command.trim_matches('`').split_whitespace();
        let model = config(words.next().unwrap());
        let (code, report, said) = ask(&[&[model.as_str()], &words.collect::<Vec<_>>()[..]].concat());
        assert_eq!(code, 0, "{line}: {said}");
        let found = field.trim_matches('`').split('.').fold(&report, |at, key| &at[key]);
        assert_eq!(found.as_u64().map(grouped).as_deref(), Some(ours), "{line}");
    }
}
