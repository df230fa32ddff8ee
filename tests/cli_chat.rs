//! `plimsoll chat`: commands, full conversations, failed turns.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod commands;
mod support;

use commands::*;
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Output, Stdio};

#[test]
fn a_conversation_goes_on_after_a_message_that_does_not_fit() {
    let model = speaking("chat");
    let mut child = plimsoll()
        .args([
            "chat",
            &model,
            "-n",
            "6",
            "--ignore-eos",
            "--context",
            "200",
            "--system",
            "Be brief",
            "--json",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let input = format!("Hi\n\n{}\n/what\nBye\n/quit\nnever\n", "long ".repeat(60));
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stderr(&output).contains("the context holds 200"), "{}", stderr(&output));
    let messages = document(&output)["messages"].clone();
    let said: Vec<(&str, &str)> = messages
        .as_array()
        .unwrap()
        .iter()
        .map(|m| (m["role"].as_str().unwrap(), m["content"].as_str().unwrap()))
        .collect();
    let roles: Vec<&str> = said.iter().map(|m| m.0).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user", "assistant"]);
    assert_eq!((said[0].1, said[1].1, said[3].1), ("Be brief", "Hi", "Bye"));
    let failed = document(&output)["failed"].clone();
    assert_eq!((failed.as_array().unwrap().len(), &failed[0]["after"]), (1, &json!(3)));
    assert!(failed[0]["error"].as_str().unwrap().contains("/reset"), "{failed}");
    assert!(stderr(&output).contains("no command /what"), "{}", stderr(&output));
}

fn chat(model: &str, more: &[&str], input: &str) -> Output {
    chat_losing("", model, more, input)
}

/// The same where devices are lost: at the n-th submit of the first, of the second, and so on.
fn chat_losing(lose: &str, model: &str, more: &[&str], input: &str) -> Output {
    let mut command = plimsoll();
    command.env("PLIMSOLL_FAULT_LOSE", lose);
    command.args(["chat", model, "--ignore-eos"]).args(more).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // One that ends before it reads closes the pipe: its exit code is what is asked.
    let written = child.stdin.take().unwrap().write_all(input.as_bytes());
    if let Err(error) = written {
        assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    }
    child.wait_with_output().unwrap()
}

#[test]
fn a_conversation_uses_what_is_left_of_the_context_and_says_when_it_is_full() {
    let model = speaking("full");
    // 18 tokens of prompt with "Hi", and more new ones asked for than there is room.
    let output = chat(&model, &["--context", "40", "-n", "100", "--json"], "Hi\nAgain\n/reset\nHi\n");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stderr(&output).contains("the context is full"), "{}", stderr(&output));
    let about = document(&output);
    assert_eq!(about["messages"].as_array().unwrap().len(), 2, "/reset forgot the first");
    assert_eq!(about["failed"][0]["content"], "Again");
    let nothing = chat(&model, &["--context", "16"], "Hi there\nHello\n");
    assert_eq!(code(&nothing), 3, "{}", stderr(&nothing));
    assert!(stderr(&nothing).contains("none of the messages (2) was answered"), "{}", stderr(&nothing));
    std::fs::remove_file(PathBuf::from(&model).join("tokenizer_config.json")).unwrap();
    let without = chat(&model, &[], "Hi\n");
    assert_eq!(code(&without), 5);
    assert!(stderr(&without).contains("use `run`"), "{}", stderr(&without));
}

#[test]
fn a_conversation_survives_its_device() {
    let model = speaking("lost");
    let talk = "Hi\nAnd you\nBye\n";
    let flags = ["--context", "200", "-n", "6", "--json"];
    let sound = document(&chat(&model, &flags, talk));
    assert_eq!((&sound["devices_lost"], sound["messages"].as_array().unwrap().len()), (&json!(0), 6));

    // At every submit of the whole conversation, until there is none: the weights' first. Loss while loading is another
    // matter, and ends it.
    let (mut lost_at, mut said_before) = (Vec::new(), 0);
    for at in (1..).step_by(3) {
        let output = chat_losing(&at.to_string(), &model, &flags, talk);
        if output.status.code() == Some(6) && lost_at.is_empty() {
            assert!(stderr(&output).contains("lost"), "{}", stderr(&output));
            continue;
        }
        assert_eq!(code(&output), 0, "{at}: {}", stderr(&output));
        let found = document(&output);
        if found["devices_lost"] == 0 {
            assert_eq!(found["messages"], sound["messages"]);
            break;
        }
        lost_at.push(at);
        let failed = found["failed"].as_array().unwrap();
        assert_eq!((&found["devices_lost"], failed.len()), (&json!(1), 1), "{at}: {found}");
        let failed = &failed[0];
        assert_eq!((&failed["device_lost"], &failed["permanent"]), (&json!(true), &json!(false)));
        assert!(stderr(&output).contains("the conversation goes on"), "{}", stderr(&output));
        // What came before the fault is the beginning of what would have come, and nothing came after it.
        let after = failed["after"].as_u64().unwrap() as usize;
        let said = failed["said"].as_str().unwrap();
        let whole = sound["messages"][after + 1]["content"].as_str().unwrap();
        assert!(whole.starts_with(said) && said.len() < whole.len(), "{at}: {said:?} of {whole:?}");
        said_before += usize::from(!said.is_empty());
        // The messages before it stand; those after it are answered, on the device that was opened again.
        let messages = found["messages"].as_array().unwrap();
        assert_eq!(messages.len(), 4);
        assert_eq!(messages[..after], sound["messages"].as_array().unwrap()[..after], "{at}");
    }
    println!("lost at submits {lost_at:?}, {said_before} times within an answer");
    assert!(lost_at.len() >= 4 && said_before > 0, "{lost_at:?}");
}

#[test]
fn a_message_that_no_device_survives_ends_the_conversation() {
    let model = speaking("lost-again");
    let flags = ["--context", "200", "-n", "6"];
    // Which submit is the first of an answer: the one after the load's last.
    let first = (1..64)
        .find(|at| code(&chat_losing(&at.to_string(), &model, &flags, "Hi\nBye\n")) == 0)
        .expect("a load has fewer submits");
    let each = |devices: usize| vec![first.to_string(); devices].join(",");
    let twice = chat_losing(&each(2), &model, &flags, "Hi\nHi\nHi\n");
    assert_eq!(code(&twice), 0, "{}", stderr(&twice));
    assert_eq!(stderr(&twice).matches("the conversation goes on").count(), 2, "{}", stderr(&twice));
    let thrice = chat_losing(&each(9), &model, &flags, "Hi\nHi\nHi\nHi\nHi\n");
    assert_eq!(code(&thrice), 6, "{}", stderr(&thrice));
    assert_eq!(stderr(&thrice).matches("the conversation goes on").count(), 2, "{}", stderr(&thrice));
    assert!(stderr(&thrice).contains("lost"), "{}", stderr(&thrice));
}
