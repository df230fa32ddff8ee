//! `plimsoll-estimate hf:owner/name` against a hub on this machine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code)]

#[path = "../../models/tests/common/hub_server.rs"]
mod hub_server;

use hub_server::{COMMIT, Fault, Server};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/data").join(name)
}

fn cache(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

fn run(server: &Server, cache: &std::path::Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plimsoll-estimate"))
        .args(args)
        .env("HF_ENDPOINT", &server.address)
        .env("PLIMSOLL_CACHE", cache)
        .env("HF_HUB_DOWNLOAD_TIMEOUT", "1")
        .env("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
        .env_remove("HF_TOKEN")
        .env_remove("HF_HUB_OFFLINE")
        .env_remove("http_proxy")
        .env_remove("PLIMSOLL_MEMORY_LIMIT")
        .output()
        .expect("it starts")
}

fn document(output: &Output, code: i32) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {said}"))
}

fn golden(server: &Server) -> PathBuf {
    let folder = data("golden/llama");
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            server.file(path.file_name().unwrap().to_str().unwrap(), std::fs::read(&path).unwrap());
        }
    }
    folder
}

#[test]
fn the_price_is_that_of_the_files() {
    let (server, cache) = (Server::new(), cache("hub_price"));
    let folder = golden(&server);
    let mut there = document(&run(&server, &cache, &["hf:o/llama", "--json"]), 0);
    let mut here = document(&run(&server, &cache, &[folder.to_str().unwrap(), "--json"]), 0);
    let read = |document: &Value, what: &str| document["model"]["read"][what].as_u64().unwrap();
    assert!(read(&there, "network") > 0 && read(&there, "requests") > 2 && read(&there, "local") == 0);
    assert!(read(&here, "local") > 0 && read(&here, "requests") == 0);
    for document in [&mut there, &mut here] {
        document["model"]["read"] = Value::Null;
    }
    assert_eq!(there, here);
    // From what was kept only the commit is asked for; where nobody may be asked, nothing is.
    let again = document(&run(&server, &cache, &["hf:o/llama", "--json"]), 0);
    assert_eq!(read(&again, "requests"), 1);
    let text = String::from_utf8(run(&server, &cache, &["hf:o/llama"]).stdout).unwrap();
    assert!(
        text.contains(" in 1 requests, ") && text.contains("bytes of configurations and headers"),
        "{text}"
    );
    let by_commit = document(&run(&server, &cache, &[&format!("hf:o/llama@{COMMIT}"), "--json"]), 0);
    assert_eq!(read(&by_commit, "requests"), 0);
    // Beside it, too.
    let both = document(&run(&server, &cache, &["hf:o/llama", "--with", "hf:o/llama", "--json"]), 0);
    assert!(both["others"].to_string().contains("llama"), "{both}");
    let replaced = ["hf:o/llama", "--replaces", "hf:o/llama", "--memory", "1GiB", "--json"];
    assert!(document(&run(&server, &cache, &replaced), 0)["others"].to_string().contains("replaced"));
}

#[test]
fn failures_have_their_codes_and_words() {
    let (server, cache) = (Server::new(), cache("hub_failures"));
    golden(&server);
    let fails = |name: &str, code: i32, words: &str| {
        let output = run(&server, &cache, &[name, "--json"]);
        let document = document(&output, code);
        assert!(document["error"]["message"].as_str().unwrap().contains(words), "{name}: {document}");
        assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"));
    };
    fails("hf:o", 2, "hf:owner/name");
    fails("hf:o/../x", 2, "owner and name");
    fails("hf:o/n:config.json/", 2, "file of the repository");
    fails("hf:o/n:missing.gguf", 5, "not found");
    server.faults(&[Fault::Status(404, "x-error-message: Repository not found\r\n".to_owned())]);
    fails("hf:o/n", 5, "Repository not found");
    server.faults(&[Fault::Status(401, String::new())]);
    fails("hf:o/n", 5, "HF_TOKEN");
    server.file("config.json", br#"{"model_type": "none such"}"#.to_vec());
    fails("hf:o/n:config.json", 4, "none such");
}
