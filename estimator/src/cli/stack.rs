//! The stack and the heap of a command line's work. The first thread's is what the shell allows (`ulimit -s`), and a small one ends the
//! process by a signal, in the middle of whatever it does.

use super::say;
use plimsoll_models::{limits, threads};
use std::process::ExitCode;
use std::thread::Builder;

/// What a command line has room in, as where nobody set a limit.
const STACK: usize = 8 << 20;

/// What any command takes of the heap before it can ask what it needs.
const HEAP: usize = 8 << 20;

/// The exit code where the system gives no thread, or no memory.
const EXHAUSTED: u8 = 6;

/// Does the work of `main` on this thread, or, where the shell allows it less than is usual, on one with a stack of its own.
/// Where there is not even the memory that any work takes, it says so.
pub fn with_stack(work: fn() -> ExitCode) -> ExitCode {
    if let Err(error) = limits::room(HEAP) {
        say(&format!("{error}; nothing was opened"), EXHAUSTED, false);
        return ExitCode::from(EXHAUSTED);
    }
    if limits::stack().is_none_or(|allowed| allowed >= STACK as u64) {
        return work();
    }
    match Builder::new().name("main".to_owned()).stack_size(STACK).spawn(work) {
        Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        Err(error) => {
            say(&format!("no thread to work on: {}", threads::refused(error)), EXHAUSTED, false);
            ExitCode::from(EXHAUSTED)
        }
    }
}
