//! What a process says when pages of a mapped file are gone: the system tells of it by a signal, not by an error.

use std::sync::atomic::{AtomicBool, Ordering};

/// To standard error.
const MESSAGE: &str = "plimsoll: a file was shortened while it was read, or its disk cannot be read\n";
/// To standard output, where documents are asked for.
const DOCUMENT: &str = "{\"schema\":1,\"verdict\":null,\"error\":{\"exit_code\":5,\"message\":\"a file was shortened while it was \
                        read, or its disk cannot be read\"}}\n";
/// The exit code of a bad input file.
const CODE: i32 = 5;
/// The signal's code for an address in a map behind which there is nothing: 2 on every Unix.
const NO_SUCH_ADDRESS: i32 = 2;

static DOCUMENTS: AtomicBool = AtomicBool::new(false);

/// From now on a process that touches a page of a file that is gone ends with a message and exit code 5, and with `json` a
/// document, instead of by the signal. For command lines: a library leaves signals to its host.
pub fn end_well_without_pages(json: bool) {
    DOCUMENTS.store(json, Ordering::Relaxed);
    // SAFETY: the action is zeroed, which is a valid one with an empty mask, before its handler and flags are set; the handler
    // does nothing that a signal handler may not.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ended as extern "C" fn(_, _, _) as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESETHAND;
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

extern "C" fn ended(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the system passes a valid `info`.
    if unsafe { (*info).si_code } != NO_SUCH_ADDRESS {
        // Another fault: it comes again when this returns, and ends the process as it would have.
        return;
    }
    let say = |stream, text: &str| {
        // SAFETY: `write` is async-signal-safe and reads the text's own bytes. Nobody is left to tell if it fails.
        unsafe { libc::write(stream, text.as_ptr().cast(), text.len()) }
    };
    say(libc::STDERR_FILENO, MESSAGE);
    if DOCUMENTS.load(Ordering::Relaxed) {
        say(libc::STDOUT_FILENO, DOCUMENT);
    }
    // SAFETY: `_exit` is async-signal-safe: nothing of the process runs after it.
    unsafe { libc::_exit(CODE) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    #[test]
    fn the_document_is_one() {
        let document: serde_json::Value = serde_json::from_str(super::DOCUMENT).unwrap();
        assert_eq!(document["error"]["exit_code"], super::CODE);
        assert!(super::MESSAGE.contains(document["error"]["message"].as_str().unwrap()));
    }
}
