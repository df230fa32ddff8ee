//! Other engines' rules on published configurations: weights as files store them, vLLM's types of recurrent states, and
//! which of mlx-lm's caches have windows.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "common/binary.rs"]
mod binary;

use plimsoll_estimator::peers::{self, Engine, Options, Price};
use plimsoll_estimator::report::{Question, Report};
use plimsoll_estimator::{Geometry, Overhead, weights};
use plimsoll_kernels::Profile;
use plimsoll_models::{Checkpoint, Model, Registry};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Every published configuration there is.
fn published() -> Vec<PathBuf> {
    let folders = ["../tests/data/configs", "../models/tests/data/priced"];
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let files = folders.iter().flat_map(|folder| std::fs::read_dir(root.join(folder)).unwrap());
    let mut paths: Vec<PathBuf> = files.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "json"));
    paths.sort();
    assert!(paths.len() > 40, "{}", paths.len());
    paths
}

fn path(name: &str) -> PathBuf {
    let ends = format!("{name}.json");
    published().into_iter().find(|path| path.file_name().is_some_and(|file| *file == *ends)).expect(name)
}

fn opened(path: &Path) -> (Checkpoint, Model) {
    let checkpoint = Checkpoint::open(path).unwrap();
    let model = Registry::standard().build(&checkpoint).unwrap();
    (checkpoint, model)
}

/// A published configuration with changes; `null` takes a key away.
fn changed(name: &str, changes: &[(&str, Value)]) -> (Checkpoint, Model) {
    let mut config = Checkpoint::open(&path(name)).unwrap().config().unwrap().clone();
    let nested = config.get("text_config").is_some();
    let fields = if nested { &mut config["text_config"] } else { &mut config };
    for (key, value) in changes {
        match value {
            Value::Null => drop(fields.as_object_mut().unwrap().remove(*key)),
            value => fields[*key] = value.clone(),
        }
    }
    let checkpoint = Checkpoint::from_config_bytes(config.to_string().as_bytes(), name).unwrap();
    let model = Registry::standard().build(&checkpoint).unwrap();
    (checkpoint, model)
}

fn report(engine: Engine, checkpoint: &Checkpoint, model: &Model, context: u32) -> Report {
    let profile = Profile::webgpu_default();
    let geometry =
        Geometry { prefill_chunk: engine.default_chunk(), ..Geometry::default_for(model.context_max) };
    let question = Question {
        checkpoint,
        model,
        geometry: &Geometry { context, ..geometry },
        profile: &profile,
        budget: None,
        overhead: Overhead::default(),
        company: None,
    };
    peers::report(&question, engine, &Options::default())
}

