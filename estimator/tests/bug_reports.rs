//! Reports against other estimators and admission checks, each tried here. What of a report needs a running engine
//! (sessions, loads and unloads, requests) is tested where engines run.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Toy, open};
use plimsoll_estimator::images::{self, Size};
use plimsoll_estimator::others::{Other, Others, Replaced};
use plimsoll_estimator::peers::{self, Engine, Options};
use plimsoll_estimator::plan::Segment;
use plimsoll_estimator::report::Question;
use plimsoll_estimator::verdict::Broke;
use plimsoll_estimator::{
    Admitted, Geometry, Overhead, Plan, Priced, Pricer, Reading, Report, Solver, Verdict, admit,
    budget::Budget,
};
use plimsoll_kernels::{Limits, Profile};
use plimsoll_models::Model;
use plimsoll_models::model::{Beside, Grid, Part, Tower};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;

const MIB: u64 = 1 << 20;
const GB: u64 = 1_000_000_000;

fn config(name: &str) -> String {
    common::data(&format!("configs/{name}.json")).display().to_string()
}

/// Exit code, document and messages of the command line.
fn ask(args: &[&str]) -> (i32, Value, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_plimsoll-estimate"))
        .args(args)
        .arg("--json")
        .env_remove("PLIMSOLL_MEMORY_LIMIT")
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("panicked"), "{args:?}: {said}");
    let document = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output.status.code().unwrap(), document, said)
}

/// A configuration made here, in a file that goes with it.
struct File(PathBuf);

