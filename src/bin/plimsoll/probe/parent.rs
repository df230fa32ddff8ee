//! What watches over a step's process: reads what it says, keeps the floor of free memory and the limit of time, and
//! makes a result of whatever ends it.

use super::child::{Line, Order};
use super::record::{Ended, Seen, Step};
use crate::bytes::{grouped, human};
use crate::failure::Failure;
use plimsoll::models::threads;
use plimsoll::runtime::host::{self, HostMemory};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// How often the machine is looked at while a step runs.
const LOOK: Duration = Duration::from_millis(20);
/// The end of what a process says on standard error that is kept.
const TAIL: usize = 2048;

/// The exit code of a device's errors, and of too little memory, threads or open files.
const NO_ROOM: u8 = 6;

/// What a step may do to the machine.
pub struct Watch {
    /// Bytes that stay free; `None` where nobody says what is free.
    pub floor: Option<u64>,
    /// The longest that a step may take.
    pub time: Duration,
    /// Swap in use at the start of the probe.
    pub swap: Option<u64>,
    /// The limits that the shell sets processes, by name: drivers and allocators crash at them.
    pub shell: Option<String>,
}

/// What a process was stopped for.
enum Stopped {
    Floor(u64),
    Time,
}

impl Watch {
    /// Runs a step in a process of its own.
    pub fn run(&self, order: &Order) -> Result<Result<Step, Ended>, Failure> {
        let start = Instant::now();
        let killed_before = host::out_of_memory_kills();
        let started = std::env::current_exe().and_then(|program| {
            Command::new(program)
                .args(std::env::args_os().skip(1))
                .arg("--child")
                // Where it ends by itself its last line is why, and not where in it.
                .env("RUST_BACKTRACE", "0")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
        });
        let mut child = started.map_err(|error| starved("the process of a step", error))?;
        let mut line = serde_json::to_string(order).map_err(std::io::Error::other)?;
        line.push('\n');
        // Held until the end: a child whose parent is gone ends by itself.
        let mut input = child.stdin.take();
        if let Some(input) = &mut input {
            // A child that ended before it read is noticed below.
            let _ = input.write_all(line.as_bytes());
        }
        let (send, lines) = mpsc::channel();
        let output = child.stdout.take();
        let errors = child.stderr.take();
        let reader = Builder::new().spawn(move || {
            for line in output.into_iter().flat_map(|out| BufReader::new(out).lines().map_while(Result::ok)) {
                if let Ok(line) = serde_json::from_str::<Line>(&line)
                    && send.send(line).is_err()
                {
                    break;
                }
            }
        });
        let readers = reader.and_then(|reader| {
            let errors = Builder::new().spawn(move || errors.map(tail).unwrap_or_default())?;
            Ok((reader, errors))
        });
        let (reader, errors) = readers.map_err(|error| {
            // The limit is read while the step's process still counts.
            let failure = starved("a thread that reads what a step says", error);
            let _ = child.kill().and_then(|()| child.wait());
            failure
        })?;

        let (mut seen, mut done, mut stage) = (Seen::default(), None, "starting".to_owned());
        let mut stopped = None;
        loop {
            self.look(&mut seen);
            match lines.recv_timeout(LOOK) {
                Ok(Line::At(at)) => stage = at,
                Ok(last) => done = Some(last),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let low = self.floor.zip(seen.least_available).filter(|(floor, least)| least < floor);
            if stopped.is_none() && done.is_none() {
                if let Some((_, least)) = low {
                    stopped = Some(Stopped::Floor(least));
                } else if start.elapsed() > self.time {
                    stopped = Some(Stopped::Time);
                }
                if stopped.is_some() {
                    let _ = child.kill();
                }
            }
        }
        let status = wait(&mut child)?;
        drop(input);
        let _ = reader.join();
        let errors = errors.join().unwrap_or_default();
        seen.seconds = start.elapsed().as_secs_f64();
        seen.rates_valid = !self.swapped(&seen);
        let ended = |ended: Ended| Ok(Err(Ended { stage: Some(stage.clone()), seen: seen.clone(), ..ended }));
        match (stopped, done) {
            (Some(Stopped::Floor(least)), _) => ended(self.below(order.context, least)),
            (Some(Stopped::Time), _) => {
                let reason = format!("{stage} after {:.1} s, the most for a step", self.time.as_secs_f64());
                ended(Ended::plain("time", order.context, None, reason))
            }
            (None, Some(Line::Passed(step))) => Ok(Ok(Step { seen, ..*step })),
            (None, Some(Line::Ended(why))) => Ok(Err(Ended { seen, ..*why })),
            (None, Some(Line::At(_)) | None) => {
                let kills = killed_before.zip(host::out_of_memory_kills());
                let killed = kills.map(|(before, after)| after > before);
                ended(died(order.context, status, &stage, &errors, (killed, self.shell.as_deref())))
            }
        }
    }

    /// Looks at the machine.
    fn look(&self, seen: &mut Seen) {
        let now = HostMemory::take();
        seen.least_available = match (seen.least_available, now.available) {
            (Some(least), Some(available)) => Some(least.min(available)),
            (least, available) => least.or(available),
        };
        if let Some((before, used)) = self.swap.zip(now.swap_used) {
            let growth = used.saturating_sub(before);
            seen.swap_growth = Some(seen.swap_growth.map_or(growth, |most| most.max(growth)));
        }
    }

    /// Whether swap had grown.
    pub fn swapped(&self, seen: &Seen) -> bool {
        seen.swap_growth.is_some_and(|growth| growth > super::SWAP_NOISE)
    }

    /// The end of a step that would leave, or left, less than the floor.
    pub fn below(&self, context: u32, least: u64) -> Ended {
        let floor = self.floor.unwrap_or(0);
        let reason = format!(
            "{} ({}) free, less than the floor of {} ({})",
            grouped(least),
            human(least),
            grouped(floor),
            human(floor)
        );
        Ended {
            need: Some(floor),
            have: Some(least),
            ..Ended::plain("floor", context, Some("physical-memory"), reason)
        }
    }
}

/// What a probe cannot work without: a process for a step, or a thread. That is no fault of what was asked.
pub fn starved(what: &str, error: std::io::Error) -> Failure {
    let reason = format!("cannot start {what}: {}", threads::refused(error));
    Failure::Probe { reason, code: NO_ROOM }
}

fn wait(child: &mut Child) -> Result<ExitStatus, Failure> {
    Ok(child.wait()?)
}

/// What is at the end of a stream.
fn tail(mut from: impl Read) -> String {
    let (mut kept, mut piece) = (Vec::new(), [0; 4096]);
    while let Ok(bytes) = from.read(&mut piece) {
        if bytes == 0 {
            break;
        }
        kept.extend_from_slice(&piece[..bytes]);
        let over = kept.len().saturating_sub(TAIL);
        kept.drain(..over);
    }
    String::from_utf8_lossy(&kept).trim().to_owned()
}

/// The result of a process that said none: a signal, or an exit without a word. Memory is what gated where the system ends
/// processes for want of it (`killed`: whether it did so during the step, if it says), and that is by a signal of its own;
/// and where a shell's limit is set (`shell`, by name), at which drivers follow null pointers and allocators abort.
fn died(
    context: u32,
    status: ExitStatus,
    stage: &str,
    errors: &str,
    (killed, shell): (Option<bool>, Option<&str>),
) -> Ended {
    // Who is ended by somebody's signal has not said why: its last words are of another matter. An allocator or a driver
    // that aborts does say it; what the command says itself, by its name, is a notice then, since its errors are results.
    let cause = |line: &&str| match signal(status) {
        Some(signal) => CRASHES.contains(&signal) && !line.starts_with("plimsoll: "),
        None => true,
    };
    let words = errors.lines().rfind(cause).map_or(String::new(), |last| format!(": {last}"));
    match signal(status) {
        Some(signal) => {
            let shell = shell.filter(|_| CRASHES.contains(&signal));
            let gated = shell.is_some() || signal == KILL && killed != Some(false);
            let gate = gated.then_some("physical-memory");
            let by = match shell {
                Some(name) => format!(" under {name}"),
                None if gated => ", as the system ends what it has no memory for,".to_owned(),
                None => ", not by the system for want of memory".to_owned(),
            };
            let reason = format!("its process was ended by signal {signal}{by} while {stage}{words}");
            let name = shell.map(str::to_owned);
            Ended { signal: Some(signal), name, ..Ended::plain("killed", context, gate, reason) }
        }
        None => {
            // Without a result it is an error, whatever it says, and of no other kind than errors are.
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            let code = code.filter(|code| (2..=6).contains(code)).or(Some(NO_ROOM));
            let reason = format!("its process ended while {stage} and gave no result ({status}){words}");
            Ended { exit_code: code, ..Ended::plain("failed", context, None, reason) }
        }
    }
}

/// What a system ends a process with for want of memory.
const KILL: i32 = 9;
/// How processes end that get no more memory: an allocator's abort, and a null pointer that is followed.
const CRASHES: [i32; 2] = [6, 11];

#[cfg(unix)]
fn signal(status: ExitStatus) -> Option<i32> {
    std::os::unix::process::ExitStatusExt::signal(&status)
}

#[cfg(not(unix))]
fn signal(_: ExitStatus) -> Option<i32> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_stream_is_kept() {
        let long = format!("{}\nlast words\n", "x".repeat(10_000));
        let kept = tail(long.as_bytes());
        assert!(kept.ends_with("x\nlast words") && kept.len() < TAIL, "{}", kept.len());
    }

