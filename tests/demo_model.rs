//! The demo model against its references (`demo-model/expected.json`): transformers for bf16, mlx_lm for 4-bit, both
//! in f32. Together these checks see every fault that `demo-model/README.md` lists: `tests/demo_faults.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod commands;
mod demo;
mod support;

use demo::{engine, expected, floats, path, prompts, push};
use plimsoll::{ChatTemplate, Device, DeviceOptions, Message, Opened, RenderOptions, Tokenizer};
use support::argmax;

/// Largest difference to a reference logit.
const LOGITS: f64 = 1e-3;
/// Best and second-best logit nearer than this are equally good.
const TIE: f64 = 2e-3;
/// Largest difference to the mean loss of the held-out text, in nats a token, either way: one fault lowers it.
const LOSS: f64 = 5e-4;

const FOLDERS: [(&str, &str); 2] = [("bf16", "plimsoll-demo"), ("4bit", "plimsoll-demo-4bit")];

#[test]
fn prompts_have_the_ids_of_the_references() {
    for (_, folder) in FOLDERS {
        let checkpoint = plimsoll::Checkpoint::open(&path(folder)).unwrap();
        let tokenizer = Tokenizer::from_checkpoint(&checkpoint).unwrap().unwrap();
        let template = ChatTemplate::from_checkpoint(&checkpoint).unwrap().unwrap();
        for prompt in prompts("bf16") {
            if let Some(messages) = &prompt.messages {
                let text = |m: &serde_json::Value, key: &str| m[key].as_str().unwrap().to_owned();
                let said = messages.as_array().unwrap().iter();
                let said: Vec<Message> =
                    said.map(|m| Message::new(text(m, "role"), text(m, "content"))).collect();
                let render = RenderOptions { add_generation_prompt: true, ..Default::default() };
                assert_eq!(template.render(&said, &render).unwrap(), prompt.text);
            }
            let special = !prompt.add_special;
            let ids = tokenizer.encode(&prompt.text, prompt.add_special, special).unwrap();
            assert_eq!(ids, prompt.ids, "{folder}, {}", prompt.name);
        }
    }
}

fn logits_and_greedy(checkpoint: &str, opened: &Opened) {
    let device = Device::open(&DeviceOptions::default()).unwrap();
    let mut engine = engine(&device, &opened.model, &opened.checkpoint);
    let before = device.counters();
    for prompt in prompts(checkpoint) {
        let what = format!("{checkpoint}, {}", prompt.name);
        let mut feed = engine.feed(prompt.ids.len() + prompt.greedy.len()).unwrap();
        let mut row = push(&mut feed, &prompt.ids);
        let off = prompt.off(&row);
        assert!(off <= LOGITS, "{what}: a logit is off by {off}");
        for (step, (&id, &margin)) in prompt.greedy.iter().zip(&prompt.margins).enumerate() {
            if margin < TIE {
                assert!(step > 0, "{what}: nothing was compared");
                break;
            }
            assert_eq!(argmax(&row), id, "{what}, step {step}");
            row = push(&mut feed, &[id]);
        }
    }
    assert_eq!(before, device.counters(), "{checkpoint}: something was allocated after the load");
}

#[test]
fn the_bundled_checkpoint_answers_as_transformers_does() {
    logits_and_greedy("bf16", &plimsoll::demo().unwrap());
}

#[test]
fn the_packed_checkpoint_answers_as_mlx_does() {
    logits_and_greedy("4bit", &plimsoll::open(path("plimsoll-demo-4bit")).unwrap());
}

#[test]
fn the_loss_of_the_held_out_text_is_the_references() {
    let heldout = &expected()["heldout"];
    let text = path("heldout.txt").display().to_string();
    for (checkpoint, folder) in FOLDERS {
        let folder = path(folder).display().to_string();
        // The bundled one is bf16's folder.
        let model = if checkpoint == "bf16" { vec![] } else { vec![folder.as_str()] };
        let args = [&["perplexity"], &model[..], &["--documents", &text, "--kv", "f32", "--json"]].concat();
        let got = commands::good(&args);
        assert_eq!(got["scored_tokens"], heldout["tokens"], "{checkpoint}");
        assert_eq!(got["parts"], heldout["documents"], "{checkpoint}");
        let said = &heldout[checkpoint];
        let (loss, reference) = (got["mean_nll"].as_f64().unwrap(), said["mean_nll"].as_f64().unwrap());
        assert!((loss - reference).abs() <= LOSS, "{checkpoint}: {loss} for {reference}");
        let each = floats(&got["mean_nll_by_part"]);
        assert_eq!(each.len(), 20);
        for (i, (loss, reference)) in each.iter().zip(floats(&said["per_document"])).enumerate() {
            assert!((loss - reference).abs() <= 2.0 * LOSS, "{checkpoint}, {i}: {loss} for {reference}");
        }
    }
}
