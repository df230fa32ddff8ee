//! What is said to fit is admitted when it is asked for, and one page or slot more is not: also beside companions that
//! grow with it, and on devices that must hold a load.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "common/binary.rs"]
mod binary;

use binary::run;
use serde_json::Value;

fn config(name: &str) -> String {
    format!("{}/../tests/data/configs/{name}.json", env!("CARGO_MANIFEST_DIR"))
}

fn ask(args: &[&str], more: &[&str]) -> (i32, Value) {
    let output = run(&[args, more, &["--json"]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    let document =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{args:?} {more:?}: {e}: {said}"));
    (output.status.code().unwrap(), document)
}

/// Holds every answer of a question (without context and slots) against the verdict on it.
fn holds(args: &[&str], slots: &str, context: &str) {
    let (_, report) = ask(args, &["--slots", slots, "--context", context]);
    let code = |context: u64, slots: u64| {
        ask(args, &["--slots", &slots.to_string(), "--context", &context.to_string()]).0
    };
    let (slots, context): (u64, u64) = (slots.parse().unwrap(), context.parse().unwrap());
    let most = report["model"]["context_max"].as_u64().unwrap().max(context);
    let mut tried = 0;
    if let Some(longest) = report["largest"]["context"].as_u64() {
        assert_eq!(code(longest, slots), 0, "{args:?}: context {longest}");
        if longest < most {
            assert_eq!(code(longest + 32, slots), 3, "{args:?}: context {longest} + 32");
        }
        tried += 1;
    }
    if let Some(many) = report["largest"]["slots"].as_u64() {
        assert_eq!(code(context, many), 0, "{args:?}: slots {many}");
        assert_eq!(code(context, many + 1), 3, "{args:?}: slots {many} + 1");
        tried += 1;
    }
    for point in report["frontier"]["points"].as_array().unwrap() {
        let (slots, context) = (point["slots"].as_u64().unwrap(), point["context"].as_u64().unwrap());
        assert_eq!(code(context, slots), 0, "{args:?}: {slots} x {context}");
        if context < most {
            assert_eq!(code(context + 32, slots), 3, "{args:?}: {slots} x {context} + 32");
        }
        tried += 1;
    }
    for rung in report["ladder"].as_array().unwrap() {
        let fits = code(rung["context"].as_u64().unwrap(), slots) == 0;
        assert_eq!(rung["verdict"] == "fits", fits, "{args:?}: {rung}");
    }
    for near in report.pointer("/refusal/nearest").and_then(Value::as_array).into_iter().flatten() {
        let number = |key: &str| near[key].as_u64().unwrap().to_string();
        let (context, slots, chunk) = (number("context"), number("slots"), number("prefill_chunk"));
        let kv = near["kv"].as_str().unwrap().to_owned();
        // What changes beside these has flags of its own.
        let depth = number("draft_depth");
        let given: Vec<&str> = args.iter().copied().filter(|a| *a != "--draft-depth" && *a != "1").collect();
        let near = [
            "--context",
            &context,
            "--slots",
            &slots,
            "--chunk",
            &chunk,
            "--kv",
            &kv,
            "--draft-depth",
            &depth,
        ];
        let given = strip(&given, "--chunk");
        assert_eq!(ask(&given, &near).0, 0, "{given:?} {near:?}");
        tried += 1;
    }
    assert!(tried > 0, "{args:?} has answers: {report}");
}

/// Arguments without a flag and its value.
fn strip<'a>(args: &[&'a str], flag: &str) -> Vec<&'a str> {
    let mut left = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if *arg == flag {
            args.next();
        } else {
            left.push(*arg)
        }
    }
    left
}

#[test]
fn companions_grow_with_what_is_asked() {
    let (qwen, small) = (config("qwen3.5-9b"), config("smollm2-135m"));
    holds(&[&qwen, "--draft-depth", "1", "--memory", "22GB"], "1", "4096");
    holds(&[&qwen, "--draft", &small, "--memory", "22GB"], "2", "4096");
    holds(&[&qwen, "--with", &small, "--memory", "21GB"], "1", "8192");
    // Asked from either side the answer is the same.
    let longest = |context: &str| {
        let args = [qwen.as_str(), "--draft-depth", "1", "--memory", "22GB", "--context", context];
        ask(&args, &[]).1["largest"]["context"].as_u64().unwrap()
    };
    assert_eq!(longest("4096"), longest("98304"));
}

#[test]
fn devices_hold_the_load_of_what_is_said_to_fit() {
    let (llama, gemma) = (config("llama-3.1-8b"), config("gemma-3-12b-it"));
    let device = ["--device", "nvidia-rtx-3060-12"];
    holds(&[&[gemma.as_str(), "--chunk", "500", "--weights", "q8_0"], &device[..]].concat(), "300", "32");
    holds(&[&[llama.as_str(), "--weights", "q8_0"], &device[..]].concat(), "1", "4096");
}

#[test]
fn slots_beyond_every_range_bring_the_nearest_that_fits() {
    let llama = config("llama-3.1-8b");
    let (code, report) = ask(&[&llama, "--memory", "20GB"], &["--slots", "100000"]);
    let slots = report["largest"]["slots"].as_u64().unwrap();
    let nearest = report["refusal"]["nearest"].as_array().unwrap();
    assert!(
        code == 3 && nearest.iter().any(|n| n["slots"] == slots && n["prefill_chunk"] == 512),
        "{nearest:?}"
    );
}

