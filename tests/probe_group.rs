//! The machine's ceiling where a control group sets it: made for the test where the system lets it be made, and a skip
//! that says why where it does not. A group is made within the test's own, so that what limits that holds on.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod commands;
mod support;

use commands::{code, document, golden, stderr};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The group's limit. The tiny model's process takes some 250 MB of it, drivers and all.
const LIMIT: u64 = 512 << 20;

/// A control group of this test's own, gone with it.
struct Group {
    folder: PathBuf,
    /// The file with its limit.
    limit: PathBuf,
}

impl Group {
    /// One with this limit, or why there is none.
    fn new(name: &str, bytes: u64) -> Result<Self, String> {
        let said =
            |what: &str, path: &Path, error: std::io::Error| format!("{what} {}: {error}", path.display());
        let groups = std::fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let find = |wanted: &dyn Fn(&str, &str) -> bool| {
            groups.lines().find_map(|line| {
                let mut parts = line.splitn(3, ':');
                let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
                wanted(number, controllers).then(|| path.trim_start_matches('/').to_owned())
            })
        };
        let (own, file) = if let Some(path) = find(&|_, names| names.split(',').any(|name| name == "memory"))
        {
            (Path::new("/sys/fs/cgroup/memory").join(path), "memory.limit_in_bytes")
        } else if let Some(path) = find(&|number, names| number == "0" && names.is_empty()) {
            (Path::new("/sys/fs/cgroup").join(path), "memory.max")
        } else {
            return Err("no hierarchy counts memory".to_owned());
        };
        let folder = own.join(format!("plimsoll-{name}-{}", std::process::id()));
        std::fs::create_dir(&folder).map_err(|error| said("cannot make the group", &folder, error))?;
        let group = Self { limit: folder.join(file), folder };
        // In version 2 the file is there only where the group above hands the controller on.
        std::fs::write(&group.limit, bytes.to_string())
            .map_err(|error| said("cannot write", &group.limit, error))?;
        Ok(group)
    }

    /// Runs a command in it.
    fn run(&self, command: &str) -> Output {
        let members = self.folder.join("cgroup.procs");
        let joined = format!("echo $$ > '{}' || exit 99; exec {command}", members.display());
        Command::new("sh").args(["-c", &joined]).stdin(Stdio::null()).output().unwrap()
    }

    /// Whether a process can be in it: a group with others below it, or a sandbox, may refuse.
    fn check(self) -> Result<Self, String> {
        match self.run("true") {
            output if output.status.success() => Ok(self),
            output => Err(format!("cannot enter {}: {}", self.folder.display(), stderr(&output).trim())),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The last of its processes may not be gone yet from the kernel's books.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        println!("{} stays", self.folder.display());
    }
}

/// The group, or nothing, with a word about it.
fn group(name: &str) -> Option<Group> {
    match Group::new(name, LIMIT).and_then(Group::check) {
        Ok(group) => Some(group),
        Err(why) => {
            println!("SKIPPED, nothing was tested: no control group can be made here: {why}");
            None
        }
    }
}

/// A probe in the group; slots make each step some 70 MB larger than the one before.
fn probe(group: &Group, more: &str) -> Value {
    let command = format!(
        "{} probe {} --chunk 32 --json --slots 4 --from 64 --step 98304 --max 983104 --validate prefix {more}",
        env!("CARGO_BIN_EXE_plimsoll"),
        golden()
    );
    let output = group.run(&command);
    assert_eq!(code(&output), 0, "{} {}", stderr(&output), String::from_utf8_lossy(&output.stdout));
    document(&output)
}

/// Every step that went well was asked, and fits the limit with all its process.
fn sound(found: &Value, run: &Value, group: &Group) {
    assert_eq!(found["limits"]["group"], LIMIT, "{}", found["limits"]);
    let steps = run["steps"].as_array().unwrap();
    assert!(steps.len() > 1, "a ceiling has steps below it: {run}");
    for step in steps {
        assert_eq!(step["planned"], step["allocated"]);
        assert!(step["planned"].as_u64() < Some(LIMIT), "{step}");
        let checked = &step["checked"];
        assert!(!checked["references"].as_array().unwrap().is_empty(), "{checked}");
        assert!(checked["drift"].as_f64() <= checked["tolerance"].as_f64(), "{checked}");
    }
    let under = run["ceiling"]["under"].as_str().unwrap();
    let named = format!("a control group of 536,870,912 by {}", group.limit.display());
    assert!(under.contains(&named), "{under}");
    assert_eq!(run["ceiling"]["gate"], "physical-memory");
}

#[test]
fn the_groups_limit_is_the_ceiling_at_both_rates() {
    let Some(group) = group("kill") else { return };
    // Without a floor only the kernel ends it: a step's process is killed, and the probe goes on to say so.
    let found = probe(&group, "--floor 0% --pause 0 --pause 1s");
    let runs = found["runs"].as_array().unwrap();
    assert_eq!(runs.iter().map(|run| &run["rate"]).collect::<Vec<_>>(), ["fast", "slow"]);
    for run in runs {
        sound(&found, run, &group);
        let ended = &run["ended"];
        assert_eq!((&ended["why"], &ended["signal"]), (&json!("killed"), &json!(9)), "{ended}");
        assert!(["loading", "touching", "validating"].contains(&ended["stage"].as_str().unwrap()), "{ended}");
        let (last, at) = (&run["ceiling"]["context"], &ended["context"]);
        println!("{}: {last} tokens, killed at {at} while {}", run["rate"], ended["stage"]);
    }
}

#[test]
fn the_floor_is_of_what_the_group_leaves() {
    let Some(group) = group("floor") else { return };
    let found = probe(&group, "--floor 20% --pause 0");
    // A fifth of the group's, not of the machine's, which would be more than the group has.
    assert_eq!(found["floor"], LIMIT / 5);
    let run = &found["runs"][0];
    sound(&found, run, &group);
    let ended = &run["ended"];
    assert_eq!(ended["why"], "floor", "{ended}");
    assert!(ended["have"].as_u64() < Some(LIMIT / 5), "{ended}");

    let output = group.run(&format!("{} probe --preflight --json", env!("CARGO_BIN_EXE_plimsoll")));
    let checks = document(&output)["preflight"].clone();
    let check = checks.as_array().unwrap().iter().find(|check| check["check"] == "control group").unwrap();
    assert!(check["state"] == "ask" && check["says"].as_str().unwrap().contains("536,870,912"), "{check}");
}