impl File {
    fn new(name: &str, config: &Value) -> Self {
        let path = std::env::temp_dir().join(format!("plimsoll-{}-{name}.json", std::process::id()));
        std::fs::write(&path, config.to_string()).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn judge(model: &Model, geometry: &Geometry, budget: Option<&Budget>) -> Verdict {
    admit(model, geometry, &roomy(), budget, Overhead::default()).unwrap()
}

/// A profile whose buffers are no question.
fn roomy() -> Profile {
    let limits = Limits {
        max_buffer_size: 1 << 40,
        max_storage_buffer_binding_size: 1 << 40,
        ..Limits::webgpu_default()
    };
    Profile::new("roomy", limits, None, false)
}

fn total(model: &Model, geometry: &Geometry) -> u64 {
    Plan::new(model, geometry, &roomy()).unwrap().total()
}

/// The tower of Qwen3.5 with its processor's limits.
fn qwen_tower() -> Tower {
    let grid = Grid::Native { merge: 2, min_pixels: 65_536, max_pixels: 16_777_216 };
    Tower { hidden: 1152, ffn: 4304, heads: 16, layers: 27, patch: 16, grid }
}

fn seeing() -> Model {
    let (_, mut model) = open("configs/qwen3.5-27b.json");
    model.extras.vision = Some(qwen_tower());
    model.extras.tensors = vec![Beside {
        name: "visual.blocks".into(),
        part: Part::Vision,
        count: 27,
        rows: 4304,
        cols: 1152,
        format: plimsoll_kernels::Format::BF16,
    }];
    model
}

fn with_images(count: u32, width: u32, height: u32) -> Geometry {
    let images = plimsoll_estimator::geometry::Images { count, width, height };
    let priced = Priced { images, ..Priced::default() };
    Geometry { context: 32_768, priced, ..Geometry::default_for(262_144) }
}

#[test]
fn report_01_largest_single_allocation_is_priced() {
    // A step of a whole 24,000-token prompt, 4-bit weights, 40 GB of memory and 8 GB a buffer.
    let text = std::fs::read(config("qwen3-30b-a3b")).unwrap();
    let mut four_bit: Value = serde_json::from_slice(&text).unwrap();
    four_bit["quantization"] = json!({"group_size": 64, "bits": 4});
    let file = File::new("report-01", &four_bit);
    let flags = ["--context", "24000", "--chunk", "24000", "--memory", "40GB", "--max-allocation", "8GB"];
    // Scores that are not streamed: refused for the one buffer, with the largest step that passes.
    let unfused = ["--runtime", "llama.cpp", "--no-flash-attention"];
    let (code, report, said) = ask(&[&[file.path()], &flags[..], &unfused].concat());
    assert_eq!(
        (code, &report["verdict"], &report["refusal"]["broke"]),
        (3, &json!("refused"), &json!("allocation"))
    );
    let cells = 24_064;
    assert_eq!(report["refusal"]["need"], 32 * 24_000 * cells * 4u64);
    assert_eq!(report["refusal"]["have"], 8 * GB);
    assert!(said.contains("allocation limit"), "{said}");
    assert!(report["bytes"]["total"].as_u64().unwrap() < 40 * GB, "memory is enough");
    let chunk = 8 * GB / (32 * cells * 4);
    assert_eq!(report["refusal"]["nearest"][0]["prefill_chunk"], chunk);
    let scores = |chunk: u64| 32 * chunk * cells * 4;
    assert!(scores(chunk) <= 8 * GB && scores(chunk + 1) > 8 * GB);
    // Two bytes a score on one layer is what was asked of the device in the report: 37 GB.
    let (_, model) = open("configs/qwen3-30b-a3b.json");
    assert_eq!(peers::unfused_scores(&model, 24_000, 24_000, 2), 36_864_000_000);
    // Ours streams them. The plain profile's binding limit is met first, and named with a step that keeps to it.
    let (code, report, said) = ask(&[&[file.path()], &flags[..]].concat());
    assert_eq!((code, &report["refusal"]["broke"]), (3, &json!("binding")), "{said}");
    let step = report["refusal"]["nearest"][0]["prefill_chunk"].as_u64().unwrap();
    assert!(step > 2000 && step < 24_000, "{step}");
    let step = step.to_string();
    let smaller = ["--context", "24000", "--chunk", &step, "--memory", "40GB"];
    let (code, report, said) = ask(&[&[file.path()], &smaller[..]].concat());
    assert_eq!(code, 0, "{said}");
    assert!(report["largest_allocation"]["bytes"].as_u64().unwrap() > 0);
    // On a device of such buffers the whole prompt is one step.
    let (_, model) = open(file.path());
    let limits = Limits {
        max_buffer_size: 8 * GB,
        max_storage_buffer_binding_size: 4 << 30,
        ..Limits::webgpu_default()
    };
    let profile = Profile::new("8 GB a buffer", limits, None, false);
    let geometry = Geometry { context: 24_000, prefill_chunk: 24_000, ..Geometry::default_for(40_960) };
    let budget = Budget::flag(40 * GB, "flag --memory");
    let verdict = admit(&model, &geometry, &profile, Some(&budget), Overhead::default()).unwrap();
    let admitted = verdict.admitted().unwrap();
    assert!(admitted.plan().buffers.iter().all(|b| b.bytes <= 8 * GB));
}

#[test]
fn report_03_a_refusal_is_an_error_that_stops_the_launch() {
    let llama = config("llama-3.1-8b");
    let asked = ["--context", "8192", "--slots", "4"];
    let (code, free, _) = ask(&[&[llama.as_str()], &asked[..]].concat());
    assert_eq!(code, 0);
    let total = free["bytes"]["total"].as_u64().unwrap();
    let budget = (total / 10 * 9).to_string();
    let (code, refused, said) = ask(&[&[llama.as_str()], &asked[..], &["--memory", &budget]].concat());
    assert_eq!((code, &refused["verdict"]), (3, &json!("refused")));
    assert!(said.contains("refused") && !said.contains("warning"), "{said}");
    assert_eq!(refused["refusal"]["broke"], "total");
    assert_eq!(refused["refusal"]["need"].as_u64(), Some(total));
    // What was asked stays asked: nothing is changed silently to make it fit.
    assert_eq!(refused["geometry"], free["geometry"]);
    // In the library a refusal is an error, and there is nothing in it that a runtime could load.
    let (_, model) = open("configs/llama-3.1-8b.json");
    let geometry = Geometry { context: 8192, slots: 4, logit_rows: 4, ..Geometry::default_for(131_072) };
    let verdict = judge(&model, &geometry, Some(&Budget::flag(total / 10 * 9, "test")));
    assert_eq!(verdict.admitted().unwrap_err().broke, Broke::Total);
}

#[test]
fn report_04_images_are_in_the_price() {
    let model = seeing();
    // A full-screen screenshot: 216 x 140 patches, and a score matrix of 29 GB were it not streamed.
    let cut = images::cut(&qwen_tower(), 3456, 2234);
    assert_eq!(cut.patches, 216 * 140);
    let unfused = images::unfused_scores(&qwen_tower(), cut.patches, 2);
    assert!((28_500_000_000..29_500_000_000).contains(&unfused), "{unfused}");
    // Fused, the tower takes the same arena as the text: the larger of the two, not their sum.
    let text = Plan::new(&model, &with_images(0, 0, 0), &roomy()).unwrap();
    let shot = Plan::new(&model, &with_images(1, 3456, 2234), &roomy()).unwrap();
    let (quiet, busy) = (text.segment_bytes(Segment::Activations), shot.segment_bytes(Segment::Activations));
    let tower = images::activation_bytes(&model, &with_images(1, 3456, 2234)).unwrap();
    assert_eq!(busy, quiet.max(tower));
    assert!(tower > quiet, "the screenshot decides");
    let small = Plan::new(&model, &with_images(1, 512, 512), &roomy()).unwrap();
    assert!(small.total() < shot.total() && small.total() >= text.total());
    let weights = 27 * 4304 * 1152 * 2u64;
    assert_eq!(shot.segment_bytes(Segment::Weights), text.segment_bytes(Segment::Weights) + weights);
    // A card that text fills: the screenshot is refused before anything is launched, a small image is not.
    let budget = Budget::flag(small.total(), "card");
    assert!(matches!(judge(&model, &with_images(1, 512, 512), Some(&budget)), Verdict::Admitted(_)));
    let refusal = judge(&model, &with_images(1, 3456, 2234), Some(&budget)).admitted().unwrap_err();
    assert_eq!(refusal.broke, Broke::Total);
    // Larger than the cap costs what the cap costs, and the cap is told.
    let cap = images::cap(&qwen_tower());
    assert_eq!(cap, Size { width: 4096, height: 4096 });
    let largest = total(&model, &with_images(1, 0, 0));
    assert_eq!(total(&model, &with_images(1, 60_000, 40_000)), largest);
    assert_eq!(total(&model, &with_images(1, cap.width, cap.height)), largest);
    // What reads no images says so.
    let (_, blind) = open("configs/llama-3.1-8b.json");
    let refusal = judge(&blind, &with_images(1, 512, 512), None).admitted().unwrap_err();
    assert_eq!((refusal.broke, refusal.name.as_str()), (Broke::Geometry, "images"));
    assert_eq!(refusal.nearest[0].priced.images.count, 0);
    // The rejection of a request with a larger image than was planned for needs an engine that reads them.
}

#[test]
fn report_06_readings_are_fresh_and_what_is_replaced_is_credited() {
    let (_, model) = open("configs/qwen3-30b-a3b.json");
    let profile = roomy();
    let slice = Budget::flag(68_300_000_000, "slice");
    let pricer = Pricer::new(&model, &profile);
    let solver =
        Solver { pricer: &pricer, budget: Some(&slice), overhead: Overhead::default(), company: None };
    let base = Geometry { slots: 8, logit_rows: 8, ..Geometry::default_for(40_960) };
    let geometry = solver.largest_context(&base).unwrap();
    let need = total(&model, &geometry);
    assert!(need > 60 * GB && need <= 68_300_000_000, "{need}");
    // Each decision is of its own reading, with where it is from and when it was taken: a failure is not remembered.
    let feed = [(70_000, true), (48_000, false), (14_000, false), (1_900, false), (71_000, true)];
    for (step, (megabytes, admitted)) in (0u64..).zip(feed) {
        let (bytes, taken) = (megabytes * 1_000_000, 100 + 10 * step);
        let reading =
            Reading { bytes, total: None, beside: 0, source: "feed".into(), taken, excluded: vec![] };
        let budget = Budget::resolve(Some((68_300_000_000, "slice")), Some(reading.clone())).unwrap();
        assert_eq!(budget.derived, Some(reading));
        let verdict = judge(&model, &geometry, Some(&budget));
        assert_eq!(matches!(verdict, Verdict::Admitted(_)), admitted, "step {step}");
        if let Verdict::Refused(refusal) = verdict {
            assert!(refusal.reason.contains("feed"), "{refusal}");
            // The same question against the same reading has the same answer: there is nothing to retry.
            assert_eq!(judge(&model, &geometry, Some(&budget)), Verdict::Refused(refusal));
        }
    }
    // 24 GB, 12.1 of them held by the model that will go: one of 13 to 14 GB fits in its place, and not beside it.
    let (_, next) = open("configs/gpt-oss-20b.json");
    let geometry = Geometry { context: 2048, ..Geometry::default_for(131_072) };
    let need = total(&next, &geometry);
    assert!(need > 13 * GB && need < 15 * GB, "{need}");
    let free = || Some(Reading::now(24 * GB - 12_100_000_000, "card"));
    let beside = Others::default().budget(None, free()).unwrap();
    assert!(matches!(judge(&next, &geometry, Some(&beside)), Verdict::Refused(_)));
    let replaced = vec![Replaced { name: "resident".into(), bytes: 12_100_000_000 }];
    let others = Others { replaced, ..Others::default() };
    let credited = others.budget(None, free()).unwrap();
    assert!(credited.source.contains("will be freed"));
    assert!(matches!(judge(&next, &geometry, Some(&credited)), Verdict::Admitted(_)));
}

#[test]
fn report_07_what_cannot_be_priced_is_said_and_not_guessed() {
    let rwkv = File::new("report-07", &json!({"model_type": "rwkv7", "hidden_size": 4096}));
    let (code, document, said) = ask(&[rwkv.path(), "--memory", "1TB"]);
    assert_eq!((code, &document["verdict"]), (4, &json!("cannot_price")));
    assert!(said.contains("rwkv7") && !said.contains("NaN"), "{said}");
    assert_eq!(document["bytes"], Value::Null);
    // A bare Infinity and no list of architectures.
    let (code, mamba, _) = ask(&[&config("mamba2-130m-hf"), "--context", "1000"]);
    assert_eq!((code, &mamba["bytes"]["kv"]), (0, &json!(0)));
    assert!(mamba["bytes"]["recurrent"].as_u64().unwrap() > 0);
    // No head counts: the class's own, 8 and 4 of 256, in 34 layers of which 5 keep every token.
    let (code, gemma, _) = ask(&[&config("gemma-3-4b-it-sparse"), "--context", "32768"]);
    assert_eq!(code, 0);
    assert_eq!(gemma["kv_bytes_per_token"], 5 * 2 * 4 * 256 * 2);
    assert!(gemma["bytes"]["total"].as_u64().unwrap() > 0);
}

#[test]
fn report_09_everything_retained_has_a_line() {
    let qwen = config("qwen3.5-27b");
    let checkpoints = 149 * MIB + 5 * MIB / 8;
    // The other engine's default: 32 checkpoints of each slot, on the host.
    let flags = [&qwen, "--runtime", "llama.cpp", "--slots", "4"];
    let (_, report, _) = ask(&flags);
    let line = |report: &Value, name: &str| {
        let lines = report["host"].as_array().unwrap().iter();
        let found = lines.clone().find(|l| l["name"].as_str().unwrap().starts_with(name));
        found.unwrap_or_else(|| panic!("{name}: {report}"))["bytes"].as_u64().unwrap()
    };
    assert_eq!(line(&report, "context checkpoints"), checkpoints * 32 * 4);
    assert_eq!(line(&report, "prompt cache"), 8192 * MIB);
    let (_, fewer, _) = ask(&[&flags[..], &["--checkpoints", "2"]].concat());
    assert_eq!(line(&fewer, "context checkpoints"), checkpoints * 2 * 4);
    // Ours: as many snapshots as were asked for, on the device, in the total and against the budget.
    let (_, plain, _) = ask(&[&qwen, "--slots", "4"]);
    let (_, kept, _) = ask(&[&qwen, "--slots", "4", "--snapshots", "128"]);
    let retained = kept["bytes"]["retained"].as_u64().unwrap();
    assert!(retained >= 128 * checkpoints && retained < 128 * checkpoints + MIB, "{retained}");
    let bytes = |report: &Value| report["bytes"]["total"].as_u64().unwrap();
    assert_eq!(bytes(&kept), bytes(&plain) + retained);
    let budget = bytes(&plain).to_string();
    assert_eq!(ask(&[&qwen, "--slots", "4", "--snapshots", "128", "--memory", &budget]).0, 3);
    // A session of many prompts, and caps that are checked before a save, need an engine that runs.
}

#[test]
fn report_10_drafts_multiply_recurrent_states() {
    let qwen = config("qwen3.5-27b");
    let llama = config("llama-3.1-8b");
    for runtime in ["plimsoll", "llama.cpp"] {
        for (depth, eighths) in [("0", 598 * 8 + 4), ("2", 1795 * 8 + 4), ("6", 4189 * 8 + 4u64)] {
            let flags = ["--runtime", runtime, "--slots", "4", "--draft-depth", depth];
            let (_, report, _) = ask(&[&[qwen.as_str()], &flags[..]].concat());
            assert_eq!(report["bytes"]["recurrent"], eighths * MIB / 8, "{runtime} {depth}");
            let (_, report, _) = ask(&[&[llama.as_str()], &flags[..]].concat());
            assert_eq!(report["bytes"]["recurrent"], 0, "{runtime} {depth}");
        }
    }
    // Where drafting breaks the budget, the refusal offers what was asked without it.
    let (_, model) = open("configs/qwen3.5-27b.json");
    let base = Geometry { slots: 4, logit_rows: 4, context: 8192, ..Geometry::default_for(262_144) };
    let budget = Budget::flag(total(&model, &base) + MIB, "test");
    let drafting = Geometry { draft_depth: 6, ..base.clone() };
    let refusal = judge(&model, &drafting, Some(&budget)).admitted().unwrap_err();
    assert_eq!(refusal.broke, Broke::Total);
    let offered: Vec<Geometry> = refusal.nearest.iter().map(|s| s.geometry()).collect();
    assert!(offered.contains(&base), "{offered:?}");
    // A draft context is as long as the target's, not as long as the model was made for.
    let mut drafting_model = model.clone();
    drafting_model.extras.draft = vec![*model.states.iter().find(|s| s.attention().is_some()).unwrap()];
    let layers = Other::draft_layers(&drafting_model, &Geometry { draft_depth: 1, ..base }).unwrap();
    assert_eq!(layers.unwrap().kv, 4 * 8192 * 4096);
}

#[test]
fn report_12_the_most_slots_are_known_before_a_launch() {
    let (checkpoint, model) = open("configs/qwen3.5-27b.json");
    let profile = roomy();
    let geometry = Geometry { context: 32, prefill_chunk: 32, ..Geometry::default_for(262_144) };
    let weights = Plan::new(&model, &geometry, &profile).unwrap().segment_bytes(Segment::Weights);
    let budget = Budget::flag(weights + 100 * GB, "test");
    let overhead = Overhead::default();
    let question = Question {
        checkpoint: &checkpoint,
        model: &model,
        geometry: &geometry,
        profile: &profile,
        budget: Some(&budget),
        overhead,
        company: None,
    };
    let (report, _) = Report::new(&question).unwrap();
    let slots = report.largest.slots.unwrap();
    // A state and a page of every attention layer each; logits and step tables of so many take the rest.
    let slot = report.recurrent_bytes_per_slot.unwrap() + 32 * report.kv_bytes_per_token.unwrap();
    assert_eq!(slot, 149 * MIB + 5 * MIB / 8 + 2 * MIB);
    let closed = 100 * GB / slot;
    assert!(u64::from(slots) <= closed && u64::from(slots) > closed * 97 / 100, "{slots} of {closed}");
    let pricer = Pricer::new(&model, &profile);
    let solver = Solver { pricer: &pricer, budget: Some(&budget), overhead, company: None };
    let at = |slots| Geometry { slots, logit_rows: slots, ..geometry.clone() };
    assert!(solver.fits(&at(slots)).is_some() && solver.fits(&at(slots + 1)).is_none());
    // vLLM's default of 1,024 sequences on 614 blocks is refused in the price too.
    let price = peers::price(Engine::Vllm, &model, &at(1024), &Options::default()).unwrap();
    assert!(price.recurrent + price.kv > 100 * GB);
}

#[test]
fn report_14_bindings_are_counted_against_both_limits() {
    // An embedding of 262,144 x 640 bf16 values is 335.5 MB: three bindings of 128 MiB, two buffers of 256 MiB.
    let (_, model) = open("configs/gemma-3-270m.json");
    let profile = Profile::webgpu_default();
    assert_eq!(profile.limits.max_storage_buffer_binding_size, 128 * MIB);
    let geometry = Geometry { context: 1024, ..Geometry::default_for(32_768) };
    let plan = Plan::new(&model, &geometry, &profile).unwrap();
    let embedding = plan.groups.iter().find(|g| g.rows == 262_144).unwrap();
    assert_eq!(embedding.shards.iter().map(|s| s.view.bytes).sum::<u64>(), 262_144 * 640 * 2);
    assert_eq!(embedding.shards.len(), 3);
    assert!(embedding.shards.iter().all(|s| s.view.bytes <= 128 * MIB));
    assert!(plan.buffers.iter().all(|b| b.bytes <= profile.limits.max_buffer_size));
    let (_, report, _) = ask(&[&config("gemma-3-270m"), "--context", "1024"]);
    for what in ["largest_allocation", "largest_binding"] {
        assert!(report[what]["bytes"].as_u64().is_some_and(|b| b > 0 && b <= 256 * MIB), "{what}: {report}");
    }
    // A limit below one row of a shard is refused by its name.
    let (code, report, _) = ask(&[&config("gemma-3-270m"), "--max-binding", "4kB"]);
    assert_eq!((code, &report["refusal"]["broke"]), (3, &json!("binding")));
    // Drivers place what is allocated at whole pages of a heap, of 64 KiB. Nothing here is allocated tensor by tensor: a plan
    // has few buffers, each nearly as large as a buffer may be or alone of its kind, so that what they are rounded up by is
    // bounded, and left out of the price. What an allocator keeps in its blocks is read from the machine after a load.
    const HEAP: u64 = 64 << 10;
    for name in ["gemma-3-270m", "llama-3.1-8b", "qwen3-30b-a3b", "nemotron-3-nano-30b-a3b", "gpt-oss-20b"] {
        let (_, model) = open(&format!("configs/{name}.json"));
        for profile in [Profile::webgpu_default(), roomy()] {
            let plan = Plan::new(&model, &Geometry::default_for(8192), &profile).unwrap();
            let tensors = model.matrices.len() + model.vectors.len();
            let full = plan.total() / profile.limits.max_buffer_size;
            assert!(plan.buffers.len() as u64 <= 32 + 2 * full, "{name}: {} buffers", plan.buffers.len());
            assert!(plan.buffers.len() < tensors, "{name}: {} of {tensors}", plan.buffers.len());
            let rounded: u64 = plan.buffers.iter().map(|b| b.bytes.next_multiple_of(HEAP) - b.bytes).sum();
            assert!(rounded * 1000 <= plan.total(), "{name}: {rounded} of {}", plan.total());
        }
    }
    // Loading and unloading twenty times against the same figure needs a device.
}

#[test]
fn engine_report_17_nothing_is_over_refused() {
    // 64 layers, of which 16 keep keys and values and 48 a state; a context of 8,192, not the 262,144 it was made for.
    let (code, report, _) = ask(&[&config("qwen3.5-27b"), "--context", "8192"]);
    assert_eq!(code, 0);
    assert_eq!(report["bytes"]["kv"], 2 * 16 * 4 * 256 * 8192 * 2u64);
    assert_eq!(report["recurrent_bytes_per_slot"], 149 * MIB + 5 * MIB / 8);
    assert_eq!(
        (&report["model"]["layers"]["attention_full"], &report["model"]["layers"]["recurrent"]),
        (&json!(16), &json!(48))
    );
    // Whoever knows better may insist, and it is marked.
    let model = Toy::small().build();
    let geometry = Geometry::default_for(4096);
    let budget = Budget::flag(1, "test");
    assert!(matches!(judge(&model, &geometry, Some(&budget)), Verdict::Refused(_)));
    let plan = Plan::new(&model, &geometry, &roomy()).unwrap();
    assert!(Admitted::insist(plan, Some(budget)).overridden());
}
