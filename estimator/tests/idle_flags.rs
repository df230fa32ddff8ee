//! Flags that change no byte of the model at hand are told, and others are not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "common/asked.rs"]
mod asked;

use asked::{ask, config};
use serde_json::{Value, json};

#[test]
fn what_changes_nothing_of_a_model_is_said() {
    let cases: [(&str, &[&str], &str); 21] = [
        ("llama-3.1-8b", &["--image-size", "10x10"], "how images are read is not known"),
        ("gemma-3-12b-it", &["--image-size", "10x10"], "every image is scaled to one size"),
        (
            "gemma-3-12b-it",
            &["--images", "2", "--image-size", "4096x4096"],
            "every image is scaled to one size",
        ),
        ("gemma-3-12b-it", &["--images", "2", "--image-size", "max"], ""),
        ("qwen3.5-27b", &["--images", "2", "--image-size", "640x480"], ""),
        ("qwen3.5-27b", &["--draft", "llama-3.1-8b"], "--draft drafts nothing without --draft-depth"),
        ("gemma-3-12b-it", &["--draft-depth", "2"], "--draft-depth costs nothing without --draft"),
        ("llama-3.1-8b", &["--runtime", "llama.cpp", "--swa-full"], "no layer slides"),
        ("llama-3.1-8b", &["--runtime", "llama.cpp", "--mla", "dense"], "no layer caches a latent"),
        ("llama-3.1-8b", &["--runtime", "vllm", "--mamba-cache", "all"], "no layer is recurrent"),
        ("llama-3.1-8b", &["--runtime", "vllm", "--no-hybrid-kv"], "all layers are alike"),
        ("qwen3.5-27b", &["--draft-depth", "2"], ""),
        ("mamba2-130m-hf", &["--kv", "q8_0"], "--kv changes nothing: no layer has keys and values"),
        ("deepseek-v3", &["--kv-v", "f32"], "--kv-v changes nothing: a latent is stored as keys alone"),
        (
            "qwen3-8b",
            &["--runtime", "llama.cpp", "--checkpoints", "7"],
            "no layer is recurrent and none slides",
        ),
        ("qwen3.5-9b", &["--runtime", "vllm", "--no-hybrid-kv"], "no layer slides"),
        ("llama-3.1-8b", &["--runtime", "llama.cpp", "--kv-unified"], "one slot has one stream"),
        ("llama-3.1-8b", &["--kv-k", "f16", "--kv-v", "f16"], ""),
        (
            "llama-3.1-8b",
            &["--runtime", "llama.cpp", "--cell-padding", "256", "--checkpoints", "32"],
            "--checkpoints",
        ),
        (
            "llama-3.1-8b",
            &["--runtime", "vllm", "--mamba-ssm-cache-dtype", "float16"],
            "no layer keeps a recurrent state",
        ),
        // What is beside it has keys and values.
        ("mamba2-130m-hf", &["--kv", "q8_0", "--with", "llama-3.1-8b"], ""),
    ];
    for (model, flags, expected) in cases {
        let flags: Vec<String> = flags
            .iter()
            .map(|flag| if *flag == "llama-3.1-8b" { config(flag) } else { (*flag).to_owned() })
            .collect();
        let model = config(model);
        let args: Vec<&str> =
            std::iter::once(model.as_str()).chain(flags.iter().map(String::as_str)).collect();
        let (code, report, said) = ask(&args);
        let warnings = report["warnings"].to_string();
        assert_eq!(code, 0, "{args:?}: {said}");
        if expected.is_empty() {
            assert_eq!((warnings.as_str(), said.as_str()), ("[]", ""), "{args:?}");
        } else {
            assert!(warnings.contains(expected) && said.contains(expected), "{args:?}: {warnings} {said}");
        }
    }
}

/// What a document says that a model takes.
fn figures(report: &Value) -> Vec<Value> {
    let of =
        ["bytes", "host", "peak", "kv_bytes_per_token", "recurrent_bytes_per_slot", "largest_allocation"];
    of.map(|field| report[field].clone()).to_vec()
}

/// A flag is told where all that a model takes is the same without it, and nowhere else.
#[test]
fn a_flag_is_told_where_the_price_is_the_same_without_it() {
    let llama_cpp: [&[&str]; 7] = [
        &["--kv", "f32"],
        &["--kv-v", "f32"],
        &["--kv-unified"],
        &["--cell-padding", "3000"],
        &["--checkpoints", "7"],
        &["--swa-full"],
        &["--no-flash-attention"],
    ];
    let vllm: [&[&str]; 4] =
        [&["--kv", "fp8"], &["--kv-fp8"], &["--no-hybrid-kv"], &["--mamba-cache", "align"]];
    let runtimes: [(&str, &[&[&str]]); 4] = [
        ("plimsoll", &[&["--kv", "q4_0"], &["--kv", "f32"], &["--kv-k", "f32"], &["--kv-v", "f32"]]),
        ("llama.cpp", &llama_cpp),
        ("vllm", &vllm),
        ("mlx", &[&["--kv", "f32"], &["--kv-bits", "8"], &["--mla", "dense"]]),
    ];
    let (mut told, mut heard) = (0, 0);
    for name in ["llama-3.1-8b", "gemma-3-12b-it", "qwen3.5-9b", "mamba2-130m-hf", "deepseek-v3"] {
        let model = config(name);
        for (runtime, flags) in runtimes {
            let base = [model.as_str(), "--runtime", runtime, "--slots", "3"];
            let (_, without, said) = ask(&base);
            assert_eq!((&without["warnings"], said.as_str()), (&json!([]), ""), "{base:?}");
            for flag in flags {
                let args = [&base[..], flag].concat();
                let (code, with, said) = ask(&args);
                assert!(code == 0 || with["verdict"] == "refused", "{args:?}: {said}");
                if with["bytes"].is_null() || without["bytes"].is_null() {
                    continue;
                }
                let idle = format!("{} changes nothing", flag[0]);
                let idle = with["warnings"].to_string().contains(&idle) && said.contains(&idle);
                assert_eq!(idle, figures(&with) == figures(&without), "{args:?}: {said}");
                if idle { told += 1 } else { heard += 1 }
            }
        }
    }
    assert!(told > 20 && heard > 30, "{told} {heard}");
}

/// A model without keys and values is run whatever the format of them.
#[test]
fn formats_without_kernels_are_of_models_that_have_keys_and_values() {
    for flags in [&["--kv", "q4_0"][..], &["--kv-k", "q8_0"]] {
        let only = |name: &str| ask(&[&[config(name).as_str()], flags].concat()).1["estimate_only"].clone();
        assert_eq!(only("mamba2-130m-hf"), Value::Null, "{flags:?}");
        assert!(only("llama-3.1-8b").as_str().unwrap().contains("no kernels"), "{flags:?}");
        assert!(only("qwen3.5-9b").is_string(), "{flags:?}");
    }
}
