//! The workspace's own rules: dependencies run one way, and the files keep to their subject.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};

const CRATES: [&str; 4] = ["kernels", "models", "estimator", "runtime"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Names under `[dependencies]` and `[build-dependencies]` of a manifest, target-specific ones too.
fn dependencies(manifest: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(manifest).unwrap();
    let mut inside = false;
    let mut names = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            inside = line.trim_end_matches(']').ends_with("dependencies") && !line.contains("dev-");
        } else if inside && let Some((name, _)) = line.split_once(['=', '.']) {
            names.push(name.trim().to_owned());
        }
    }
    names
}

#[test]
fn dependencies_run_one_way() {
    for (i, name) in CRATES.iter().enumerate() {
        let names = dependencies(&root().join(name).join("Cargo.toml"));
        assert!(!names.is_empty(), "{name}");
        for later in &CRATES[i..] {
            assert!(!names.contains(&format!("plimsoll-{later}")), "{name} depends on {later}");
        }
        assert!(!names.contains(&"plimsoll".to_owned()), "{name} depends on the façade");
        if *name != "runtime" {
            assert!(!names.iter().any(|n| n.starts_with("wgpu")), "{name} knows wgpu");
        }
    }
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs" || e == "wgsl") {
            found.push(path);
        }
    }
}

#[test]
fn files_have_one_subject() {
    let mut files = Vec::new();
    for name in CRATES {
        sources(&root().join(name).join("src"), &mut files);
    }
    sources(&root().join("src"), &mut files);
    assert!(files.len() > 40);
    for file in files {
        let lines = std::fs::read_to_string(&file).unwrap().lines().count();
        let most = if file.extension().is_some_and(|e| e == "wgsl") { 400 } else { 550 };
        assert!(lines <= most, "{} has {lines} lines: two subjects?", file.display());
    }
}
