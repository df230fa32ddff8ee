//! `plimsoll chat`: commands, full conversations, failed turns.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

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
    let mut command = plimsoll();
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