fn ask(args: &[&str]) -> Value {
    let output = binary::run(&[args, &["--json"]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}: {said}"))
}

#[test]
fn weights_are_the_stored_bytes_of_the_text() {
    let mut priced = 0;
    for path in published() {
        let (checkpoint, model) = opened(&path);
        let stored = weights::bytes_by_part(&checkpoint, &model).text;
        let recasts = ["nvfp4", "fp8", "q4_k_m", "q8_0", "mlx-4bit-g64", "bf16"].map(|scheme| {
            weights::recast(&model, scheme, &checkpoint).ok().map(|r| (r.model, r.stored.text))
        });
        for engine in Engine::ALL {
            let models = std::iter::once((&model, stored));
            for (model, stored) in models.chain(recasts.iter().flatten().map(|(m, s)| (m, *s))) {
                let report = report(engine, &checkpoint, model, 4096);
                let Some(bytes) = report.bytes else { continue };
                let what = (engine, weights::scheme_of(model), &path);
                assert_eq!(bytes.weights, stored, "{what:?}");
                priced += 1;
            }
        }
    }
    assert!(priced > 600, "{priced}");
    // The same from the command line, beside our own, whose rows have a scale each on the device.
    let path = path("llama-3.1-8b");
    let args = [path.to_str().unwrap(), "--weights", "nvfp4"];
    for engine in Engine::ALL {
        let report = ask(&[&args[..], &["--runtime", engine.name()]].concat());
        assert_eq!(report["bytes"]["weights"], 6_027_749_120u64, "{engine:?}");
        assert_eq!(report["model"]["stored_bytes"], 6_027_749_120u64);
    }
    assert!(ask(&args)["bytes"]["weights"].as_u64().unwrap() > 6_027_749_120);
    // Layers that draft, where they do: what the file has of them.
    let path = self::path("deepseek-v3");
    let args = [path.to_str().unwrap(), "--runtime", "vllm"];
    let (plain, drafting) = (ask(&args), ask(&[&args[..], &["--draft-depth", "1"]].concat()));
    let parts = &plain["model"]["checkpoint_bytes_by_part"];
    let of = |report: &Value| report["bytes"]["weights"].as_u64().unwrap();
    assert_eq!(Some(of(&drafting) - of(&plain)), parts["draft"].as_u64());
}

/// The type of vLLM's recurrent states: its flag, else what the class of the family reads, else the model's.
#[test]
fn states_are_in_the_type_that_vllm_gives_them() {
    let dtype = |key: &'static str, value: &str| vec![(key, json!(value))];
    let ssm = |value| dtype("mamba_ssm_dtype", value);
    let cache = |value| dtype("mamba_ssm_cache_dtype", value);
    let no_cache = vec![("mamba_ssm_cache_dtype", Value::Null)];
    let no_ssm = vec![("mamba_ssm_dtype", Value::Null)];
    for (name, changes, block, said) in [
        ("qwen3.5-9b", vec![], 528, "4: float32, as mamba_ssm_dtype of the configuration has it"),
        ("qwen3.5-9b", ssm("bfloat16"), 272, "2: bfloat16, as mamba_ssm_dtype"),
        ("qwen3.5-9b", no_ssm, 272, "2: the model's type, as this family has it"),
        // Their classes read no type at all: start-up logs of both have these blocks.
        ("granite-4.0-h-small", vec![], 528, "2: the model's type, as this family has it"),
        ("qwen3-next-80b-a3b", vec![], 544, "2: the model's type, as this family has it"),
        ("qwen3-next-80b-a3b", ssm("float32"), 544, "2: the model's type, as this family has it"),
        ("qwen3-next-80b-a3b", ssm("bfloat16"), 544, "2: the model's type, as this family has it"),
        ("nemotron-3-nano-30b-a3b", vec![], 2096, "4: float32, as mamba_ssm_cache_dtype"),
        ("nemotron-3-nano-30b-a3b", no_cache, 2096, "4: float32, as this family has it"),
        ("nemotron-3-nano-30b-a3b", cache("float16"), 1072, "2: float16, as mamba_ssm_cache_dtype"),
    ] {
        let (checkpoint, model) = changed(name, &changes);
        let report = report(Engine::Vllm, &checkpoint, &model, 8192);
        assert_eq!(report.geometry.page, block, "{name} {changes:?}");
        assert!(report.rules.iter().any(|rule| rule.contains(said)), "{name}: {:?}", report.rules);
        // What our own runtime keeps is no rule of another.
        for engine in Engine::ALL {
            let notes = self::report(engine, &checkpoint, &model, 8192).model.notes;
            assert!(!notes.iter().any(|note| note.contains("kept in")), "{engine:?}: {notes:?}");
        }
    }
    for (name, changes) in [("qwen3.5-9b", ssm("bfloat16")), ("nemotron-3-nano-30b-a3b", cache("float16"))] {
        let notes = changed(name, &changes).1.notes;
        assert!(notes.iter().any(|note| note.ends_with("in f32")), "{name}: {notes:?}");
    }
    // What asks for f32 gets it, and nothing is said.
    for name in ["qwen3.5-9b", "nemotron-3-nano-30b-a3b"] {
        let notes = opened(&path(name)).1.notes;
        assert!(!notes.iter().any(|note| note.contains("recurrent state")), "{name}: {notes:?}");
    }
    // Of a convolution alone there is no state; Mamba's is in the model's type.
    let (checkpoint, lfm) = opened(&path("lfm2-1.2b"));
    let rules = report(Engine::Vllm, &checkpoint, &lfm, 8192).rules;
    assert!(!rules.iter().any(|rule| rule.contains("and state in")), "{rules:?}");
    let (checkpoint, mamba) = opened(&path("mamba2-codestral-7b"));
    let each =
        mamba.states.iter().filter_map(|state| state.recurrent()).map(|shape| {
            2 * (u64::from(shape.channels) * u64::from(shape.taps - 1) + shape.state_bytes() / 4)
        });
    assert_eq!(report(Engine::Vllm, &checkpoint, &mamba, 8192).bytes.unwrap().recurrent, each.sum::<u64>());
    // A type that it does not know is refused, and another may be asked for.
    let (checkpoint, odd) = changed("qwen3.5-9b", &ssm("float8"));
    let refusal = report(Engine::Vllm, &checkpoint, &odd, 8192).refusal.unwrap();
    assert!(refusal.reason.contains("\"float8\""), "{}", refusal.reason);
    // The log of this model in 16 bits has blocks of 272 tokens.
    let path = path("qwen3.5-9b");
    let args = [path.to_str().unwrap(), "--runtime", "vllm", "--chunk", "8192", "--context", "8192"];
    for (kind, block) in [("auto", 528), ("float32", 528), ("float16", 272), ("bfloat16", 272)] {
        let report = ask(&[&args[..], &["--mamba-ssm-cache-dtype", kind]].concat());
        assert_eq!(report["geometry"]["page"], block, "{kind}");
    }
    let llama = self::path("llama-3.1-8b");
    let args = [llama.to_str().unwrap(), "--runtime", "vllm", "--mamba-ssm-cache-dtype", "float16"];
    assert!(ask(&args)["warnings"].to_string().contains("no layer keeps a recurrent state"));
}

fn mlx(model: &Model, context: u32) -> Price {
    let geometry = Geometry { context, prefill_chunk: 2048, ..Geometry::default_for(context) };
    peers::price(Engine::Mlx, model, &geometry, &Options::default()).unwrap()
}

/// Which layers of a family have windows in mlx-lm, which has files of its own for them.
#[test]
fn windows_are_those_of_mlx_lms_own_caches() {
    let sliding = |name: &str, changes: &[(&str, Value)]| {
        let model = changed(name, changes).1;
        let price = mlx(&model, 32_768);
        (price.kv_by_kind.sliding, price.kv_by_kind.full, price.rules.join("\n"))
    };
    // phi3 has no cache of its own, and llama's looks at the list of layers alone.
    let window = ("sliding_window", json!(4096));
    let cell = 2 * 8 * 128 * 2u64;
    let (rotating, full, rules) = sliding("mistral-7b-v0.3", std::slice::from_ref(&window));
    assert_eq!((rotating, full), (0, 32 * cell * 32_768), "{rules}");
    assert!(rules.contains("the window of 4096 is ignored") && rules.contains("mlx-lm 0.32.2"), "{rules}");
    assert!(!rules.contains("rotating"), "{rules}");
    let kinds: Vec<&str> = (0..32).map(|n| ["sliding_attention", "full_attention"][n % 2]).collect();
    let (rotating, full, rules) = sliding("mistral-7b-v0.3", &[window, ("layer_types", json!(kinds))]);
    assert_eq!((rotating, full), (16 * cell * (4095 + 2048), 16 * cell * 32_768), "{rules}");
    assert!(rules.contains("6143 cells at most"), "{rules}");
    assert_eq!(sliding("phi-3-mini", &[]).0, 0);
    for name in ["gemma-3-12b-it", "gemma-4-31b-it-nvfp4", "gpt-oss-20b", "trinity-mini"] {
        let (rotating, full, rules) = sliding(name, &[]);
        assert!(rotating > 0 && full > 0 && rules.contains("a rotating cache of"), "{name}: {rules}");
    }
    // Chunks are cut, and not rotated.
    let (chunked, full, rules) = sliding("llama-4-scout", &[]);
    assert_eq!((chunked, full), (36 * cell * (8192 + 2048), 12 * cell * 32_768), "{rules}");
    assert!(rules.contains("a chunked cache of 8192") && !rules.contains("rotating"), "{rules}");
    // Gemma 3's pattern is a number, whatever its list says.
    let layers = |pattern: Value| {
        let (checkpoint, model) = changed("gemma-3-12b-it", &[("sliding_window_pattern", pattern)]);
        drop(checkpoint);
        mlx(&model, 32_768).kv_by_kind.full
    };
    assert_eq!(layers(json!(6)), layers(Value::Null));
}

/// What is said of a cache in a short context is what is priced.
#[test]
fn a_short_prompt_has_no_whole_window() {
    // Eight heads of 256 values, keys and values in two bytes; 40 of 48 layers slide over 1,024.
    let model = opened(&path("gemma-3-12b-it")).1;
    let cell = 40 * 2 * 8 * 256 * 2u64;
    // 599 tokens of a prompt, and room for 256 more up to the window.
    for (context, cells) in [(1, 256), (2, 256), (600, 855), (769, 1024), (1024, 1024), (2049, 2048)] {
        let price = mlx(&model, context);
        assert_eq!(price.kv_by_kind.sliding, cell * cells, "{context}");
        let said = "a rotating cache of 1024 holds what came";
        let rule = price.rules.iter().find(|rule| rule.starts_with(said)).unwrap();
        assert!(rule.ends_with(&format!(": {cells} cells at most")), "{context}: {rule}");
    }
    // Where all layers slide no cache grows for ever, and nothing says so.
    let list = ("layer_types", json!(["sliding_attention"]));
    let (_, short) = changed("gemma-3-270m", &[("num_hidden_layers", json!(1)), list]);
    let rules = mlx(&short, 4096).rules.join("\n");
    assert!(rules.contains("rotating") && !rules.contains("caches grow by"), "{rules}");
}

/// The figures beside other engines' come out of the flags that stand beside them.
#[test]
fn the_compared_figures_come_out_of_the_flags_told() {
    let document = include_str!("../COMPARED.md");
    let row = |begins: &str| document.lines().find(|line| line.starts_with(begins)).unwrap().to_owned();
    let qwen = path("qwen3-30b-a3b");
    let args = [qwen.to_str().unwrap(), "--context", "70016", "--kv", "f16"];
    let flags = ["--runtime", "llama.cpp", "--no-flash-attention", "--cell-padding", "32"];
    let report = ask(&[&args[..], &flags].concat());
    assert_eq!(report["largest_allocation"]["bytes"], 4_588_568_576u64);
    assert!(row("| cb-11").contains(&flags.join(" ")), "{}", row("| cb-11"));
    let qwen = path("qwen3.5-27b");
    let flags = ["--device", "h200", "--weights", "mlx-4bit-g64"];
    assert!(row("| cb-13, step 2048").contains(&flags.join(" ")));
    for (step, bytes) in
        [("2048", 469_762_048u64), ("1024", 234_881_024), ("512", 117_440_512), ("256", 58_720_256)]
    {
        let args = [qwen.to_str().unwrap(), "--context", "131072", "--kv", "f16", "--chunk", step];
        let report = ask(&[&args[..], &flags].concat());
        assert_eq!(report["bytes"]["activations"], bytes, "{step}");
        // A figure of a table was taken at no time.
        assert_eq!(report["budget"]["taken"], Value::Null);
        assert!(report["budget"]["source"].as_str().unwrap().contains("device table"));
    }
}

/// What a pool has beside the states is said.
#[test]
fn padding_of_recurrent_states_is_told() {
    let path = path("lfm2-1.2b");
    let output = binary::run(&[path.to_str().unwrap(), "--slots", "3"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("163,840 bytes a slot, at any context, and 2,560 of padding in all"), "{said}");
}
