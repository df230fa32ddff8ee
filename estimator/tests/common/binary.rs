//! The small binary, as a shell without settings of its own starts it.
#![allow(clippy::expect_used)]

use std::process::{Command, Output};

/// Its end with these arguments.
pub fn run(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll-estimate"));
    for variable in ["PLIMSOLL_MEMORY_LIMIT", "PLIMSOLL_RESERVE", "PLIMSOLL_CACHE_LIMIT"] {
        command.env_remove(variable);
    }
    command.args(args).output().expect("it starts")
}
