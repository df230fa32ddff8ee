//! A probe's log is believed only as far as it can be, and used by one probe at a time; what a probe needs of its system and
//! does not get is an error of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod commands;
mod support;

use commands::{code, document, golden, plimsoll, run, scratch, stderr};
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_plimsoll");

fn probe(log: &Path, more: &[&str]) -> Output {
    let (model, log) = (golden(), log.display().to_string());
    let all =
        ["probe", &model, "--chunk", "32", "--json", "--from", "64", "--step", "64", "--pause", "0", "--log"];
    plimsoll().args(all).arg(log).args(more).output().unwrap()
}

/// The same in a shell that sets limits.
fn limited(limits: &str, command: &str) -> Output {
    let command = format!("{limits}; exec {PROGRAM} {command}");
    Command::new("bash").args(["-c", &command]).stdin(Stdio::null()).output().unwrap()
}

/// The lines of a log.
fn lines(log: &Path) -> Vec<Value> {
    std::fs::read_to_string(log).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn write(log: &Path, lines: &[Value]) {
    // As other programs write it, with spaces.
    let line = |line: &Value| {
        format!(
            "{{\"schema\": {}, \"event\": {}, \"key\": {}}}\n",
            line["schema"], line["event"], line["key"]
        )
    };
    std::fs::write(log, lines.iter().map(line).collect::<String>()).unwrap();
}

/// The line of a step, counted from 0.
fn passed(lines: &[Value], context: u64) -> usize {
    lines.iter().position(|line| line["event"]["passed"]["context"] == context).unwrap()
}

#[test]
fn what_cannot_be_is_found_before_the_first_step() {
    let log = scratch("log-believed").join("log");
    let first = probe(&log, &["--max", "192"]);
    assert_eq!(code(&first), 0, "{}", stderr(&first));
    let whole = lines(&log);
    write(&log, &whole);
    let again = probe(&log, &["--max", "192"]);
    assert_eq!(document(&again)["runs"][0]["resumed"], 3, "spaces change nothing: {}", stderr(&again));

    // In the middle, or after a gap: nothing is measured before it is found.
    let mut wrong_context = whole.clone();
    wrong_context[passed(&whole, 128)]["event"]["passed"]["context"] = json!(192);
    let mut after_a_gap = whole.clone();
    after_a_gap[passed(&whole, 192)]["event"]["passed"]["bytes_per_second"] = json!(-1.0);
    let at = passed(&whole, 128);
    after_a_gap.drain(at - 1..=at);
    for (changed, line) in [(wrong_context, passed(&whole, 128) + 1), (after_a_gap, passed(&whole, 192) - 1)]
    {
        write(&log, &changed);
        let before = std::fs::read(&log).unwrap();
        let output = probe(&log, &["--max", "256"]);
        assert_eq!(code(&output), 5, "{}", stderr(&output));
        assert!(stderr(&output).contains(&format!("line {line}: ")), "{line}: {}", stderr(&output));
        assert_eq!(std::fs::read(&log).unwrap(), before, "a step was begun");
    }

    // Figures that no probe of this machine writes.
    let huge = json!(22_500_000_000_000_u64);
    let known = cfg!(target_os = "linux");
    for (place, to, is) in [
        ("/resident", json!(-1), true),
        ("/planned", json!(-4), true),
        ("/peak", json!(-1), true),
        ("/budget/bytes", json!(-1), true),
        ("/peak", json!(190_000_000_000_000_u64), known),
        ("/device/available", huge.clone(), known),
        ("/seen/least_available", huge, known),
        ("/reserved", json!(u64::MAX), true),
        ("/process_swap", json!(u64::MAX), true),
        ("/budget/requested", json!(5), known),
        ("/budget/bytes", json!(u64::MAX), known),
        ("/checked/mode", json!("prefix"), true),
        ("/checked/mode", json!("zzz"), true),
        ("/checked/tolerance", json!(67), true),
        ("/checked/drift", json!(-1), true),
        ("/checked/tokens", json!(63), true),
        ("/checked/references", json!([]), true),
        ("/checked/recomputed", json!([]), true),
        ("/tokens", json!([1]), true),
        ("/tokens/0", json!(999_999), true),
        ("/bytes_per_second", json!(1), true),
        ("/exceeded", json!({"need": 1, "have": 5, "source": "x"}), true),
        ("/seen/swap_growth", json!(1_u64 << 40), true),
    ] {
        let mut changed = whole.clone();
        let at = passed(&whole, 64);
        let step = changed[at].pointer_mut("/event/passed").unwrap();
        let Some(figure) = step.pointer_mut(place).filter(|_| is) else { continue };
        *figure = to.clone();
        write(&log, &changed);
        let output = probe(&log, &["--max", "192"]);
        assert_eq!(code(&output), 5, "{place} {to}: {}", stderr(&output));
        assert!(stderr(&output).contains(&format!("line {}: ", at + 1)), "{place} {to}: {}", stderr(&output));
    }

    // Of an end, too.
    let budget = document(&first)["runs"][0]["steps"][1]["planned"].to_string();
    std::fs::remove_file(&log).unwrap();
    assert_eq!(code(&probe(&log, &["--max", "192", "--memory", &budget])), 0);
    let whole = lines(&log);
    let end = whole.iter().position(|line| line["event"]["ended"].is_object()).unwrap();
    for (place, to) in
        [("why", json!("maximum")), ("gate", json!("none")), ("exit_code", json!(0)), ("signal", json!(9))]
    {
        let mut changed = whole.clone();
        changed[end]["event"]["ended"][place] = to;
        write(&log, &changed);
        let output = probe(&log, &["--max", "192", "--memory", &budget]);
        assert_eq!(code(&output), 5, "{place}: {}", stderr(&output));
    }
}

/// What is left out is in the document too.
#[test]
fn lines_that_are_left_out_are_warned_of() {
    let log = scratch("log-left-out").join("log");
    assert_eq!(code(&probe(&log, &["--max", "64"])), 0);
    std::fs::OpenOptions::new()
        .append(true)
        .open(&log)
        .unwrap()
        .write_all(b"{\"schema\":2}\n{\"sch")
        .unwrap();
    let output = probe(&log, &["--max", "64"]);
    let warnings = document(&output)["warnings"].to_string();
    assert!(warnings.contains("2 lines cannot be read, left out"), "{warnings} {}", stderr(&output));
}

#[test]
fn one_log_is_one_probes_at_a_time() {
    let log = scratch("log-alone").join("log");
    let (model, name) = (golden(), log.display().to_string());
    let mut first = plimsoll()
        .args(["probe", &model, "--chunk", "32", "--json", "--from", "64", "--step", "64", "--max", "192"])
        .args(["--pause", "2s", "--log", &name])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while !std::fs::read_to_string(&log).unwrap_or_default().contains("\"begun\"") {
        assert!(start.elapsed() < Duration::from_secs(120), "no step");
        std::thread::sleep(Duration::from_millis(5));
    }
    let second = probe(&log, &["--max", "192"]);
    let done = first.try_wait().unwrap();
    assert_eq!(done, None, "the first had ended before the second asked");
    assert_eq!(code(&second), 2, "{}", stderr(&second));
    assert!(stderr(&second).contains("another probe's that is running"), "{}", stderr(&second));
    // A probe that is killed leaves no lock.
    first.kill().unwrap();
    first.wait().unwrap();
    let third = probe(&log, &["--max", "64"]);
    assert_eq!(code(&third), 0, "{}", stderr(&third));
}

#[test]
fn a_probe_that_found_nothing_is_no_success() {
    let log = scratch("log-nothing").join("log");
    for (flag, value) in [("--step-time", "0"), ("--step-time", "0s"), ("--floor", "99999TiB")] {
        if flag == "--floor" && !cfg!(target_os = "linux") {
            continue;
        }
        for more in [&[][..], &["--dry-run"], &["--preflight"]] {
            let output = probe(&log, &[&[flag, value, "--max", "64"], more].concat());
            assert_eq!(code(&output), 2, "{flag} {more:?}: {}", stderr(&output));
            assert!(stderr(&output).contains(flag), "{}", stderr(&output));
        }
    }
    // A limit that allows not even the first step has refused it.
    for more in [&["--step-time", "1ms"], &["--memory", "1"]] {
        let output = probe(&log, &[&["--max", "64"], &more[..]].concat());
        let found = document(&output);
        assert_eq!((code(&output), &found["error"]["exit_code"]), (3, &json!(3)), "{}", stderr(&output));
        assert!(found["runs"][0]["ceiling"].is_null(), "{found}");
        assert!(stderr(&output).contains("no step went well: context 64: "), "{}", stderr(&output));
    }
}

/// The process of the reference is ended by somebody: nothing was found, and no limit met.
#[cfg(target_os = "linux")]
#[test]
fn a_reference_that_somebody_ends_is_an_error() {
    let log = scratch("log-abort").join("log");
    let mut command = plimsoll();
    command.args(["probe", &golden(), "--chunk", "32", "--json", "--max", "64", "--pause", "0", "--log"]);
    let parent = command.arg(&log).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let children = format!("/proc/{0}/task/{0}/children", parent.id());
    let start = Instant::now();
    let child = loop {
        assert!(start.elapsed() < Duration::from_secs(60), "no reference");
        let text = std::fs::read_to_string(&children).unwrap_or_default();
        if let Some(pid) = text.split_whitespace().next() {
            break pid.to_owned();
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(Command::new("kill").args(["-ABRT", &child]).status().unwrap().success());
    let output = parent.wait_with_output().unwrap();
    let found = document(&output);
    assert_eq!(found["runs"][0]["ended"]["why"], "killed", "{found}");
    assert_eq!((code(&output), &found["error"]["exit_code"]), (6, &json!(6)), "{}", stderr(&output));
}

/// Files cannot be larger than `ulimit -f`: an error of the write, and no half of a file.
#[cfg(unix)]
#[test]
fn a_file_that_cannot_be_whole_is_not_there() {
    let folder = scratch("log-full");
    let [out, log] = ["out", "log"].map(|name| folder.join(name));
    let logits = format!("logits {} --ids 1,2,3 --generate 40 --out {}", golden(), out.display());
    let output = limited("ulimit -f 8", &logits);
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    assert!(stderr(&output).contains("cannot write"), "{}", stderr(&output));
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "nothing is left");
    // What was there before stays.
    std::fs::write(&out, "before").unwrap();
    assert_eq!(code(&limited("ulimit -f 8", &logits)), 2);
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "before");
    assert_eq!(code(&limited("true", &logits)), 0);
    assert!(std::fs::metadata(&out).unwrap().len() > 8192);
    // A log keeps whole lines.
    let flags = "--chunk 32 --from 64 --step 64 --max 640 --pause 0";
    let output = limited("ulimit -f 8", &format!("probe {} {flags} --log {}", golden(), log.display()));
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    assert!(stderr(&output).contains("cannot write"), "{}", stderr(&output));
    assert!(lines(&log).len() > 1 && std::fs::read(&log).unwrap().ends_with(b"\n"));
    // A page, and standard output.
    let page = folder.join("page.html");
    let estimate = format!("estimate {} --memory 1GiB --html {}", golden(), page.display());
    assert_eq!(code(&limited("ulimit -f 2", &estimate)), 2);
    assert!(!page.exists());
    let printed = format!("estimate {} --memory 1GiB --json > {}", golden(), folder.join("json").display());
    assert_eq!(code(&limited("ulimit -f 1", &printed)), 2);
}

/// Too few files may be open, or threads started: an error of its own, and never a panic.
#[cfg(target_os = "linux")]
#[test]
fn too_few_open_files_are_no_fault_of_what_was_asked() {
    let flags = "--chunk 32 --step 64 --max 64 --pause 0";
    let mut codes = Vec::new();
    for most in 4..16 {
        for verb in
            [format!("probe {} {flags}", golden()), format!("logits {} --ids 1 --out /dev/null", golden())]
        {
            let output = limited(&format!("ulimit -n {most}"), &verb);
            // Below what the loader of programs needs nothing of ours runs.
            if stderr(&output).contains("shared libraries") || stderr(&output).starts_with("bash") {
                continue;
            }
            assert!([0, 6].contains(&code(&output)), "{most} {verb}: {} {}", code(&output), stderr(&output));
            codes.push(code(&output));
        }
    }
    assert!(codes.contains(&6), "{codes:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn too_few_threads_are_an_error_that_names_their_limit() {
    // The limit holds nobody who is privileged; another user has no way to the program in some folders.
    let user = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let folder = std::env::temp_dir().join(format!("plimsoll-threads-{}", std::process::id()));
    let model = folder.join("model");
    std::fs::create_dir_all(&model).unwrap();
    let program = folder.join("plimsoll");
    std::fs::copy(PROGRAM, &program).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(support::data("golden/llama").join(file), model.join(file)).unwrap();
    }
    let fleet = "[[device]]\nname = \"a\"\nmemory = \"1GiB\"\n[[model]]\npath = \"model\"\n";
    std::fs::write(folder.join("fleet.toml"), fleet).unwrap();
    let able = Command::new("setpriv").args(user).arg(&program).arg("--version").output();
    if !able.is_ok_and(|output| output.status.success()) {
        std::fs::remove_dir_all(&folder).unwrap();
        eprintln!("SKIPPED, nothing was tested: no other user to be");
        return;
    }
    let [name, program] = [&model, &program].map(|path| path.display().to_string());
    let mut named = 0;
    for most in [1, 2, 3, 4, 6] {
        let probe = format!("probe {name} --from 64 --step 64 --max 64 --pause 0");
        let fleet = format!("estimate --fleet {}", folder.join("fleet.toml").display());
        // Nobody is asked: names are looked up on a thread, and there is none.
        let hub = if most == 1 { "estimate hf:no/model" } else { "--version" }.to_owned();
        for verb in [probe, format!("logits {name} --ids 1 --out /dev/null"), fleet, hub] {
            let command = format!("ulimit -u {most}; exec {program} {verb}");
            let output = Command::new("setpriv")
                .args(user)
                .args(["bash", "-c", &command])
                .env("XDG_RUNTIME_DIR", &folder)
                .env("PLIMSOLL_CACHE", "")
                .stdin(Stdio::null())
                .output()
                .unwrap();
            let said = stderr(&output);
            assert!([0, 6].contains(&code(&output)), "{most} {verb}: {:?} {said}", output.status);
            if code(&output) == 6 {
                assert!(said.contains("ulimit -u"), "{most} {verb}: {said}");
                named += 1;
            }
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(named > 0, "no limit was met");
}

#[test]
fn the_help_says_what_exit_codes_are() {
    let help = run(&["probe", "--help"]);
    let text = String::from_utf8_lossy(&help.stdout).into_owned();
    assert!(text.contains("exit code is 3"), "{text}");
}
