//! The document of what is no closed form elsewhere has our figures as they are.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

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
        let (_, model) = open(&format!("configs/{name}.json"));
        let geometry = Geometry { context, prefill_chunk, kv, ..Geometry::default_for(context) };
        Plan::new(&model, &geometry, &profile).unwrap().segment_bytes(Segment::Activations)
    };
    let mut rows = Vec::new();
    for (id, name, context, chunk, kv) in [
        ("cb-01", "qwen3.5-27b", 4096, 512, KvFormat::Q8_0),
        ("cb-05", "gpt-oss-20b", 4096, 512, KvFormat::Q8_0),
        ("cb-07", "mamba2-codestral-7b", 4096, 512, KvFormat::Q8_0),
        ("cb-11", "qwen3-30b-a3b", 70_016, 512, KvFormat::F16),
        ("cb-13, step 2048", "qwen3.5-27b", 131_072, 2048, KvFormat::F16),
        ("cb-13, step 1024", "qwen3.5-27b", 131_072, 1024, KvFormat::F16),
        ("cb-13, step 512", "qwen3.5-27b", 131_072, 512, KvFormat::F16),
        ("cb-13, step 256", "qwen3.5-27b", 131_072, 256, KvFormat::F16),
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
