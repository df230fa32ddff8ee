//! A process that is told to end in the middle of an answer ends, by that signal and soon, and leaves nothing behind.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod commands;
mod support;

use commands::{plimsoll, scratch, speaking};
use std::collections::BTreeSet;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A driver may be compiling, and other tests may run.
const SOON: Duration = Duration::from_secs(5);

fn files(folder: &Path) -> BTreeSet<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { BTreeSet::from([path]) }).collect()
}

/// Runs with a working directory and a temporary directory of its own, and is sent `signal` after the first text.
fn ended_by(name: &str, number: i32, json: bool) {
    let model = speaking(&format!("signal-{name}-{json}"));
    let folder = scratch(&format!("signal-folder-{name}-{json}"));
    let before = files(Path::new(&model));
    let mut command = plimsoll();
    // As long an answer as the model was made for, whatever it says.
    command.args(["run", &model, "-p", "x", "-n", "500", "--ignore-eos"]);
    if json {
        command.arg("--json");
    }
    let mut child = command
        .current_dir(&folder)
        .env("TMPDIR", &folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    if json {
        // Nothing is said before the end; this long it takes to start at least.
        std::thread::sleep(Duration::from_millis(100));
    } else {
        assert_eq!(stdout.read(&mut [0; 1]).unwrap(), 1, "it ended by itself");
    }
    end(&mut child, name, number, name);
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    if json {
        assert_eq!(rest, "", "half a document");
    }
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(!said.contains("panicked"), "{said}");
    assert_eq!((files(&folder), files(Path::new(&model))), (BTreeSet::new(), before), "{name}");
}

/// Sends a signal, which ends the process soon and as that signal does.
fn end(child: &mut Child, name: &str, number: i32, of: &str) {
    let sent = Instant::now();
    assert!(Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap().success());
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(sent.elapsed() < SOON, "{of}: it goes on");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!((status.code(), status.signal()), (None, Some(number)), "{of}");
}

/// Runs a verb and sends `signal` so long after it began, be it loading, compiling, reading a prompt or counting.
fn verb_ended_by(name: &str, number: i32, args: &[&str], after: u64) {
    let folder = scratch(&format!("signal-verb-{}-{name}-{after}", args[0]));
    let mut child = plimsoll()
        .args(args)
        .current_dir(&folder)
        .env("TMPDIR", &folder)
        // Open, so that a conversation waits.
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(after));
    let of = format!("{args:?} {name} after {after} ms");
    assert!(child.try_wait().unwrap().is_none(), "{of}: it ended by itself");
    end(&mut child, name, number, &of);
    let (mut rest, mut said) = (String::new(), String::new());
    child.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(rest.is_empty() || !args.contains(&"--json"), "{of}: half a document: {rest}");
    assert!(!said.contains("panicked"), "{of}: {said}");
    assert_eq!(files(&folder), BTreeSet::new(), "{of}");
}

/// Whether whoever started the tests has them ignore a signal, as shells do with SIGINT for what runs in the background:
/// processes inherit that, and are not ended by it.
fn is_ignored(number: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> (number - 1) & 1 == 1)
}

#[test]
fn an_answer_is_ended_by_a_signal() {
    for (name, number) in [("TERM", 15), ("INT", 2), ("HUP", 1)] {
        if is_ignored(number) {
            eprintln!("SKIPPED: {name} is ignored by the shell that runs the tests");
            continue;
        }
        ended_by(name, number, false);
    }
}

#[test]
fn no_half_document_is_written() {
    for (name, number) in [("TERM", 15), ("INT", 2), ("HUP", 1)] {
        if !is_ignored(number) {
            ended_by(name, number, true);
        }
    }
}

/// At its beginning, while a model is opened and loaded, and later, in the middle of what the verb does.
#[test]
fn every_verb_is_ended_by_a_signal_at_any_time() {
    let model = speaking("signal-verbs");
    let text = scratch("signal-text").join("text");
    std::fs::write(&text, "Hello, hello. ".repeat(20_000)).unwrap();
    let (text, prompt) = (text.display().to_string(), "Hello, hello. ".repeat(30));
    let json =
        |args: &[&str]| [args, &["--json"]].concat().iter().map(|&arg| arg.to_owned()).collect::<Vec<_>>();
    for args in [
        json(&["run", &model, "-p", &prompt, "-n", "60", "--ignore-eos"]),
        json(&["chat", &model]),
        json(&["bench", &model, "-p", "400", "-n", "60", "-r", "50"]),
        json(&["perplexity", &model, "--file", &text, "--window", "64"]),
        json(&["logits", &model, "--prompt", &prompt, "--generate", "60", "--out", "logits"]),
    ] {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let (late, names) =
            (if ["run", "logits"].contains(&args[0]) { 150 } else { 1500 }, [("TERM", 15), ("HUP", 1)]);
        for after in [20, late] {
            for (name, number) in names.into_iter().filter(|(_, number)| !is_ignored(*number)) {
                verb_ended_by(name, number, &args, after);
            }
        }
    }
}
