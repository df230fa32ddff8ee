//! The log of `plimsoll probe`: what a probe goes on from, and what it does not believe.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod commands;
mod support;

use commands::probe::*;
use commands::{code, document, plimsoll, run, scratch, stderr};
use serde_json::json;
use std::process::Command;
use std::time::Duration;

#[test]
fn a_probe_goes_on_from_its_log() {
    let folder = scratch("probe-log");
    let log = folder.join("log.jsonl").display().to_string();
    let first = good(&["--max", "128", "--pause", "0", "--log", &log]);
    assert_eq!((contexts(&first["runs"][0]), &first["runs"][0]["resumed"]), (vec![64, 128], &json!(0)));
    // A machine that went down while it wrote.
    let mut text = std::fs::read_to_string(&log).unwrap();
    text.truncate(text.len() - 30);
    std::fs::write(&log, &text).unwrap();
    let more = good(&["--max", "192", "--pause", "0", "--log", &log]);
    assert_eq!((contexts(&more["runs"][0]), &more["runs"][0]["resumed"]), (vec![64, 128, 192], &json!(1)));
    assert_eq!(more["runs"][0]["steps"][0], first["runs"][0]["steps"][0], "it is the record");
    let again = good(&["--max", "192", "--pause", "0", "--log", &log]);
    assert_eq!(again["runs"][0]["resumed"], 3);
    // Under another limit or at another pace it is another measurement.
    let other = good(&["--max", "64", "--pause", "1ms", "--log", &log]);
    assert_eq!(other["runs"][0]["resumed"], 0);
    let other = good(&["--max", "64", "--pause", "0", "--log", &log, "--memory", "1GiB"]);
    assert_eq!(other["runs"][0]["resumed"], 0);
    // Nor is it the same where others are left more, by a flag or by the environment.
    for (flag, variable) in [(Some("1MiB"), ""), (None, "1MiB"), (Some("1MiB"), "2MiB")] {
        let reserve = flag.map_or(vec![], |bytes| vec!["--reserve", bytes]);
        let mut command = plimsoll();
        command.args(flags(&[&["--max", "64", "--pause", "0", "--log", &log][..], &reserve].concat()));
        if !variable.is_empty() {
            command.env("PLIMSOLL_RESERVE", variable);
        }
        let mut once = || document(&command.output().unwrap())["runs"][0]["resumed"].clone();
        assert_eq!((once(), once()), (json!(0), json!(1)), "{flag:?} {variable}");
    }
}

