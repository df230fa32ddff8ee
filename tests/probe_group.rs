//! The machine's ceiling where a control group sets it: made for the test where the system lets it be made, and a skip
//! that says why where it does not. A group is made within the test's own, so that what limits that holds on.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod commands;
mod groups;
mod support;

use commands::{code, document, golden, stderr};
use groups::Group;
use serde_json::{Value, json};

/// The group's limit. The tiny model's process takes some 250 MB of it, drivers and all.
const LIMIT: u64 = 512 << 20;

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
    let Some(group) = groups::group("kill", LIMIT) else { return };
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
    let Some(group) = groups::group("floor", LIMIT) else { return };
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
