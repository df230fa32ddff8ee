//! What the tests of the demo model share: its folder, and what its references say.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code)]

use plimsoll::runtime::Feed;
use plimsoll::{Device, Engine, Geometry, KvFormat, Model, Runtime};
use plimsoll_models::Checkpoint;
use serde_json::Value;
use std::path::PathBuf;

/// Room for the longest prompt of the references and its continuation.
pub const CONTEXT: u32 = 1152;

pub fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("demo-model").join(name)
}

pub fn expected() -> Value {
    serde_json::from_slice(&std::fs::read(path("expected.json")).unwrap()).unwrap()
}

/// A prompt of `expected.json`, with what one of the two checkpoints says to it.
pub struct Prompt {
    pub name: String,
    pub text: String,
    pub messages: Option<Value>,
    pub add_special: bool,
    pub ids: Vec<u32>,
    pub greedy: Vec<u32>,
    /// First minus second logit at each step.
    pub margins: Vec<f64>,
    /// The ten largest logits after the prompt.
    pub top10: Vec<(usize, f64)>,
}

impl Prompt {
    /// Largest difference to the ten.
    pub fn off(&self, row: &[f32]) -> f64 {
        let off = self.top10.iter().map(|&(id, logit)| (f64::from(row[id]) - logit).abs());
        off.fold(0.0, |most, d| if d.is_nan() { f64::INFINITY } else { most.max(d) })
    }
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

pub fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

/// The prompts, with the references of "bf16" or "4bit".
pub fn prompts(checkpoint: &str) -> Vec<Prompt> {
    let expected = expected();
    let prompts = expected["prompts"].as_array().unwrap().iter().map(|p| {
        let said = &p[checkpoint];
        let top10 = said["first_logits_top10"].as_array().unwrap();
        Prompt {
            name: p["name"].as_str().unwrap().to_owned(),
            text: p["text"].as_str().unwrap().to_owned(),
            messages: p.get("messages").cloned(),
            add_special: p["add_special_tokens"].as_bool().unwrap(),
            ids: ids(&p["ids"]),
            greedy: ids(&said["continuation_ids"]),
            margins: floats(&said["margins"]),
            top10: top10.iter().map(|v| (v[0].as_u64().unwrap() as usize, v[1].as_f64().unwrap())).collect(),
        }
    });
    let prompts: Vec<Prompt> = prompts.collect();
    assert_eq!(prompts.len(), 5);
    for p in &prompts {
        assert_eq!((p.greedy.len(), p.margins.len(), p.top10.len()), (32, 32, 10), "{}", p.name);
        assert!(p.ids.len() + p.greedy.len() <= CONTEXT as usize, "{}", p.name);
    }
    prompts
}

/// One sequence in f32 KV, loaded on a device that may be shared.
pub fn engine(device: &Device, model: &Model, checkpoint: &Checkpoint) -> Engine<Runtime> {
    engine_with(device, model, checkpoint, 256)
}

/// The same in steps of at most `prefill_chunk` tokens.
pub fn engine_with(
    device: &Device,
    model: &Model,
    checkpoint: &Checkpoint,
    prefill_chunk: u32,
) -> Engine<Runtime> {
    let base = Geometry::default_for(CONTEXT);
    let geometry = Geometry { context: CONTEXT, prefill_chunk, kv: KvFormat::F32, ..base };
    let admitted = crate::support::admitted(model, &geometry, device.profile());
    let runtime = Runtime::load(device.clone(), model, checkpoint, admitted, &mut |_| ()).unwrap();
    Engine::new(runtime).unwrap()
}

/// Feeds ids and answers the logits after the last.
pub fn push(feed: &mut Feed<'_, Runtime>, ids: &[u32]) -> Vec<f32> {
    let mut last = Vec::new();
    let pushed = feed.push(ids, ids.len() - 1, |_, row| {
        last = row.to_vec();
        Ok(())
    });
    pushed.unwrap();
    last
}
