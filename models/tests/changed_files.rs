//! Files that change while they are read: what has been read of them is not believed, and pages that are gone end a command
//! line with words.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use plimsoll_models::checkpoint::lost_pages::end_well_without_pages;
use plimsoll_models::{Checkpoint, ModelError};
use std::io::{Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::process::Command;

/// Tells a run of this test's own program what it is for.
const CHILD: &str = "PLIMSOLL_TEST_LOSES_PAGES";

/// A copy of a small model whose file may be changed.
fn copy(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("changed-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/data/golden/llama");
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(golden.join(file), folder.join(file)).unwrap();
    }
    // Of another second than what is written next, wherever times are coarse.
    let weights = std::fs::File::options().write(true).open(folder.join("model.safetensors")).unwrap();
    weights.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(60)).unwrap();
    folder
}

fn changed<T: std::fmt::Debug>(result: Result<T, ModelError>) {
    match result {
        Err(ModelError::Changed { path }) => {
            assert!(path.ends_with("model.safetensors"), "{}", path.display())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_that_is_written_to_gives_no_more_bytes() {
    let folder = copy("written");
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let tensor = checkpoint.tensors().next().unwrap().clone();
    assert!(checkpoint.data(&tensor).is_ok() && checkpoint.unchanged().is_ok());
    let mut file = std::fs::File::options().write(true).open(folder.join("model.safetensors")).unwrap();
    file.seek(SeekFrom::End(-4)).unwrap();
    file.write_all(&[0; 4]).unwrap();
    changed(checkpoint.data(&tensor));
    changed(checkpoint.unchanged());
    // As it is now it can be opened.
    assert!(Checkpoint::open(&folder).unwrap().unchanged().is_ok());
}

#[test]
fn a_file_that_is_shortened_gives_no_more_bytes() {
    let folder = copy("shortened");
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let tensor = checkpoint.tensors().next().unwrap().clone();
    let file = std::fs::File::options().write(true).open(folder.join("model.safetensors")).unwrap();
    file.set_len(4096).unwrap();
    changed(checkpoint.data(&tensor));
    changed(checkpoint.unchanged());
}

/// A file that takes another's place leaves the one that is open as it was.
#[test]
fn a_file_that_is_replaced_is_as_it_was() {
    let folder = copy("replaced");
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let other = folder.join("other");
    std::fs::write(&other, b"another file").unwrap();
    std::fs::rename(&other, folder.join("model.safetensors")).unwrap();
    assert!(checkpoint.unchanged().is_ok());
}

#[test]
fn pages_that_are_gone_end_a_command_line_with_words() {
    if let Some(json) = std::env::var_os(CHILD) {
        end_well_without_pages(json == "json");
        let folder = copy(&format!("gone-{}", std::process::id()));
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let tensor = checkpoint.tensors().max_by_key(|t| t.bytes).unwrap().clone();
        let bytes = checkpoint.data(&tensor).unwrap();
        let file = std::fs::File::options().write(true).open(folder.join("model.safetensors")).unwrap();
        file.set_len(1).unwrap();
        // Every page of it but perhaps the first is gone.
        let sum = bytes.iter().rev().map(|byte| u64::from(*byte)).sum::<u64>();
        panic!("pages that are gone were read: {sum}");
    }
    for json in ["text", "json"] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "pages_that_are_gone_end_a_command_line_with_words", "--nocapture"])
            .env(CHILD, json)
            .output()
            .unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(5), "{out}{err}");
        assert!(err.contains("plimsoll: a file was shortened while it was read"), "{err}");
        assert_eq!(out.contains("\"exit_code\":5"), json == "json", "{out}");
    }
}