    #[test]
    fn swap_counts_from_the_start_of_the_probe() {
        let watch = |swap| Watch { floor: None, time: Duration::ZERO, swap, shell: None };
        let grown = |growth| Seen { swap_growth: growth, ..Seen::default() };
        assert!(!watch(Some(5)).swapped(&grown(Some(0))));
        assert!(!watch(None).swapped(&grown(None)), "where nobody knows nothing is claimed");
        assert!(watch(Some(5)).swapped(&grown(Some(super::super::SWAP_NOISE + 1))));
    }

    #[cfg(unix)]
    #[test]
    fn a_signal_is_a_result() {
        use std::os::unix::process::ExitStatusExt;
        let ended = died(64, ExitStatus::from_raw(9), "loading", "a\nb", (Some(true), None));
        assert_eq!((ended.why.as_str(), ended.signal), ("killed", Some(9)));
        assert_eq!(ended.gate.as_deref(), Some("physical-memory"));
        let killed =
            "its process was ended by signal 9, as the system ends what it has no memory for, while loading";
        assert_eq!(ended.reason, killed);
        // Only what was said as an error is a cause.
        let notice = "plimsoll: no MODEL is named: plimsoll-demo, the bundled one";
        let abort = format!("memory allocation of 9 bytes failed\n{notice}");
        let why = "while loading: memory allocation of 9 bytes failed";
        for (errors, ends) in [(notice, "while loading"), (&abort, why)] {
            let ended = died(64, ExitStatus::from_raw(6), "loading", errors, (None, Some("ulimit -d")));
            assert!(ended.reason.ends_with(ends), "{}", ended.reason);
        }
        assert_eq!(died(64, ExitStatus::from_raw(9), "loading", "", (None, None)).gate, ended.gate);
        // Somebody else's signal, or a crash, says nothing of memory.
        for (signal, killed) in [(9, Some(false)), (15, Some(true)), (2, None), (11, None), (6, Some(false))]
        {
            let ended = died(64, ExitStatus::from_raw(signal), "loading", "", (killed, None));
            assert_eq!((ended.why.as_str(), ended.signal, ended.gate), ("killed", Some(signal), None));
            assert!(ended.reason.contains("not by the system"), "{}", ended.reason);
        }
        // But for a crash at what a shell allows.
        for (signal, gate) in [(11, Some("physical-memory")), (6, Some("physical-memory")), (15, None)] {
            let killed = (Some(false), Some("ulimit -d"));
            let ended = died(64, ExitStatus::from_raw(signal), "loading", "", killed);
            assert_eq!((ended.gate.as_deref(), ended.is_foreign()), (gate, gate.is_none()));
            assert_eq!(ended.name.as_deref(), gate.map(|_| "ulimit -d"));
            assert_eq!(ended.reason.contains("under ulimit -d while loading"), gate.is_some());
        }
        let ended = died(64, ExitStatus::from_raw(0x300), "loading", "", (None, None));
        assert_eq!((ended.why.as_str(), ended.signal, ended.exit_code), ("failed", None, Some(3)));
        // Neither a success nor a panic is an end of a step that said nothing.
        for code in [0, 1, 101] {
            let ended = died(64, ExitStatus::from_raw(code << 8), "loading", "", (None, None));
            assert_eq!((ended.why.as_str(), ended.exit_code), ("failed", Some(6)), "{code}");
        }
    }
}
