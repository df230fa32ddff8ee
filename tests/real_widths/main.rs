//! Published models at their real widths: one layer of each kind, random weights in the forms that people use, and a
//! vocabulary whose table just passes a default binding, through everything a model goes through, at WebGPU's default
//! limits. What comes out is held against a forward pass in f64 that shares no code with the engine but the decoder of
//! stored rows.
//!
//! `make widths` runs all cases and prints a row of `benches/results/real_widths.md` for each; `cargo test` runs those
//! that are not ignored.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod checkpoint;
mod gemma;
mod layers;
mod nemotron;
mod qwen;
mod weights;

use checkpoint::{Packing, Tensors};
use plimsoll::estimator::plan::WeightGroup;
use plimsoll::{Device, DeviceOptions, Geometry, KvFormat, Opened, Plan, Registry};
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use weights::{Rows, Weights, dot};

/// A default binding.
const BINDING: u64 = 128 << 20;
/// Largest difference of a logit, as a share of the root mean square of the position's sampled logits. One term of a
/// sum of 21,504 that is missing changes the sum by 7e-3 of its size.
const TOLERANCE: f64 = 2e-4;
/// The last expert that is chosen is better than the best that is not by at least this share of the standard deviation
/// of the token's scores: logits of a softmax, biased sigmoid scores. Five times the tolerance, so that no difference
/// that passes changes a choice.
const GAP: f64 = 1e-3;
/// Tokens of the prompt, and then one by one.
const PROMPT: usize = 16;
const DECODED: usize = 2;

/// A published shape.
struct Shape {
    /// From the published configuration to that of one layer of each kind.
    configure: fn(&mut Value, usize),
    tensors: fn(&Value) -> Tensors,
    forward: fn(&Weights<'_>, &Value, &[u32]) -> Forward,
    /// How the table and the head are stored.
    table: Packing,
    /// Modules of the table and of the head.
    embedding: &'static str,
    head: &'static str,
}

/// What the reference finds.
struct Forward {
    /// Of each token, what the head is multiplied with.
    hidden: Rows,
    /// The closest decision of a router: see [`GAP`].
    gap: Option<f64>,
    /// Different experts that are chosen, by layer.
    chosen: Vec<usize>,
}

struct Case {
    config: &'static str,
    shape: Shape,
    seed: u64,
    forms: &'static str,
}

const NEMOTRON: Case = Case {
    config: "nemotron-3-nano-30b-a3b",
    shape: nemotron::SHAPE,
    seed: 11,
    forms: "MLX 4-bit, groups of 64; router bf16",
};
const QWEN_DENSE: Case =
    Case { config: "qwen3.5-27b", shape: qwen::DENSE, seed: 2, forms: "MLX 4-bit, groups of 64" };
const QWEN_EXPERTS: Case = Case {
    config: "qwen3.5-35b-a3b",
    shape: qwen::EXPERTS,
    seed: 12,
    forms: "MLX nvfp4; routers MLX 8-bit, groups of 64",
};
const GEMMA: Case = Case {
    config: "gemma-4-31b-it-nvfp4",
    shape: gemma::SHAPE,
    seed: 4,
    forms: "modelopt NVFP4; attention and table bf16",
};

/// One number of a configuration.
fn size(config: &Value, key: &str) -> usize {
    config[key].as_u64().unwrap_or_else(|| panic!("{key}")) as usize
}

/// The group whose first matrix is `module.weight`.
fn group<'p>(opened: &Opened, plan: &'p Plan, module: &str) -> &'p WeightGroup {
    let name = format!("{module}.weight");
    let id = opened.model.matrices.iter().position(|m| m.source.name() == name).unwrap();
    plan.groups.iter().find(|g| g.matrices.iter().any(|m| m.0 as usize == id)).unwrap()
}

/// Rows on both sides of every border of the shards, and others between.
fn sampled(group: &WeightGroup) -> Vec<usize> {
    let mut rows = BTreeSet::new();
    for shard in &group.shards {
        let (first, end) = (shard.first_row as usize, (shard.first_row + shard.rows) as usize);
        rows.extend([first, first + 1, end - 2, end - 1]);
        rows.extend((0..28).map(|i| first + i * shard.rows as usize / 28));
    }
    rows.extend((0..64).map(|i| i * group.rows as usize / 64));
    rows.into_iter().filter(|row| *row < group.rows as usize).collect()
}

impl Case {
    fn config(&self) -> Value {
        let path = format!("{}/tests/data/configs/{}.json", env!("CARGO_MANIFEST_DIR"), self.config);
        let mut config: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let text = if config.get("text_config").is_some() { &config["text_config"] } else { &config };
        let row = self.shape.table.format().row_bytes(size(text, "hidden_size") as u64).unwrap();
        // The first odd number of rows that is more than a binding holds, and a few more.
        let vocab = (BINDING / row + 37) as usize | 1;
        (self.shape.configure)(&mut config, vocab);
        config
    }