#[test]
fn flags_that_change_nothing_are_refused() {
    let llama = config("llama-3.1-8b");
    let cases: [&[&str]; 9] = [
        &["--kv-bits", "4"],
        &["--swa-full"],
        &["--block-size", "32"],
        &["--kv-fp8"],
        &["--mla", "dense"],
        &["--runtime", "llama.cpp", "--block-size", "32"],
        &["--runtime", "vllm", "--cell-padding", "32"],
        &["--runtime", "mlx", "--kv-unified"],
        &["--runtime", "mlx", "--kv-bits", "3"],
    ];
    for flags in cases {
        let (code, report) = ask(&[&llama], flags);
        let said = report["error"]["message"].as_str().unwrap();
        assert!(
            code == 2 && flags.iter().any(|flag| flag.starts_with("--") && said.contains(flag)),
            "{flags:?}: {said}"
        );
    }
}

#[test]
fn a_page_is_written_over_nothing_that_is_read() {
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("page-over");
    let _ = std::fs::remove_dir_all(&folder);
    let (model, other) = (folder.join("model"), folder.join("other"));
    for of in [&model, &other] {
        std::fs::create_dir_all(of).unwrap();
    }
    let golden = format!("{}/../tests/data/golden/llama", env!("CARGO_MANIFEST_DIR"));
    for entry in std::fs::read_dir(golden).unwrap().map(Result::unwrap).filter(|e| e.path().is_file()) {
        std::fs::copy(entry.path(), model.join(entry.file_name())).unwrap();
    }
    // Weights that nothing names are no less somebody's.
    for beside in ["tokenizer.json", "chat_template.jinja", "model-00002-of-00003.safetensors"] {
        if !model.join(beside).exists() {
            std::fs::write(model.join(beside), "{}").unwrap();
        }
    }
    let small = other.join("small.json");
    std::fs::copy(config("smollm2-135m"), &small).unwrap();
    let (directory, small) = (model.to_str().unwrap(), small.to_str().unwrap());
    let weights = model.join("model.safetensors");
    let llama = config("llama-3.1-8b");
    let link = other.join("link.html");
    #[cfg(unix)]
    std::os::unix::fs::symlink(&weights, &link).unwrap();
    #[cfg(not(unix))]
    std::fs::hard_link(&weights, &link).unwrap();
    let inside = |name: &str| model.join(name).to_str().unwrap().to_owned();
    let cases: Vec<(Vec<&str>, String)> = vec![
        (vec![directory], inside("model.safetensors")),
        (vec![directory], inside("config.json")),
        (vec![directory], inside("tokenizer.json")),
        (vec![directory], inside("chat_template.jinja")),
        (vec![directory], inside("model-00002-of-00003.safetensors")),
        (vec![directory], inside("../model/./model.safetensors")),
        (vec![directory], link.to_str().unwrap().to_owned()),
        (vec![weights.to_str().unwrap()], inside("config.json")),
        (vec![&llama, "--with", small], small.to_owned()),
        (vec![&llama, "--draft", small, "--draft-depth", "1"], small.to_owned()),
        (vec![&llama, "--replaces", small], small.to_owned()),
        (vec![&llama, "--with", directory], inside("model.safetensors")),
    ];
    for (args, page) in cases {
        let before = std::fs::read(&page).unwrap();
        let (code, report) = ask(&args, &["--html", &page]);
        let said = report["error"]["message"].as_str().unwrap_or_default();
        assert!(code == 2 && said.contains("--html"), "{args:?} {page}: {code} {report}");
        assert!(std::fs::read(&page).unwrap() == before, "{args:?} {page}: written over");
    }
    // A page in the model's own folder is nobody's file, also when it is there already.
    for _ in 0..2 {
        assert_eq!(ask(&[directory], &["--html", &inside("estimate.html")]).0, 0);
    }
}

#[test]
fn files_are_neither_overwritten_nor_endless_and_names_move_no_cursor() {
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("company");
    std::fs::create_dir_all(&folder).unwrap();
    let own = folder.join("config.json");
    std::fs::copy(config("smollm2-135m"), &own).unwrap();
    let own = own.to_str().unwrap();
    assert_eq!(ask(&[own, "--html", own], &[]).0, 2);
    assert_eq!(std::fs::read(own).unwrap(), std::fs::read(config("smollm2-135m")).unwrap());
    #[cfg(unix)]
    assert_eq!(run(&["--fleet", "/dev/zero"]).status.code(), Some(2));
    let fleet = folder.join("fleet.toml");
    let text = format!("[[device]]\nname = \"a\\u001b[31m\"\nmemory = \"8GB\"\n[[model]]\npath = '{own}'\n");
    std::fs::write(&fleet, text).unwrap();
    let said = run(&["--fleet", fleet.to_str().unwrap()]);
    assert!(said.status.code() == Some(2) && !said.stderr.contains(&0x1b), "{said:?}");
    let odd = folder.join("a\u{1b}[31m\nverdict fits");
    std::fs::create_dir_all(&odd).unwrap();
    std::fs::copy(own, odd.join("config.json")).unwrap();
    let said = run(&[odd.to_str().unwrap()]);
    assert!(said.status.success() && !said.stdout.contains(&0x1b), "{said:?}");
}
