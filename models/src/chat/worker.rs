//! The thread that templates run on. It stays, so that its stack is among what a limit on addresses or data (`ulimit`) has
//! of this process whenever that is read: one that came and went would be counted or not by chance, and could be had before
//! a load and not after it.

use crate::error::ModelError;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Values nest at most as deep as fuel allows, and are dropped, printed and compared recursively. It is only address space
/// until it is used.
const STACK_BYTES: usize = 256 << 20;
/// What fuel does not price ends here: a list that holds another twice, that one a third twice, and so on, takes
/// exponential time to compare or to join to a text. The caller gets an error; the thread cannot be stopped and is
/// left behind.
const DEADLINE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

/// A thread that waits for work.
struct Worker {
    jobs: mpsc::Sender<Job>,
    thread: JoinHandle<()>,
}

/// The one that is kept. Others are started while it is busy, and end with their work.
static IDLE: Mutex<Option<Worker>> = Mutex::new(None);

impl Worker {
    fn take() -> Result<Self, ModelError> {
        if let Some(worker) = IDLE.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Ok(worker);
        }
        let (jobs, work) = mpsc::channel::<Job>();
        let thread = Builder::new().name("chat-template".into()).stack_size(STACK_BYTES);
        let thread = thread
            .spawn(move || work.into_iter().for_each(|job| job()))
            .map_err(|source| ModelError::thread("the chat template", source))?;
        Ok(Worker { jobs, thread })
    }

    /// Keeps it, or ends it where another is kept: then its stack is gone with this call.
    fn give_back(self) {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.is_none() {
            *idle = Some(self);
            return;
        }
        drop(idle);
        drop(self.jobs);
        // What it was to do is done, so it cannot have panicked.
        let _ = self.thread.join();
    }
}

/// Runs on a thread with a large stack, and waits until the deadline.
pub(super) fn on_a_large_stack<T: Send + 'static>(
    run: impl FnOnce() -> Result<T, ModelError> + Send + 'static,
) -> Result<T, ModelError> {
    let worker = Worker::take()?;
    let (sender, receiver) = mpsc::sync_channel(1);
    let job = move || {
        // After the deadline nobody listens.
        let _ = sender.send(run());
    };
    if worker.jobs.send(Box::new(job)).is_err() {
        return Err(ModelError::template("the template engine panicked"));
    }
    match receiver.recv_timeout(DEADLINE) {
        Ok(result) => {
            worker.give_back();
            result
        }
        Err(mpsc::RecvTimeoutError::Timeout) => {
            Err(ModelError::template(format!("took longer than {} s", DEADLINE.as_secs())))
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            Err(ModelError::template("the template engine panicked"))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    #[test]
    fn a_panic_is_an_error_and_the_next_has_a_thread() {
        let broken: Result<(), _> = on_a_large_stack(|| panic!("as an engine might"));
        assert!(broken.unwrap_err().to_string().contains("panicked"));
        let nested = on_a_large_stack(|| {
            on_a_large_stack(|| Ok(std::thread::current().name() == Some("chat-template")))
        });
        assert!(nested.unwrap());
        assert!(IDLE.lock().unwrap_or_else(PoisonError::into_inner).is_some());
    }
}
