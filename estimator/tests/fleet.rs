//! Fleets: what fits where, through the command line, against single estimates.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "common/binary.rs"]
mod binary;

use binary::run;
use serde_json::Value;
use std::path::{Path, PathBuf};

fn config(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../tests/data/configs/{name}.json"))
}

/// A fleet's file with copies of two configurations beside it.
fn fleet(name: &str, text: &str) -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fleet-{name}-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("models")).unwrap();
    for model in ["llama-3.1-8b", "gemma-3-270m"] {
        std::fs::copy(config(model), folder.join(format!("models/{model}.json"))).unwrap();
    }
    let path = folder.join("fleet.toml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

const TEXT: &str = r#"
[[device]]
name = "nvidia-rtx-3060-12"
[[device]]
name = "apple-m4-max-128"
[[device]]
name = "intel-lunar-lake-140v-32"
[[device]]
name = "my own box"
memory = "20GB"
[[model]]
path = "models/llama-3.1-8b.json"
[[model]]
path = "models/llama-3.1-8b.json"
weights = "q4_k_m"
[[model]]
path = "models/gemma-3-270m.json"
[[geometry]]
context = 4096
[[geometry]]
context = 32768
slots = 4
chunk = 256
kv = "q8_0"
"#;

#[test]
fn cells_say_what_single_estimates_say() {
    let path = fleet("good", TEXT);
    let output = run(&["--fleet", &path, "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let cells = report["cells"].as_array().unwrap();
    assert_eq!((report["schema"].as_u64(), cells.len()), (Some(1), 4 * 3 * 2));
    let count = |word: &str| cells.iter().filter(|c| c["verdict"] == word).count() as u64;
    assert_eq!(report["fits"].as_u64(), Some(count("fits")));
    assert!(count("fits") > 0 && count("refused") > 0 && count("cannot_price") == 0, "{report}");
    for cell in cells {
        let path =
            config(cell["model"].as_str().unwrap().trim_start_matches("models/").trim_end_matches(".json"));
        let number = |key: &str| cell[key].as_u64().unwrap().to_string();
        let (context, slots, chunk) = (number("context"), number("slots"), number("prefill_chunk"));
        let mut args =
            vec![path.to_str().unwrap(), "--context", &context, "--slots", &slots, "--chunk", &chunk];
        args.extend(["--json", "--kv", cell["kv"].as_str().unwrap()]);
        if cell["weights"] != "as-stored" {
            args.extend(["--weights", cell["weights"].as_str().unwrap()]);
        }
        match cell["device"].as_str().unwrap() {
            "my own box" => args.extend(["--memory", "20GB"]),
            device => args.extend(["--device", device]),
        }
        let single: Value = serde_json::from_slice(&run(&args).stdout).unwrap();
        assert_eq!(single["bytes"]["total"], cell["total"], "{cell}");
        assert_eq!(single["verdict"], cell["verdict"], "{cell}");
        let (alone, here) = (&single["largest"]["context"], &cell["largest_context"]);
        match cell["device"].as_str().unwrap() {
            // A ceiling is for the steady state; the memory of a device must hold the load, too.
            "my own box" => assert!(here.as_u64() <= alone.as_u64(), "{cell}: {alone}"),
            _ => assert_eq!(here, alone, "{cell}"),
        }
    }
    let table = run(&["--fleet", &path]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("my own box") && table.contains("cannot be priced"), "{table}");
}

#[test]
fn a_bad_row_says_so_in_its_cells_and_stops_nothing() {
    let text = r#"
device = [{ name = "apple-m4-max-128" }, { name = "no such thing" }, { name = "" }]
model = [{ path = "models/gemma-3-270m.json" }, { path = "models/none.json" },
         { path = "models/gemma-3-270m.json", weights = "q99" }]
geometry = [{}, { kv = "q9" }, { context = 4000000000 }]
"#;
    let output = run(&["--fleet", &fleet("bad", text), "--json"]);
    assert_eq!(output.status.code(), Some(0));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let cells = report["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 27);
    assert_eq!((report["fits"].as_u64(), report["refused"].as_u64()), (Some(1), Some(1)));
    for cell in cells.iter().filter(|c| c["verdict"] != "fits") {
        assert!(!cell["reason"].as_str().unwrap().is_empty(), "{cell}");
    }
}

/// What a row leaves open is the default also where its model cannot be opened; refusals change no exit code.
#[test]
fn defaults_are_those_of_every_row_and_refusals_end_well() {
    let text = r#"
device = [{ name = "small", memory = "1MiB" }]
model = [{ path = "models/gemma-3-270m.json" }, { path = "models/none.json" }]
"#;
    let path = fleet("defaults", text);
    let output = run(&["--fleet", &path, "--json"]);
    assert_eq!(output.status.code(), Some(0));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [opened, missing] = [0, 1].map(|at| &report["cells"][at]);
    assert_eq!((&opened["verdict"], &missing["verdict"]), (&"refused".into(), &"cannot_price".into()));
    for field in ["slots", "prefill_chunk", "kv"] {
        let default = &opened[field];
        assert!(!default.is_null(), "{field}");
        // Formats of keys and values that are the same are one name.
        assert_eq!(&missing[field], default, "{field}");
    }
    assert!(missing["context"].is_null() && missing["largest_context"].is_null());
    let table = String::from_utf8(run(&["--fleet", &path]).stdout).unwrap();
    let row = table.lines().find(|line| line.contains("none.json")).unwrap();
    assert!(row.contains(" - ") && !row.contains("none "), "{row}");
    let help = String::from_utf8(run(&["--help"]).stdout).unwrap();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("0 whatever the cells say"), "{help}");
}

#[test]
fn a_device_of_nothing_is_a_slip_that_is_named() {
    for field in ["memory", "max_buffer", "max_binding"] {
        for nothing in ["0", "\"0GiB\""] {
            let memory = if field == "memory" { "" } else { "memory = \"8GiB\", " };
            let text = format!(
                "device = [{{ name = \"odd\", {memory}{field} = {nothing} }}]\nmodel = [{{ path = \"models/gemma-3-270m.json\" }}]\n"
            );
            let output = run(&["--fleet", &fleet(&format!("zero-{field}"), &text), "--json"]);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "{field} = {nothing}: {said}");
            assert!(said.contains(field) && said.contains("odd"), "{said}");
        }
    }
}

/// What has no memory of its own is priced without a verdict, as it is when it is named alone.
#[test]
fn a_device_without_a_memory_is_priced() {
    let text = r#"
device = [{ name = "lavapipe" }, { name = "lavapipe", memory = "8GiB" }]
model = [{ path = "models/llama-3.1-8b.json" }, { path = "models/gemma-3-270m.json" }]
geometry = [{ context = 4096 }, { context = 1000000, chunk = 1000, slots = 16, kv = "f32" }]
"#;
    let path = fleet("lavapipe", text);
    let output = run(&["--fleet", &path, "--json"]);
    assert_eq!(output.status.code(), Some(0));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let cells = report["cells"].as_array().unwrap();
    let mut unjudged = 0;
    for cell in cells.iter().take(4) {
        let model =
            config(cell["model"].as_str().unwrap().trim_start_matches("models/").trim_end_matches(".json"));
        let number = |key: &str| cell[key].as_u64().unwrap().to_string();
        let (context, slots, chunk) = (number("context"), number("slots"), number("prefill_chunk"));
        let args = [
            "--context",
            &context,
            "--slots",
            &slots,
            "--chunk",
            &chunk,
            "--kv",
            cell["kv"].as_str().unwrap(),
        ];
        let mut all = vec![model.to_str().unwrap(), "--device", "lavapipe", "--json"];
        all.extend(args);
        let single: Value = serde_json::from_slice(&run(&all).stdout).unwrap();
        assert_eq!(single["verdict"], cell["verdict"], "{cell}");
        assert_eq!(single["bytes"]["total"], cell["total"], "{cell}");
        if cell["verdict"] == "no_budget" {
            unjudged += 1;
            assert!(
                cell["budget"].is_null() && cell["reason"].as_str().unwrap().contains("memory"),
                "{cell}"
            );
        }
    }
    assert!(unjudged >= 2 && report["no_budget"] == unjudged && report["cannot_price"] == 0, "{report}");
    assert!(cells.iter().skip(4).all(|cell| cell["verdict"] != "no_budget"), "{report}");
    let table = String::from_utf8(run(&["--fleet", &path]).stdout).unwrap();
    assert!(table.contains(&format!("{unjudged} have no budget")), "{table}");
}

#[test]
fn a_file_that_is_none_is_an_error() {
    let many = format!("device = [{}]\nmodel = [{{ path = \"x\" }}]\n", "{ name = \"a\" },".repeat(100_001));
    for (name, text, code) in [
        ("empty", "", 2),
        ("nothing", "device = []\nmodel = []\n", 2),
        ("unknown", "device = [{ name = \"a\", colour = 3 }]\nmodel = []\n", 2),
        ("kind", "device = 3\nmodel = 4\n", 2),
        ("broken", "device = [", 2),
        ("many", &many, 2),
    ] {
        let output = run(&["--fleet", &fleet(name, text), "--json"]);
        assert_eq!(output.status.code(), Some(code), "{name}");
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(document["error"]["message"].as_str().unwrap().contains("--fleet"), "{document}");
    }
    assert_eq!(run(&["--fleet", "/nowhere/fleet.toml"]).status.code(), Some(5));
}

/// Errors of the form say where they are, in words of the form.
#[test]
fn a_slip_in_the_file_is_named_with_its_line() {
    let model = "\n[[model]]\npath = \"models/gemma-3-270m.json\"\n";
    for (name, row, line, said) in [
        ("negative", "memory = -5", 3, "48GiB"),
        ("float", "memory = 1.5", 3, "48GiB"),
        ("list", "max_buffer = [1]", 3, "48GiB"),
        ("word", "memory = \"x\"", 3, "memory = \"x\""),
        ("part-of-a-byte", "max_binding = \"1.5\"", 3, "max_binding"),
        ("nothing-at-all", "memory = \"0GiB\"", 3, "refuse everything"),
        ("unknown-key", "\ncolour = 3", 4, "colour"),
        ("not-toml", "memory = = 3", 3, ""),
        ("too-large", "memory = 9223372036854775808", 3, ""),
        ("too-large-text", "max_buffer = \"9223372036854775808\"", 3, "2^63 - 1"),
        ("deep", &format!("{}a = 3", "a.".repeat(200)), 3, "recursion limit"),
        ("no-context", "memory = 3\n[[geometry]]\ncontext = 0", 5, "context = 0"),
        ("no-slots", "memory = 3\n[[geometry]]\nslots = 0", 5, "whole number from 1"),
        ("less", "memory = 3\n[[geometry]]\nchunk = -1", 5, "whole number from 1"),
        ("more", "memory = 3\n[[geometry]]\nslots = 4294967296", 5, "whole number from 1"),
    ] {
        let text = format!("[[device]]\nname = \"odd\"\n{row}\n{model}");
        let output = run(&["--fleet", &fleet(name, &text)]);
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{name}: {words}");
        assert!(words.contains(&format!("line {line}: ")) && words.contains(said), "{name}: {words}");
        assert!(!words.contains("Amount"), "{name}: {words}");
    }
    for (name, text, line) in [
        (
            "control",
            format!("[[device]]\nname = \"a\"\n[[device]]\nname = \"a\\u001b[31m\"\nmemory = 3{model}"),
            4,
        ),
        ("nothing", String::new(), 1),
        (
            "deep-later",
            format!("[[device]]\nname = \"a\"\n{model}\n{}a = 3\n[[device]]\n", "a.".repeat(200)),
            7,
        ),
    ] {
        let output = run(&["--fleet", &fleet(name, &text)]);
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{name}: {words}");
        assert!(words.contains(&format!("line {line}: ")) && !words.trim().ends_with(':'), "{name}: {words}");
    }
}

/// Where memory is one pool the host's share of a load must have room in it, too, as of a single estimate.
#[test]
fn what_a_load_holds_on_the_host_is_held_against_one_pool() {
    let (device, model) = ("intel-lunar-lake-140v-32", config("llama-3.1-8b"));
    for chunk in ["1", "2048"] {
        let single = |context: u64| {
            let context = context.to_string();
            let numbers = ["--context", &context, "--chunk", chunk, "--kv", "f32"];
            let args = [&[model.to_str().unwrap(), "--device", device, "--json"], &numbers[..]].concat();
            let output = run(&args);
            (output.status.code(), serde_json::from_slice::<Value>(&output.stdout).unwrap())
        };
        let most = single(32).1["largest"]["context"].as_u64().unwrap();
        for (context, verdict) in [(most, "fits"), (most + 32, "refused")] {
            let text = format!(
                "device = [{{ name = \"{device}\" }}]\nmodel = [{{ path = \"models/llama-3.1-8b.json\" }}]\n\
                 geometry = [{{ context = {context}, chunk = {chunk}, kv = \"f32\" }}]\n"
            );
            let output = run(&["--fleet", &fleet(&format!("pool-{chunk}-{verdict}"), &text), "--json"]);
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            let (cell, (code, alone)) = (&report["cells"][0], single(context));
            assert_eq!((code == Some(0), &alone["verdict"]), (verdict == "fits", &verdict.into()));
            assert_eq!(cell["verdict"], verdict, "{context}: {cell}");
            assert_eq!(cell["largest_context"], most, "{context}: {cell}");
        }
    }
}

#[test]
fn settings_of_the_shell_that_change_nothing_are_told() {
    let path = fleet("shell", TEXT);
    let with = |variables: &[(&str, &str)], json: bool| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_plimsoll-estimate"));
        for name in ["PLIMSOLL_MEMORY_LIMIT", "PLIMSOLL_RESERVE", "PLIMSOLL_CACHE_LIMIT"] {
            command.env_remove(name);
        }
        command.envs(variables.iter().copied()).args(["--fleet", &path]);
        if json { command.arg("--json").output().unwrap() } else { command.output().unwrap() }
    };
    let set = [("PLIMSOLL_MEMORY_LIMIT", "10GB"), ("PLIMSOLL_RESERVE", "1GB")];
    let output = with(&set, true);
    assert_eq!(output.status.code(), Some(0));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["warnings"].as_array().unwrap().len(), 2);
    for (name, _) in set {
        assert!(said.contains(name) && report["warnings"].to_string().contains(name), "{said}");
    }
    let plain: Value = serde_json::from_slice(&with(&[], true).stdout).unwrap();
    assert_eq!((&plain["cells"], plain["warnings"].as_array().unwrap().len()), (&report["cells"], 0));
    // What is no amount is an error here as it is elsewhere.
    assert_eq!(with(&[("PLIMSOLL_MEMORY_LIMIT", "many")], false).status.code(), Some(2));
}