/// A log is gone on from for the very same model and program, as far as what it says can be; what is from it is marked.
#[test]
fn a_log_of_something_else_is_named_and_figures_that_cannot_be_are_errors() {
    let folder = scratch("probe-log-of");
    let model = folder.join("model");
    std::fs::create_dir(&model).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(support::data("golden/llama").join(file), model.join(file)).unwrap();
    }
    let [name, log] = [&model, &folder.join("log")].map(|path| path.display().to_string());
    let flags = ["--chunk", "32", "--step", "64", "--max", "64", "--pause", "0", "--log", &log];
    let probe = |more: &[&str]| run(&[&["probe", &name], &flags[..], more].concat());
    let first = probe(&["--json"]);
    assert_eq!(document(&first)["log_not_used"], json!([]), "{}", stderr(&first));
    let again = probe(&["--json"]);
    assert_eq!(document(&again)["runs"][0]["from_log"], json!([64]));
    let text = String::from_utf8_lossy(&probe(&[]).stdout).into_owned();
    assert!(text.contains("context 64 (from the log): planned"), "{text}");

    // Figures that nobody measured.
    let whole = std::fs::read_to_string(&log).unwrap();
    let line = 1 + whole.lines().position(|line| line.contains("\"passed\"")).unwrap();
    for (field, to) in [
        ("\"load_seconds\":", "-1.0,\"x\":"),
        ("\"bytes_per_second\":", "-5e9,\"x\":"),
        ("\"prefill_tokens_per_second\":", "NaN,\"x\":"),
        ("\"decode_tokens_per_second\":", "null,\"x\":"),
        ("\"planned\":", "1,\"x\":"),
        ("\"planned\":", "-1,\"x\":"),
        ("\"allocated\":", "1,\"x\":"),
        ("\"filled\":", "999999999999,\"x\":"),
        ("\"drift\":", "7.5,\"x\":"),
        ("\"prefill_tokens_per_second\":", "1e300,\"x\":"),
        ("\"bytes_per_second\":", "1e300,\"x\":"),
        ("\"peak\":", "1,\"x\":"),
        ("\"checked\":{\"mode\":\"full\",\"tokens\":", "0,\"x\":"),
        ("\"tokens\":[", "],\"x\":["),
        ("\"anchors\":[", "],\"x\":["),
    ] {
        let lines = whole.lines().map(|text| match text.contains("\"passed\"") {
            true => text.replacen(field, &format!("{field}{to}"), 1) + "\n",
            false => format!("{text}\n"),
        });
        std::fs::write(&log, lines.collect::<String>()).unwrap();
        let output = probe(&["--json"]);
        assert_eq!(code(&output), 5, "{field}{to}: {}", stderr(&output));
        assert!(stderr(&output).contains(&format!("line {line}: ")), "{field}{to}: {}", stderr(&output));
    }
    std::fs::write(&log, &whole).unwrap();

    // Another file of weights, though it be of the same size, and another program.
    let weights = model.join("model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    std::fs::write(&weights, &bytes).unwrap();
    let other = probe(&["--json"]);
    let found = document(&other);
    assert_eq!(found["runs"][0]["from_log"], json!([]), "{found}");
    assert_eq!(found["log_not_used"][0]["differ"], json!(["files"]), "{}", found["log_not_used"]);
    assert!(stderr(&other).contains("not the same files"), "{}", stderr(&other));
    let version =
        whole.replace(&format!("\"version\":\"{}\"", env!("CARGO_PKG_VERSION")), "\"version\":\"0.0.1\"");
    assert_ne!(version, whole);
    std::fs::write(&log, version).unwrap();
    let found = document(&probe(&["--json"]));
    assert_eq!(found["runs"][0]["resumed"], 0);
    assert_eq!(
        found["log_not_used"][0]["differ"],
        json!(["files", "program.version"]),
        "{}",
        found["log_not_used"]
    );
}

/// A log that was cut at any place is gone on from; what never was one is left as it is.
#[test]
fn a_log_that_is_none_is_not_written_to() {
    let folder = scratch("probe-no-log");
    let log = folder.join("log").display().to_string();
    let small = ["--max", "64", "--pause", "0", "--log", &log];
    for other in ["GGUF\u{3}\0\0\0", "hello\n", "\n", "{\"model\":1}\n", "[[[[", "\u{1f980}"] {
        std::fs::write(&log, other).unwrap();
        let output = probe(&small);
        assert_eq!(code(&output), 2, "{other:?}: {}", stderr(&output));
        assert!(
            stderr(&output).contains("--log") && stderr(&output).contains("no log"),
            "{}",
            stderr(&output)
        );
        assert_eq!(std::fs::read_to_string(&log).unwrap(), other);
    }
    std::fs::remove_file(&log).unwrap();
    good(&small);
    let whole = std::fs::read(&log).unwrap();
    for kept in [1, 9, 40, whole.len() / 2, whole.len() - 1] {
        let mut cut = whole[..kept].to_vec();
        if kept > 9 {
            let foreign = json!({"schema": 1, "key": {}, "event": {"begun": {"context": 64}}});
            cut.extend(format!("\n{{\"schema\":2,\"key\":1}}\n{foreign}\n\0\n").bytes());
            cut.extend([0xff, 0xfe]);
        }
        std::fs::write(&log, cut).unwrap();
        assert_eq!(contexts(&good(&small)["runs"][0]), [64], "{kept}");
        let again = good(&small);
        assert_eq!(again["runs"][0]["resumed"], 1, "{kept}: {again}");
    }
    for none in [folder.display().to_string(), "/dev/zero".into(), "/no/such/folder/log".into()] {
        let output = probe(&["--max", "64", "--log", &none]);
        assert_eq!(code(&output), 2, "{none}: {}", stderr(&output));
    }
    if cfg!(unix) {
        let pipe = folder.join("pipe").display().to_string();
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let output = probe(&["--max", "64", "--log", &pipe]);
        assert_eq!(code(&output), 2, "{}", stderr(&output));
    }
}
