//! Published configurations by name, and ones that a test makes, as files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code)]

use plimsoll_models::checkpoint::Checkpoint;
use plimsoll_models::{Model, Registry};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

pub fn config(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../tests/data/configs/{name}.json"))
}

pub fn model(name: &str) -> Model {
    Registry::standard().build(&Checkpoint::open(&config(name)).unwrap()).unwrap()
}

/// A configuration made here, as a file.
pub struct File(pub PathBuf);

impl File {
    pub fn new(id: &str, config: &Value) -> Self {
        // Tests of one process run at once, and may ask of the same figure.
        static MADE: AtomicU32 = AtomicU32::new(0);
        let made = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("plimsoll-facts-{}-{made}-{id}.json", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, config.to_string()).unwrap();
        Self(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
