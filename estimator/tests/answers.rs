//! What an estimate answers is what it was asked, what it did not compute is not there, and what it suggests is taken when
//! it is typed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "common/binary.rs"]
mod binary;

use serde_json::{Value, json};
use std::process::{Command, Output};

fn config(name: &str) -> String {
    format!("{}/../tests/data/configs/{name}.json", env!("CARGO_MANIFEST_DIR"))
}

fn run(args: &[&str]) -> Output {
    let output = binary::run(args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("panicked"), "{args:?}: {said}");
    output
}

/// The exit code, the document, and the words on standard error.
fn ask(args: &[&str]) -> (i32, Value, String) {
    let output = run(&[args, &["--json"]].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let document = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}: {said}"));
    (output.status.code().unwrap(), document, said)
}

/// The exit code and the report for people.
fn text(args: &[&str]) -> (i32, String) {
    let output = run(args);
    (output.status.code().unwrap(), String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Arguments with the flags that a report prints in place of their own.
fn with(args: &[&str], flags: &str) -> Vec<String> {
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let given: Vec<&str> = flags.iter().copied().filter(|flag| flag.starts_with("--")).collect();
    let mut left = Vec::new();
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        if given.contains(arg) { rest.next().map(drop).unwrap_or_default() } else { left.push(*arg) }
    }
    left.into_iter().chain(flags).map(str::to_owned).collect()
}

/// The flags of the line that begins so.
fn flags_of(report: &str) -> String {
    let line = report.lines().find_map(|line| line.strip_prefix("nearest:"));
    line.unwrap_or_else(|| panic!("no nearest in {report}")).to_owned()
}

#[test]
fn what_is_suggested_is_in_the_formats_that_were_asked_for() {
    let llama = config("llama-3.1-8b");
    let formats: [(&[&str], &str); 6] = [
        (&["--kv", "q4_0"], "q4_0"),
        (&["--kv", "bf16"], "bf16"),
        (&["--kv-k", "q8_0"], "q8_0/f16"),
        (&["--kv-k", "q8_0", "--kv-v", "q4_0"], "q8_0/q4_0"),
        (&["--kv", "q8_0", "--kv-v", "f32"], "q8_0/f32"),
        (&["--kv", "f16"], "f16"),
    ];
    for (kv, name) in formats {
        let base = [llama.as_str(), "--memory", "20GB", "--context", "131072"];
        let args = [&base[..], kv].concat();
        let (code, report, _) = ask(&args);
        assert_eq!((code, &report["geometry"]["kv"]), (3, &json!(name)));
        let nearest = report["refusal"]["nearest"].as_array().unwrap();
        // A shorter context fits in any format: it comes first, and in the one that was asked for.
        assert_eq!(nearest[0]["kv"], name, "{nearest:?}");
        assert!(nearest[0]["context"].as_u64().unwrap() > 20_000, "{nearest:?}");
        for near in nearest {
            // Wider formats give nothing.
            assert!(near["kv"] == name || near["kv"] == "f16" || near["kv"] == "q8_0", "{near}");
            let number = |key: &str| near[key].to_string();
            let (k, v) = near["kv"].as_str().unwrap().split_once('/').unwrap_or_else(|| {
                let both = near["kv"].as_str().unwrap();
                (both, both)
            });
            let (context, slots, chunk) = (number("context"), number("slots"), number("prefill_chunk"));
            let tried = [&base[..3], &["--context", &context, "--slots", &slots, "--chunk", &chunk]].concat();
            let (code, tried, _) = ask(&[&tried[..], &["--kv-k", k, "--kv-v", v]].concat());
            assert_eq!((code, &tried["bytes"]["total"]), (0, &near["total"]), "{near}");
            assert_eq!(tried["geometry"]["kv"], near["kv"]);
        }
        // And as people copy it.
        let (_, said) = text(&args);
        assert!(said.contains(&format!("   {name} ")), "{said}");
        let copied = with(&args, &flags_of(&said));
        let copied: Vec<&str> = copied.iter().map(String::as_str).collect();
        assert_eq!(text(&copied).0, 0, "{copied:?}");
    }
}

#[test]
fn changes_of_formats_are_flags_that_take_them() {
    let llama = config("llama-3.1-8b");
    let (_, said) = text(&[&llama, "--kv-k", "f32", "--kv-v", "f16"]);
    assert!(said.contains("--kv-k q8_0 --kv-v q8_0"), "{said}");
    let (_, said) = text(&[&llama, "--kv", "bf16"]);
    assert!(said.contains("--kv q8_0") && !said.contains("--kv bf16"), "{said}");
    // Another engine, whose formats are apart, too: from both and not from the keys'.
    let (_, report, _) = ask(&[&llama, "--runtime", "llama.cpp", "--kv-k", "q8_0"]);
    let levers = report["levers"].as_array().unwrap();
    assert!(levers.iter().any(|lever| lever["change"] == "kv q8_0/f16 -> q8_0"), "{levers:?}");
}

/// Every number of a document with the way to it.
fn numbers(value: &Value, at: String, found: &mut Vec<(String, f64)>) {
    match value {
        Value::Number(number) => found.push((at, number.as_f64().unwrap())),
        Value::Array(all) => all.iter().enumerate().for_each(|(i, v)| numbers(v, format!("{at}/{i}"), found)),
        Value::Object(all) => all.iter().for_each(|(key, v)| numbers(v, format!("{at}/{key}"), found)),
        _ => {}
    }
}

#[test]
fn what_was_not_computed_is_no_zero() {
    let (llama, smollm) = (config("llama-3.1-8b"), config("smollm2-135m"));
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("answers");
    std::fs::create_dir_all(&folder).unwrap();
    let page = folder.join("refused.html");
    let page = page.to_str().unwrap();
    let refusals: [(&[&str], &str); 8] = [
        (&[&llama, "--max-allocation", "1kB"], "allocation"),
        (&[&llama, "--max-binding", "1kB", "--memory", "80GiB"], "binding"),
        (&[&llama, "--slots", "100000"], "geometry"),
        (&[&llama, "--context", "1000000000", "--memory", "20GB"], "geometry"),
        (&[&llama, "--slots", "300", "--context", "64"], "binding"),
        (&[&llama, "--runtime", "vllm", "--kv", "q8_0"], "limit"),
        (&[&llama, "--runtime", "llama.cpp", "--slots", "100000", "--memory", "80GiB"], "geometry"),
        (
            &[&smollm, "--context", "1", "--draft-depth", "0", "--snapshots", "0", "--max-binding", "4kB"],
            "binding",
        ),
    ];
    for (args, broke) in refusals {
        let (code, report, _) = ask(args);
        assert_eq!(
            (code, &report["refusal"]["broke"]),
            (3, &json!(broke)),
            "{args:?}: {}",
            report["refusal"]
        );
        for absent in ["bytes", "largest_allocation", "largest_binding", "pipelines", "coefficients"] {
            assert_eq!(report[absent], Value::Null, "{args:?}: {absent}");
        }
        let mut found = Vec::new();
        numbers(&report, String::new(), &mut found);
        // What a model has none of is 0, and so is what was asked for as that.
        let real = ["/model/", "/geometry/", "/recurrent_bytes_per_slot", "/overhead/bytes", "draft_depth"];
        let real = |at: &str| real.iter().any(|part| at.contains(part)) || at == "/budget/taken";
        let zeros: Vec<&String> =
            found.iter().filter(|(at, n)| *n == 0.0 && !real(at)).map(|(at, _)| at).collect();
        let zeros: Vec<_> = zeros.into_iter().filter(|at| !at.contains("/priced/")).collect();
        assert!(zeros.is_empty(), "{args:?}: {zeros:?}");
        // Neither people nor browsers are told of nothing.
        let (_, said) = text(&[args, &["--chart", "--html", page]].concat());
        let built = std::fs::read_to_string(page).unwrap();
        for said in [&said, &built] {
            assert!(!said.contains(" 0 B") && !said.contains(": ,"), "{args:?}: {said}");
        }
    }
    // What is a closed form of no engine is no part of its sums, and says so.
    let (_, report, _) = ask(&[&llama, "--runtime", "mlx"]);
    assert_eq!(report["not_in_bytes"], json!(["activations", "io", "retained", "load_host"]));
    assert_eq!((&report["largest_binding"], &report["pipelines"]), (&Value::Null, &Value::Null));
    assert_eq!(ask(&[&llama]).1.get("not_in_bytes"), None);
}

/// Every field of the bytes that is not a figure of the engine's is named, and no other.
#[test]
fn engines_name_every_field_that_they_give_no_figure_of() {
    for (engine, own) in [("llama.cpp", false), ("vllm", false), ("mlx", true)] {
        let (_, report, _) = ask(&[&config("gemma-3-12b-it"), "--runtime", engine]);
        let named: Vec<&str> =
            report["not_in_bytes"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
        let bytes = report["bytes"].as_object().unwrap();
        assert_eq!(named.contains(&"load_peak"), !own, "{engine}: {named:?}");
        assert_eq!(bytes["load_peak"] == bytes["total"], !own, "{engine}");
        assert_eq!(report["exact"]["activations"] == json!(false), named.contains(&"activations"));
        for (name, value) in
            bytes.iter().filter(|(name, _)| !["load_peak", "recurrent"].contains(&name.as_str()))
        {
            assert_eq!(*value == json!(0), named.contains(&name.as_str()), "{engine}: {name} is {value}");
        }
    }
}

/// Sentences of an engine's rules are of what the model has and what was asked for.
#[test]
fn engines_tell_the_rules_that_apply() {
    let rules = |model: &str, flags: &[&str]| {
        let (_, report, said) = ask(&[&[config(model).as_str(), "--runtime"], flags].concat());
        let rules = report["rules"].as_array().unwrap_or_else(|| panic!("{flags:?}: {said}"));
        rules.iter().map(|rule| rule.as_str().unwrap().to_owned()).collect::<Vec<_>>().join("\n")
    };
    let holds = "a sliding layer holds window";
    for unified in [&[][..], &["--kv-unified"]] {
        let of = |model: &str, flags: &[&str]| rules(model, &[&["llama.cpp"], unified, flags].concat());
        let windows = of("gemma-3-12b-it", &[]);
        assert!(windows.contains(holds) && !windows.contains("--swa-full"), "{windows}");
        let every = of("gemma-3-12b-it", &["--swa-full"]);
        assert!(!every.contains(holds) && every.contains("--swa-full"), "{every}");
        let plain = of("llama-3.1-8b", &[]);
        assert!(!plain.contains("slid") && plain.contains("cells rounded up to 256"), "{plain}");
        let states = of("mamba2-codestral-7b", &[]);
        assert!(!["cells", "stream", "slid"].iter().any(|word| states.contains(word)), "{states}");
        assert!(states.contains("recurrent states in f32"), "{states}");
    }
    let states = rules("mamba2-codestral-7b", &["mlx"]);
    assert!(!states.contains("cells") && !states.contains("buffer"), "{states}");
    let states = rules("mamba2-codestral-7b", &["vllm", "--memory", "80GiB"]);
    assert!(states.contains("blocks of states") && states.contains("sequences at once"), "{states}");
    assert!(!states.contains("tokens in") && !states.contains("attention page"), "{states}");
    let hybrid = rules("qwen3.5-9b", &["vllm", "--memory", "80GiB"]);
    assert!(hybrid.contains("tokens in") && hybrid.contains("attention page"), "{hybrid}");
}

#[test]
fn a_companion_that_cannot_be_is_a_refusal_by_its_name_and_limit() {
    let (llama, small, hybrid) = (config("llama-3.1-8b"), config("smollm2-135m"), config("qwen3.5-9b"));
    // Rows of 151,936 logits for 300 slots are past a binding; those of SmolLM2 are not.
    let wide = config("qwen3-8b");
    for (flag, what) in [("--draft", "which drafts for it"), ("--with", "beside it")] {
        let args = [small.as_str(), "--slots", "300", "--context", "64", flag, &wide, "--memory", "80GiB"];
        let (code, report, said) = ask(&args);
        assert_eq!((code, &report["verdict"]), (3, &json!("refused")), "{said}");
        let refusal = &report["refusal"];
        assert_eq!(
            (&refusal["broke"], &refusal["have"]),
            (&json!("binding"), &json!(128 << 20)),
            "{refusal}"
        );
        let reason = refusal["reason"].as_str().unwrap();
        assert!(
            reason.contains("qwen3-8b") && reason.contains(what) && reason.contains("binding limit"),
            "{reason}"
        );
        assert!(said.contains(reason), "{said}");
        // What of it is known stands, and what fits has a companion that can be.
        assert!(report["bytes"]["total"].as_u64().unwrap() > 0);
        assert!(report["ladder"].as_array().unwrap().iter().all(|rung| rung["verdict"] == "refused"));
        let (_, said) = text(&args);
        let copied = with(&args, &flags_of(&said));
        let copied: Vec<&str> = copied.iter().map(String::as_str).collect();
        assert_eq!(ask(&copied).0, 0, "{copied:?}");
    }
    // Also where no memory is known, and of a model by its own limit first.
    let (code, report, _) = ask(&[&small, "--slots", "300", "--context", "64", "--with", &wide]);
    assert_eq!((code, &report["refusal"]["broke"]), (3, &json!("binding")));
    let (_, report, _) = ask(&[&wide, "--slots", "300", "--context", "64", "--with", &wide]);
    assert!(!report["refusal"]["reason"].as_str().unwrap().contains("beside"), "{}", report["refusal"]);
    // By another engine's rules it is the engine that does not hold it.
    let args = [llama.as_str(), "--runtime", "vllm", "--kv", "f16", "--with", &hybrid, "--memory", "80GiB"];
    assert_ne!(ask(&args).0, 4);
    // What a model that goes was is unknown where it could not have been: its bytes can be given.
    let (code, report, said) = ask(&[&small, "--slots", "300", "--context", "64", "--replaces", &wide]);
    assert_eq!((code, &report["verdict"]), (4, &json!("cannot_price")), "{said}");
    assert!(
        said.contains("--replaces") && said.contains("qwen3-8b") && said.contains("give the bytes"),
        "{said}"
    );
}

#[test]
fn where_a_search_ends_is_not_the_answer() {
    let small = config("smollm2-135m");
    let roomy = ["--device", "h200", "--context", "32", "--kv", "q8_0"];
    let (code, report, _) = ask(&[&[small.as_str()], &roomy[..]].concat());
    assert_eq!((code, &report["largest"]["slots"]), (0, &json!(4096)));
    let ends = &report["largest"]["bounded_by"];
    assert_eq!(ends, &json!({"context": "model", "slots": "search", "prefill_chunk": "context"}));
    assert_eq!(report["frontier"]["bounded_by"], "search");
    assert_eq!(report["frontier"]["points"][0]["bounded_by"], "model");
    let (_, said) = text(&[&[small.as_str()], &roomy[..]].concat());
    assert!(said.contains("slots at least 4,096") && said.contains("more slots are not tried"), "{said}");
    assert!(said.contains("8,192 (all that the model was made for)"), "{said}");
    assert!(said.contains("chunk 32 (the whole context)"), "{said}");
    // More does fit.
    assert_eq!(ask(&[&[small.as_str(), "--slots", "5000"], &roomy[..]].concat()).0, 0);
    let (_, report, _) = ask(&[&small, "--device", "h200", "--context", "100000"]);
    assert_eq!(report["largest"]["prefill_chunk"], 65_536);
    assert_eq!(report["largest"]["bounded_by"]["prefill_chunk"], "search");
    assert_eq!(report["largest"]["bounded_by"]["context"], "search");
    // What a budget ends says nothing.
    let (_, report, _) = ask(&[&config("llama-3.1-8b"), "--memory", "20GB"]);
    assert_eq!(
        report["largest"]["bounded_by"],
        json!({"context": null, "slots": null, "prefill_chunk": null})
    );
    assert_eq!(report["frontier"]["bounded_by"], Value::Null);
    let (_, report, _) = ask(&[&small, "--runtime", "llama.cpp", "--memory", "80GiB", "--context", "8192"]);
    assert_eq!(report["largest"]["bounded_by"]["context"], "model");
    assert_eq!(report["largest"]["bounded_by"]["prefill_chunk"], "search");
}

#[test]
fn a_share_of_vllm_is_of_the_whole_device() {
    let (model, small) = (config("llama-3.1-8b"), config("smollm2-135m"));
    let vllm =
        |more: &[&str]| ask(&[&[model.as_str(), "--runtime", "vllm", "--context", "8192"], more].concat());
    let (_, alone, _) = vllm(&[]);
    let need = alone["bytes"]["total"].as_u64().unwrap();
    let (_, with, _) = vllm(&["--with", &small]);
    let beside = with["others"]["here"][0]["total"].as_u64().unwrap();
    let half = ["--gpu-memory-utilization", "0.5"];
    let ends = |whole: u64, more: &[&str]| vllm(&[&["--memory", &whole.to_string()], more].concat());
    // Half of the device is the model's; a tenant in the other half takes nothing of it.
    assert_eq!(ends(2 * need, &half).0, 0);
    assert_eq!(ends(2 * need - 2, &half).0, 3);
    assert!(beside < need);
    assert_eq!(ends(2 * need, &[&half[..], &["--with", &small]].concat()).0, 0);
    // A model that drafts is inside of it.
    assert_eq!(ends(2 * need, &[&half[..], &["--draft", &small]].concat()).0, 3);
    assert_eq!(ends(2 * (need + beside), &[&half[..], &["--draft", &small]].concat()).0, 0);
    let (code, refused, _) = ends(2 * (need + beside) - 2, &[&half[..], &["--draft", &small]].concat());
    assert_eq!((code, &refused["refusal"]["need"]), (3, &json!(need)), "{refused}");
    assert_eq!(refused["refusal"]["have"], need - 1);
    // A tenant that does not leave the share free is one beside which it does not start.
    let whole = 10 * need;
    let (code, refused, said) = ends(whole, &["--gpu-memory-utilization", "0.9999", "--with", &small]);
    assert_eq!((code, &refused["refusal"]["broke"]), (3, &json!("total")), "{said}");
    assert_eq!(refused["refusal"]["have"], whole - beside);
    let share =
        said.split("--gpu-memory-utilization ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    assert_eq!(ends(whole, &["--gpu-memory-utilization", share, "--with", &small]).0, 0, "{share}");
    let whole = whole.to_string();
    let args = [&model, "--runtime", "vllm", "--gpu-memory-utilization", "0.9999", "--with", &small];
    let (_, said) = text(&[&args[..], &["--context", "8192", "--memory", &whole]].concat());
    assert!(said.contains("does not start") && !said.contains("no geometry of this model fits"), "{said}");
    // And so is a reserve: it is left of the device, and the share is of all of it.
    let device = ["--device", "h200", "--gpu-memory-utilization", "1"];
    assert_eq!(vllm(&device).0, 0);
    assert_eq!(vllm(&[&device[..], &["--reserve", "1GiB"]].concat()).0, 3);
}

#[test]
fn what_goes_says_what_it_is_added_to() {
    let small = config("smollm2-135m");
    let cases: [(&[&str], &str); 3] = [
        (&[], "no budget is known to add them to"),
        (&["--memory", "64GiB"], "not added to the budget"),
        (&["--device", "h200"], "not added to the budget"),
    ];
    for (more, expected) in cases {
        let args = [&[small.as_str(), "--replaces", "12GB"], more].concat();
        let (code, said) = text(&args);
        assert!(code == 0 && said.contains("12,000,000,000 bytes") && said.contains(expected), "{said}");
        assert_eq!(ask(&args).1["others"]["credited"], 0);
    }
}

#[test]
fn limits_tell_both_values_and_which_won() {
    let small = config("smollm2-135m");
    let (_, report, said) =
        ask(&[&small, "--max-allocation", "1.5GiB", "--device", "4090", "--max-binding", "1GiB"]);
    let device = report["limits"][0]["device"].as_u64().unwrap();
    assert!(device > 3 << 29 && !said.contains("changes nothing"), "{said}");
    assert_eq!(report["limits"][0]["bytes"], 3u64 << 29);
    assert_eq!(
        (&report["limits"][0]["won"], &report["limits"][0]["setting"]),
        (&json!("requested"), &json!("flag --max-allocation"))
    );
    assert_eq!(
        (&report["limits"][1]["what"], &report["limits"][1]["bytes"]),
        (&json!("binding"), &json!(1 << 30))
    );
    // Above what there is they change nothing, and that is told.
    let (code, report, said) = ask(&[&small, "--max-allocation", "1GiB", "--max-binding", "2GiB"]);
    assert_eq!(code, 0);
    for (at, flag, bytes, asked) in
        [(0, "--max-allocation", 256u64, 1024u64), (1, "--max-binding", 128, 2048)]
    {
        let limit = &report["limits"][at];
        assert_eq!((&limit["won"], &limit["bytes"]), (&json!("derived"), &json!(bytes << 20)), "{limit}");
        assert_eq!((&limit["requested"], &limit["device"]), (&json!(asked << 20), &json!(bytes << 20)));
        assert!(
            said.lines().any(|l| l.contains(flag) && l.contains("changes nothing") && l.contains("MiB")),
            "{said}"
        );
    }
    let plain = ask(&[&small]).1;
    assert_eq!(
        (&plain["limits"][1]["won"], &plain["limits"][1]["requested"]),
        (&json!("derived"), &Value::Null)
    );
    // A binding is no longer than its buffer: the flag that broke it is the one of buffers.
    let (code, report, said) = ask(&[&small, "--max-allocation", "1kB"]);
    assert_eq!(
        (code, &report["refusal"]["broke"], &report["refusal"]["have"]),
        (3, &json!("allocation"), &json!(1000))
    );
    assert!(said.contains("allocation limit is 1,000 bytes") && !said.contains("binding"), "{said}");
    let (_, said) = text(&[&small, "--max-allocation", "1kB"]);
    assert!(said.contains("flag --max-allocation") && !said.contains("WebGPU's least limits"), "{said}");
    let (_, report, said) = ask(&[&small, "--max-binding", "1kB"]);
    assert!(
        report["refusal"]["broke"] == "binding" && said.contains("binding limit is 1,000 bytes"),
        "{said}"
    );
    let (_, report, _) = ask(&[&small, "--max-binding", "64MiB", "--max-allocation", "32MiB"]);
    assert_eq!(
        (&report["limits"][1]["setting"], &report["limits"][1]["bytes"]),
        (&json!("flag --max-allocation"), &json!(32 << 20))
    );
}

#[test]
fn a_reserve_is_told_with_what_it_is_of() {
    let small = config("smollm2-135m");
    let (code, report, said) = ask(&[&small, "--memory", "64GiB", "--reserve", "1GiB"]);
    assert_eq!((code, &report["budget"]["bytes"]), (0, &json!(64u64 << 30)));
    let why = report["budget"]["why"].as_str().unwrap();
    assert!(why.contains("flag --reserve") && said.contains("--memory stays whole"), "{why}; {said}");
    assert!(text(&[&small, "--memory", "64GiB", "--reserve", "1GiB"]).1.contains(why));
    // Of a device it is taken, and the smaller of what is left and the ceiling holds; people see both.
    let (_, report, _) = ask(&[&small, "--memory", "64GiB", "--device", "h200", "--reserve", "100GiB"]);
    let derived = report["budget"]["derived"].as_u64().unwrap();
    assert_eq!(report["budget"]["bytes"], derived - (100 << 30));
    let (_, said) = text(&[&small, "--memory", "64GiB", "--device", "h200", "--reserve", "100GiB"]);
    assert!(said.contains("flag --reserve") && said.contains("68,719,476,736 (flag --memory)"), "{said}");
    // The variable is told like the flag.
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll-estimate"));
    let output =
        command.args([&small, "--memory", "64GiB"]).env("PLIMSOLL_RESERVE", "1GiB").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("PLIMSOLL_RESERVE") && said.contains("stays whole"),
        "{said}"
    );
}

#[test]
fn too_many_images_are_as_many_as_fit() {
    let gemma = config("gemma-3-12b-it");
    let args = [gemma.as_str(), "--images", "100", "--memory", "40GB"];
    let (code, report, _) = ask(&args);
    let nearest = report["refusal"]["nearest"].as_array().unwrap();
    // A context that holds them all, else as many as there is room for, else none.
    let offered: Vec<_> = nearest.iter().map(|near| (&near["context"], &near["images"])).collect();
    let expected = [(&json!(25_600), &json!(100)), (&json!(8192), &json!(32)), (&json!(8192), &json!(0))];
    assert_eq!((code, offered.as_slice()), (3, expected.as_slice()), "{nearest:?}");
    for near in nearest {
        let number = |key: &str| near[key].to_string();
        let (context, images) = (number("context"), number("images"));
        let flags = [gemma.as_str(), "--memory", "40GB", "--context", &context, "--images", &images];
        let (code, report, said) = ask(&flags);
        assert_eq!((code, &report["bytes"]["total"]), (0, &near["total"]), "{flags:?}: {said}");
    }
    let (_, said) = text(&args);
    let copied = with(&args, &flags_of(&said));
    assert!(copied.ends_with(&["--context".to_owned(), "25600".to_owned()]), "{copied:?}");
    assert_eq!(ask(&copied.iter().map(String::as_str).collect::<Vec<_>>()).0, 0);
}

#[test]
fn one_model_drafts_for_another() {
    let (qwen, small) = (config("qwen3.5-27b"), config("smollm2-135m"));
    let named = |args: &[&str]| {
        let (code, report, said) = ask(&[&[qwen.as_str()], args].concat());
        let here = report["others"]["here"].as_array().cloned().unwrap_or_default();
        let roles: Vec<String> = here.iter().map(|o| o["role"].as_str().unwrap().to_owned()).collect();
        (code, roles, report, said)
    };
    let (_, own, alone, _) = named(&["--draft-depth", "3"]);
    let (code, other, both, said) = named(&["--draft-depth", "3", "--draft", &small]);
    assert_eq!((code, own, other), (0, vec!["draft_layers".into()], vec!["draft".into()]), "{said}");
    // What the model itself takes hangs on the depth alone.
    assert_eq!(alone["bytes"], both["bytes"]);
    // So in an engine that takes one of them: with the small model, no layers of the large one.
    let engine = |args: &[&str]| ask(&[&[&qwen, "--runtime", "vllm", "--draft-depth", "3"], args].concat()).1;
    let (alone, both) = (engine(&[]), engine(&["--draft", &small]));
    let weights = |report: &Value| report["bytes"]["weights"].as_u64().unwrap();
    assert_eq!(weights(&alone) - weights(&both), 849_398_784);
}

#[test]
fn what_changes_nothing_of_a_model_is_said() {
    let cases: [(&str, &[&str], &str); 12] = [
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

#[test]
fn snapshots_given_up_are_a_number() {
    let llama = config("qwen3.5-27b");
    let (code, report, _) = ask(&[&llama, "--snapshots", "50", "--memory", "56GB"]);
    let nearest = report["refusal"]["nearest"].as_array().unwrap();
    assert!(code == 3 && nearest.iter().all(|near| near["snapshots"].is_u64()), "{nearest:?}");
    let (code, report, _) = ask(&[&llama, "--memory", "20GB"]);
    let none = report["refusal"]["nearest"].as_array().unwrap();
    assert!(code == 3 && none.iter().all(|near| near["snapshots"].is_null()), "{none:?}");
}

#[test]
fn images_by_other_engines_rules_are_priced_or_refused() {
    let (sees, blind) = (config("qwen3.5-27b"), config("qwen3-8b"));
    for engine in ["llama.cpp", "vllm", "mlx"] {
        let with = |model: &str, more: &[&str]| ask(&[&[model, "--runtime", engine], more].concat());
        let (_, none, _) = with(&sees, &[]);
        let (code, some, said) = with(&sees, &["--images", "8"]);
        assert_eq!(code, 0, "{said}");
        // The tower is loaded, and the rules say that no more of it is told.
        let weights = |report: &Value| report["bytes"]["weights"].as_u64().unwrap();
        let tower = weights(&some) - weights(&none);
        assert_eq!(tower, 921_460_192);
        let rules = some["rules"].to_string();
        assert!(rules.contains(&tower.to_string()) && rules.contains("however many images"), "{rules}");
        assert!(!none["rules"].to_string().contains("tower"));
        let (code, refused, said) = with(&blind, &["--images", "1"]);
        assert_eq!((code, &refused["refusal"]["name"]), (3, &json!("images")), "{said}");
        assert!(said.contains("reads no images"), "{said}");
        let near = &refused["refusal"]["nearest"][0];
        assert_eq!((&near["images"], &near["kv"]), (&Value::Null, &json!("f16")), "{near}");
        assert_eq!(text(&[&blind, "--runtime", engine, "--images", "1"]).0, 3);
    }
}

#[test]
fn formats_by_other_engines_rules_go_by_their_names() {
    let model = config("llama-3.1-8b");
    let vllm = [model.as_str(), "--runtime", "vllm", "--kv-fp8", "--memory", "20GiB", "--context", "131072"];
    let (code, report, _) = ask(&vllm);
    assert_eq!((code, &report["geometry"]["kv"]), (3, &json!("fp8")));
    assert!(report["rules"].to_string().contains("fp8, one byte a value"), "{}", report["rules"]);
    assert!(text(&vllm).1.contains("KV fp8,"));
    // What is suggested can be asked for.
    let near = &report["refusal"]["nearest"][0];
    let [context, slots, chunk] = ["context", "slots", "prefill_chunk"].map(|key| near[key].to_string());
    let kv = near["kv"].as_str().unwrap();
    assert_eq!(kv, "fp8");
    let again = [&model, "--runtime", "vllm", "--kv", kv, "--memory", "20GiB", "--context", &context];
    let (code, report, said) = ask(&[&again[..], &["--slots", &slots, "--chunk", &chunk]].concat());
    assert_eq!((code, &report["bytes"]["total"]), (0, &near["total"]), "{said}");
    let quantised = [model.as_str(), "--runtime", "mlx", "--kv-bits", "4"];
    let (_, report, _) = ask(&quantised);
    assert_eq!((&report["geometry"]["kv"], &report["geometry"]["kv_bits"]), (&json!("f16"), &json!(4)));
    assert!(text(&quantised).1.contains("KV f16 (full caches in 4 bits)"));
    // The others do not have it, and an estimate of ours is one alone.
    for engine in ["llama.cpp", "mlx"] {
        assert_eq!(ask(&[&model, "--runtime", engine, "--kv", "fp8"]).0, 3, "{engine}");
    }
    // One type is of both.
    for (engine, k, v) in [("vllm", "fp8", "f16"), ("vllm", "f16", "f32"), ("mlx", "f16", "f32")] {
        let (code, report, said) = ask(&[&model, "--runtime", engine, "--kv-k", k, "--kv-v", v]);
        assert!(code == 3 && said.contains("one type for keys and values"), "{engine}: {said}");
        assert!(!report["refusal"]["nearest"].as_array().unwrap().is_empty(), "{report}");
    }
    for (k, v) in [("fp8", "f16"), ("f16", "f32"), ("bf16", "f16"), ("f32", "f16")] {
        for engine in ["vllm", "mlx"].into_iter().filter(|engine| *engine == "vllm" || k != "fp8") {
            let (code, report, _) = ask(&[&model, "--runtime", engine, "--kv-k", k, "--kv-v", v]);
            let reason = report["refusal"]["reason"].as_str().unwrap_or_default();
            assert!(
                code == 3 && reason.contains(&format!("{k} and {v}")),
                "{engine} {k}/{v}: {code} {report}"
            );
        }
    }
    assert_eq!(ask(&[&model, "--runtime", "llama.cpp", "--kv-k", "f16", "--kv-v", "f32"]).0, 0);
    assert_eq!(ask(&[&model, "--runtime", "vllm", "--kv-k", "fp8", "--kv-v", "fp8"]).0, 0);
    let kv = |format| ask(&[&model, "--kv", format]).1["bytes"]["kv"].as_u64().unwrap();
    assert_eq!(2 * kv("fp8"), kv("f16"));
}

#[test]
fn one_more_token_costs_what_the_ladder_rises_by() {
    for (model, token, pool) in [("gemma-3-12b-it", 65_536, 393_216), ("gpt-oss-20b", 24_576, 49_152)] {
        let path = config(model);
        let (_, report, _) = ask(&[&path, "--runtime", "vllm", "--context", "131072"]);
        assert_eq!(
            (&report["kv_bytes_per_token"], &report["pool_bytes_per_token"]),
            (&json!(token), &json!(pool))
        );
        let rungs = report["ladder"].as_array().unwrap();
        let [.., low, high] = rungs.as_slice() else { panic!("{rungs:?}") };
        let of = |rung: &Value, key: &str| rung[key].as_u64().unwrap();
        let rise = (of(high, "total") - of(low, "total")) / (of(high, "context") - of(low, "context"));
        assert_eq!(rise, token, "{model}");
        let said = text(&[&path, "--runtime", "vllm"]).1;
        assert!(said.contains("as logs count them"), "{said}");
    }
    // States that are kept at every block's end are part of that, and are no constant.
    let nano = config("nemotron-3-nano-30b-a3b");
    let asked = [nano.as_str(), "--runtime", "vllm", "--mamba-cache", "all", "--context", "131072"];
    let (_, report, _) = ask(&asked);
    assert_eq!(
        (&report["kv_bytes_per_token"], &report["recurrent_bytes_per_slot"]),
        (&json!(30_720), &json!(null))
    );
    assert_eq!(report["bytes"]["recurrent"], 4 * 61 * 6 * 2176 * 1024u64);
    let (_, said) = text(&asked);
    assert!(said.contains("one more token of context: 30,720 bytes a slot"), "{said}");
    assert!(!said.contains("at any context") && !said.contains("costs the same"), "{said}");
    let (code, report, _) = ask(&[&config("mamba2-130m-hf"), "--runtime", "vllm", "--mamba-cache", "all"]);
    assert_eq!((code, &report["bytes"]), (3, &json!(null)), "{report}");
}

/// A figure of a table is no reading: asked again it says the same.
#[test]
fn what_a_devices_memory_refuses_is_refused_for_good() {
    let (qwen, small) = (config("qwen3-8b"), config("smollm2-135m"));
    let cases: [&[&str]; 8] = [
        &["--device", "rtx 4060 ti"],
        &["--device", "rtx 4060 ti", "--context", "4096", "--with", &small, "--with", &small],
        &["--device", "h200", "--reserve", "200GB"],
        &["--device", "h200", "--reserve", "135GB"],
        &["--device", "h200", "--memory", "10GB"],
        &["--device", "h200", "--runtime", "mlx", "--slots", "100"],
        &["--device", "h200", "--runtime", "llama.cpp", "--context", "1000000"],
        // Of which the engine takes a share.
        &["--device", "h200", "--runtime", "vllm", "--slots", "106"],
    ];
    for flags in cases {
        let args = [&[qwen.as_str()], flags].concat();
        let (code, report, _) = ask(&args);
        assert_eq!(
            (code, &report["refusal"]["lasts"]),
            (3, &json!("forever")),
            "{args:?} {}",
            report["refusal"]
        );
        let (_, said) = text(&args);
        assert!(said.contains("lasts     permanent"), "{args:?} {said}");
    }
}

#[test]
fn a_device_without_a_memory_of_its_own_says_so() {
    let qwen = config("qwen3-8b");
    let (code, said) = text(&[&qwen, "--device", "lavapipe"]);
    assert!(
        code == 0 && said.contains("lavapipe has no memory of its own that is known: give --memory 8GiB"),
        "{said}"
    );
    assert!(text(&[&qwen]).1.contains("or --device NAME"));
    assert_eq!(text(&[&qwen, "--device", "lavapipe", "--memory", "64GiB"]).0, 0);
}

/// Who is beside the model has no longer context than it was made for, and that is said.
#[test]
fn a_companion_with_less_context_is_told() {
    let (llama, small) = (config("llama-3.1-8b"), config("smollm2-135m"));
    for more in [&["--with"][..], &["--draft-depth", "2", "--draft"], &["--runtime", "vllm", "--with"]] {
        let at = |context: &'static str| [&[llama.as_str(), "--context", context], more, &[&small]].concat();
        let (_, report, said) = ask(&at("131072"));
        let expected =
            "priced with a context of 8,192, all that it was made for, and not with the 131,072 asked for";
        assert!(
            said.contains(expected) && report["warnings"].to_string().contains(expected),
            "{more:?} {said}"
        );
        assert_eq!(report["others"]["here"][0]["context"], 8192);
        assert!(text(&at("131072")).1.contains(", at a context of 8,192"), "{more:?}");
        let (_, report, said) = ask(&at("8192"));
        assert_eq!((said.as_str(), &report["warnings"]), ("", &json!([])), "{more:?}");
        assert!(!text(&at("8192")).1.contains("at a context of"), "{more:?}");
    }
    let help = String::from_utf8(run(&["--help"]).stdout).unwrap();
    assert!(help.contains("no longer context than it was made for"), "{help}");
}

/// What is held while caches grow is held against the budget as what is held in the end.
#[test]
fn what_mlx_holds_while_it_grows_must_fit_too() {
    let llama = config("llama-3.1-8b");
    for budget in [&["--device", "apple-m4-max-48"][..], &["--memory", "40GB"]] {
        let args = [&[llama.as_str(), "--runtime", "mlx", "--context", "131072"], budget].concat();
        let (code, report, said) = ask(&args);
        let of = |report: &Value, key: &str| report[key].as_u64().unwrap();
        let have = of(&report["budget"], "bytes");
        assert!(of(&report["bytes"], "total") < have && of(&report["bytes"], "load_peak") > have);
        assert_eq!((code, &report["refusal"]["broke"]), (3, &json!("load_peak")), "{said}");
        assert_eq!(report["refusal"]["need"], report["bytes"]["load_peak"]);
        assert!(said.contains("both copies of every cache"), "{said}");
        // What is said to fit does, and one token more does not.
        let most = of(&report["largest"], "context");
        let at = |context: u64| {
            let context = context.to_string();
            ask(&[&[llama.as_str(), "--runtime", "mlx", "--context", &context], budget].concat()).0
        };
        assert_eq!((at(most), at(most + 1)), (0, 3), "{most}");
        let last = report["ladder"].as_array().unwrap().last().unwrap();
        assert_eq!(last["verdict"], "refused");
        for near in report["refusal"]["nearest"].as_array().unwrap() {
            assert_eq!(at(near["context"].as_u64().unwrap()), 0, "{near}");
        }
    }
}

/// Heads of 40 are no whole blocks of 32: the format that suits both is offered.
#[test]
fn a_companion_that_a_format_does_not_suit_has_a_nearest() {
    let llama = config("llama-3.1-8b");
    let odd = std::env::temp_dir().join(format!("plimsoll-answers-odd-{}.json", std::process::id()));
    let stated = json!({"model_type": "llama", "vocab_size": 64, "hidden_size": 80, "num_hidden_layers": 2,
        "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 4096});
    std::fs::write(&odd, stated.to_string()).unwrap();
    for more in [&[][..], &["--runtime", "llama.cpp"]] {
        let args = [&[llama.as_str(), "--kv", "q8_0", "--with", odd.to_str().unwrap()], more].concat();
        let (code, report, said) = ask(&args);
        assert_eq!((code, &report["refusal"]["broke"]), (3, &json!("kv_format")), "{said}");
        let nearest = report["refusal"]["nearest"].as_array().unwrap();
        assert!(nearest.iter().any(|near| near["kv"] == "f16"), "{more:?} {nearest:?}");
        let with = [&[llama.as_str(), "--kv", "f16", "--with", odd.to_str().unwrap()], more].concat();
        assert_eq!(ask(&with).0, 0);
    }
    std::fs::remove_file(odd).unwrap();
}

#[test]
fn a_limit_that_ends_a_search_is_named() {
    let path = config("qwen3.5-27b");
    let asked = [path.as_str(), "--context", "32", "--chunk", "64", "--memory", "154GB"];
    let (_, report, _) = ask(&asked);
    assert_eq!(
        (&report["largest"]["slots"], &report["largest"]["bounded_by"]["slots"]),
        (&json!(135), &Value::Null)
    );
    let why = report["largest"]["stopped_by"]["slots"].as_str().unwrap();
    assert!(why.contains("logits needs 135,086,080 bytes where the binding limit"), "{why}");
    let why = report["frontier"]["stopped_by"].as_str().unwrap();
    assert!(why.contains("binding limit"), "{why}");
    let said = text(&asked).1;
    assert!(
        said.contains("not memory but a limit ends the slots") && said.contains("with 256 slots: "),
        "{said}"
    );
    // Where memory ends it no limit is blamed.
    let (_, report, _) = ask(&[&config("llama-3.1-8b"), "--memory", "16.2GB", "--context", "256"]);
    assert!(report["largest"]["slots"].as_u64() > Some(0), "{}", report["largest"]);
    let none = json!({"context": null, "slots": null, "prefill_chunk": null});
    assert_eq!((&report["largest"]["stopped_by"], &report["frontier"]["stopped_by"]), (&none, &Value::Null));
}

#[test]
fn an_image_beyond_the_cap_is_told_with_the_cap() {
    let path = config("qwen3.5-27b");
    let with = |size: &str| ask(&[&path, "--images", "1", "--context", "65536", "--image-size", size]);
    let (_, report, said) = with("9000x9000");
    assert!(said.contains("9000x9000") && said.contains("4096x4096"), "{said}");
    assert!(report["warnings"].to_string().contains("4096x4096"), "{}", report["warnings"]);
    for size in ["4096x4096", "8192x2048", "max"] {
        assert_eq!(with(size).1["warnings"], json!([]), "{size}");
    }
}

#[test]
fn drafts_that_an_engine_does_not_hold_can_be_left_out() {
    let path = config("mamba2-130m-hf");
    let asked = [path.as_str(), "--runtime", "mlx", "--draft-depth", "1"];
    let (code, report, said) = ask(&asked);
    assert_eq!(code, 3);
    assert!(!said.contains("own layers") && said.contains("drafting"), "{said}");
    assert_eq!(report["refusal"]["nearest"][0]["draft_depth"], 0, "{}", report["refusal"]);
    let (_, said) = text(&asked);
    let flags = flags_of(&said);
    assert_eq!(flags.trim(), "--draft-depth 0");
    assert_eq!(
        run(&with(&asked, &flags).iter().map(String::as_str).collect::<Vec<_>>()).status.code(),
        Some(0)
    );
    // Layers that draft are named where there are any; less memory than that needs offers less still.
    let (_, report, said) = ask(&[
        &config("qwen3.5-27b"),
        "--runtime",
        "mlx",
        "--draft-depth",
        "1",
        "--kv",
        "q8_0",
        "--memory",
        "55GB",
        "--context",
        "131072",
    ]);
    assert!(said.contains("own layers"), "{said}");
    let near = report["refusal"]["nearest"].as_array().unwrap();
    assert!(
        !near.is_empty()
            && near.iter().all(|s| s["draft_depth"] == 0 && s["total"].as_u64() <= Some(55_000_000_000)),
        "{near:?}"
    );
}