    fn run(&self) {
        // One at a time: each holds its weights twice, as a checkpoint and on the device.
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let started = Instant::now();
        let config = self.config();
        let checkpoint = (self.shape.tensors)(&config).checkpoint(&config, self.seed);
        let opened = Opened::new(checkpoint, &Registry::standard()).unwrap();
        let made = started.elapsed();

        let options = DeviceOptions { webgpu_limits: true, ..DeviceOptions::default() };
        let device = Device::open(&options).unwrap();
        let budget = plimsoll::budget(None, &device.memory());
        let geometry = Geometry {
            context: 32,
            slots: 1,
            prefill_chunk: PROMPT as u32,
            kv: KvFormat::F32,
            logit_rows: PROMPT as u32,
            draft_depth: 0,
            priced: Default::default(),
        };
        let admitted = opened.admit(&geometry, device.profile(), budget.as_ref()).unwrap();
        let plan = admitted.plan().clone();
        assert_eq!(plan.profile.limits.max_storage_buffer_binding_size, BINDING);
        let (table, head) = (self.shape.embedding, self.shape.head);
        let (table, head) = (group(&opened, &plan, table), group(&opened, &plan, head));
        assert!(table.shards.len() > 1 && head.shards.len() > 1, "{}", self.config);

        let before = device.counters();
        let mut engine = opened.load_engine(device.clone(), admitted, &mut |_| ()).unwrap();
        let loaded = device.counters();
        assert_eq!(loaded.buffer_memory - before.buffer_memory, plan.total() as i64, "{}", self.config);
        assert_eq!(loaded.buffers - before.buffers, plan.buffers.len() as i64, "{}", self.config);
        let ready = started.elapsed();

        // The first and the last row of every shard of the table, and others.
        let borders = table.shards.iter().flat_map(|s| [s.first_row, s.first_row + s.rows - 1]);
        let others = (1..).map(|i| i * 7919 % table.rows);
        let ids: Vec<u32> = borders.chain(others).take(PROMPT + DECODED).collect();
        let rows = sampled(head);
        let mut got: Vec<Vec<f32>> = Vec::new();
        let mut feed = engine.feed(ids.len()).unwrap();
        for part in std::iter::once(&ids[..PROMPT]).chain(ids[PROMPT..].chunks(1)) {
            feed.push(part, 0, |_, logits| {
                assert!(logits.iter().all(|v| v.is_finite()));
                got.push(rows.iter().map(|row| logits[*row]).collect());
                Ok(())
            })
            .unwrap();
        }
        drop(feed);
        assert_eq!(device.counters(), loaded, "{}: something was allocated after the load", self.config);
        drop(engine);
        let ran = started.elapsed();

        let (most, rms, forward) = self.compare(&opened, &config, &ids, &rows, &got);
        let split: Vec<String> = plan.groups.iter().filter(|g| g.shards.len() > 1).map(shards).collect();
        let seconds = [made, ready - made, ran - ready, started.elapsed() - ran].map(|d| d.as_secs_f64());
        println!(
            "| {} | {} | {} | {} | {} | {} | {} | {most:.1e} | {rms:.2} | {} |",
            self.config,
            self.forms,
            table.rows,
            plan.total(),
            split.join("; "),
            forward.chosen.iter().map(usize::to_string).collect::<Vec<_>>().join(", "),
            forward.gap.map_or(String::new(), |gap| format!("{gap:.1e}")),
            seconds.map(|s| format!("{s:.1}")).join(" + "),
        );
        assert!(
            forward.gap.is_none_or(|gap| gap > GAP),
            "{}: a router's gap of {:?}, another seed is wanted",
            self.config,
            forward.gap
        );
        assert!(most < TOLERANCE, "{}: off by {most} of the logits' {rms}", self.config);
    }

    /// The largest difference to the reference, as a share of the position's logits, and the size of all.
    fn compare(
        &self,
        opened: &Opened,
        config: &Value,
        ids: &[u32],
        rows: &[usize],
        got: &[Vec<f32>],
    ) -> (f64, f64, Forward) {
        let weights = Weights(&opened.checkpoint);
        let forward = (self.shape.forward)(&weights, config, ids);
        assert_eq!(got.len(), forward.hidden.len());
        let head = weights.matrix(self.shape.head, opened.model.hidden as usize);
        let head: Rows = rows.iter().map(|row| head.row(*row)).collect();
        let cap = config["text_config"]["final_logit_softcapping"].as_f64();
        let (mut most, mut squares) = (0f64, 0.0);
        for (hidden, got) in forward.hidden.iter().zip(got) {
            let logits = head.iter().map(|row| dot(row, hidden));
            let logits: Vec<f64> = logits.map(|v| cap.map_or(v, |cap| cap * (v / cap).tanh())).collect();
            let square = dot(&logits, &logits) / logits.len() as f64;
            let off = logits.iter().zip(got).map(|(a, b)| (a - f64::from(*b)).abs()).fold(0.0, f64::max);
            most = most.max(off / square.sqrt());
            squares += square / ids.len() as f64;
        }
        assert!((0.3..10.0).contains(&squares.sqrt()), "logits of {}", squares.sqrt());
        (most, squares.sqrt(), forward)
    }
}

/// What a group is, and into how many shards it is cut.
fn shards(group: &WeightGroup) -> String {
    format!("{}×{}: {}", group.rows, group.record.cols(), group.shards.len())
}

#[test]
fn nemotron_3_nano_30b_a3b() {
    NEMOTRON.run();
}

#[test]
#[ignore = "`make widths` runs it: of its parts the other cases have all but the dense MLP"]
fn qwen3_5_27b() {
    QWEN_DENSE.run();
}

#[test]
fn qwen3_5_35b_a3b() {
    QWEN_EXPERTS.run();
}

#[test]
#[ignore = "`make widths` runs it: half a minute that every change would wait for"]
fn gemma_4_31b() {
    GEMMA.run();
}
