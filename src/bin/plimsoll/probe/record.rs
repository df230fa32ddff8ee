//! What a probe writes down, and reads again when it is resumed: one JSON object a line. What is begun is written
//! before it is begun, since the machine may not survive it.

use crate::failure::Failure;
use crate::output;
use plimsoll::Budget;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

/// What the model said after one position of the prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Anchor {
    /// The position.
    pub position: u32,
    /// The most probable token.
    pub best: u32,
    /// `ln Σ exp` of the logits.
    pub log_sum_exp: f32,
    /// How far logits are from their mean, in the mean square.
    pub deviation: f32,
    /// Some of the logits, always the same.
    pub sample: Vec<f32>,
}

/// How the output was checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checked {
    /// `full`, or `prefix`.
    pub mode: String,
    /// Tokens that were run through the model in the first pass.
    pub tokens: u32,
    /// Positions whose logits were compared with those of other runs.
    pub references: Vec<u32>,
    /// Positions whose logits were computed again in another way.
    pub recomputed: Vec<u32>,
    /// The largest difference of any logit, in deviations of the row.
    pub drift: f64,
    /// The most that is not an error.
    pub tolerance: f64,
}

/// A reading of memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Bytes free.
    pub available: Option<u64>,
    /// Bytes in all: of a working set where the source is one.
    pub total: Option<u64>,
    /// Who says so.
    pub source: String,
}

/// A budget that was stepped past.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exceeded {
    /// Bytes needed.
    pub need: u64,
    /// Bytes there were.
    pub have: u64,
    /// Whose number that is.
    pub source: String,
}

/// A context that was loaded, touched and asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub context: u32,
    /// Bytes of the plan.
    pub planned: u64,
    /// Bytes of the buffers.
    pub allocated: u64,
    /// Bytes that the driver took, where it says.
    pub reserved: Option<u64>,
    /// Bytes that were written with numbers that nothing compresses, after the weights.
    pub filled: u64,
    /// Resident bytes of the process when all had been touched and asked, and the most so far.
    pub resident: Option<u64>,
    pub peak: Option<u64>,
    /// Bytes of the process in swap.
    pub process_swap: Option<u64>,
    /// What the device says of its memory after that.
    pub device: Memory,
    /// What the plan was held against.
    pub budget: Option<Budget>,
    /// Where it was loaded although that said no.
    pub exceeded: Option<Exceeded>,
    /// Without the time that compiling took.
    pub load_seconds: f64,
    #[serde(default)]
    pub compile_seconds: f64,
    pub fill_seconds: f64,
    /// What each kernel's first run took, in which drivers compile: before anything that has a rate.
    #[serde(default)]
    pub warm_up_seconds: f64,
    /// Allocated bytes by the time it took to load and to fill them.
    pub bytes_per_second: f64,
    pub prefill_tokens_per_second: f64,
    pub decode_tokens_per_second: f64,
    pub checked: Checked,
    /// The greedy continuation of the prompt.
    pub tokens: Vec<u32>,
    pub anchors: Vec<Anchor>,
    pub account: Value,
    /// What the parent saw.
    #[serde(default)]
    pub seen: Seen,
}

/// What was seen of the machine while a step ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// From the start of its process to its end.
    pub seconds: f64,
    /// The least that was free.
    pub least_available: Option<u64>,
    /// By how much more swap was in use than at the start of the probe, at most.
    pub swap_growth: Option<u64>,
    /// Whether rates of this step are rates of anything: not where swap grew.
    pub rates_valid: bool,
}

/// Why there is no further step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// `maximum`, `refused`, `wrong`, `out-of-memory`, `killed`, `swap`, `floor`, `time`, `failed`, `lost`.
    pub why: String,
    /// The context that it is about.
    pub context: u32,
    /// Which limit gated: `budget`, `working-set`, `allocation`, `physical-memory`; none where it was no limit.
    pub gate: Option<String>,
    /// What a refusal broke: `total`, `allocation`, ….
    #[serde(default)]
    pub broke: Option<String>,
    /// What exceeded it.
    #[serde(default)]
    pub name: Option<String>,
    #[serde(default)]
    pub need: Option<u64>,
    #[serde(default)]
    pub have: Option<u64>,
    /// The need by segment.
    #[serde(default)]
    pub terms: Option<Value>,
    /// How far the step was.
    #[serde(default)]
    pub stage: Option<String>,
    /// The signal that ended its process.
    #[serde(default)]
    pub signal: Option<i32>,
    /// The exit code of an error.
    #[serde(default)]
    pub exit_code: Option<u8>,
    /// In a sentence.
    pub reason: String,
    /// What the parent saw.
    #[serde(default)]
    pub seen: Seen,
}

impl Ended {
    /// Whether the step's process was ended by somebody or crashed, and not for want of memory.
    pub fn is_foreign(&self) -> bool {
        self.signal.is_some() && self.gate.is_none()
    }

    /// Without details.
    pub fn plain(why: &str, context: u32, gate: Option<&str>, reason: String) -> Self {
        Self {
            why: why.to_owned(),
            context,
            gate: gate.map(str::to_owned),
            broke: None,
            name: None,
            need: None,
            have: None,
            terms: None,
            stage: None,
            signal: None,
            exit_code: None,
            reason,
            seen: Seen::default(),
        }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A step is about to be tried.
    Begun {
        /// Its context.
        context: u32,
    },
    /// The reference has been computed.
    Reference {
        /// What the model says.
        anchors: Vec<Anchor>,
    },
    /// A step went well.
    Passed(Box<Step>),
    /// A step did not.
    Ended(Box<Ended>),
}

/// A line of the log.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    schema: u32,
    key: Value,
    event: Event,
}

/// The log: a file where one was named, and what it held.
#[derive(Debug, Default)]
pub struct Log {
    file: Option<(File, PathBuf)>,
    events: Vec<Known>,
    warnings: Vec<String>,
}

/// What a log says, and where: what this probe has written is at line 0.
#[derive(Debug)]
struct Known {
    line: usize,
    key: Value,
    event: Event,
}

/// Entries of a log that are not used: how many, and in which fields their keys are not this probe's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Foreign {
    pub entries: usize,
    pub differ: Vec<String>,
}

/// How a line of a log begins, of whichever version: one that was cut off is told by it from somebody else's file.
const BEGINS: &[u8] = b"{\"schema\":";
/// How a line of this version begins, spaces apart.
const OURS: &[u8] = b"{\"schema\":1,";

impl Log {
    /// Opens it, for this probe alone. What is no entry is left out, with a word about it: a line may have been cut off. An
    /// entry with figures that are none is an error. A file that is somebody else's is not written to, and what is no file, a
    /// pipe or a device, is not waited for.
    pub fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else { return Ok(Self::default()) };
        let failed = |error| Failure::file("write", path, error);
        let not = |what: &str| Failure::usage(format!("--log: {} is {what}", path.display()));
        match std::fs::metadata(path) {
            Ok(about) if !about.is_file() => return Err(not("no file")),
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Failure::file("read", path, error));
            }
            _ => {}
        }
        let mut file = File::options().read(true).append(true).create(true).open(path).map_err(failed)?;
        let mut warnings = Vec::new();
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(not("another probe's that is running: both would measure each other"));
            }
            // Not every file system has locks.
            Err(TryLockError::Error(why)) => warnings.push(format!(
                "{} cannot be locked ({why}): see that no other probe uses it",
                path.display()
            )),
        }
        let held = read(&mut file).map_err(|error| Failure::file("read", path, error))?;
        let Some(held) = held else { return Err(not("no log of a probe: it is left as it is")) };
        let (events, bad) = parse(&held).map_err(|(line, why)| bad_line(path, line, &why))?;
        if let Some(first) = bad.first() {
            let lines = output::count(bad.len(), "line");
            let path = path.display();
            warnings.push(format!("{path}: {lines} cannot be read, left out; the first is line {first}"));
        }
        if held.len() < BEGINS.len() {
            // Nothing, or less than a line's beginning, by which the file would not be known again.
            file.set_len(0).map_err(failed)?;
        } else if held.last().is_some_and(|&last| last != b'\n') {
            // The next entry must not become the end of one that was cut off.
            file.write_all(b"\n").map_err(failed)?;
        }
        Ok(Self { file: Some((file, path.to_owned())), events, warnings })
    }

    /// What there is to say of it.
    pub fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }

    /// What happened under a key, in order, with the line that says it.
    pub fn under<'a>(&'a self, key: &'a Value) -> impl Iterator<Item = (usize, &'a Event)> {
        self.events.iter().filter(move |known| known.key == *key).map(|known| (known.line, &known.event))
    }

    /// A line of it says what cannot be.
    pub fn impossible(&self, line: usize, why: &str) -> Failure {
        bad_line(self.file.as_ref().map_or(Path::new(""), |(_, path)| path), line, why)
    }

    /// What of it is no record of any of these measurements, by what is different of the nearest.
    pub fn foreign(&self, keys: &[Value]) -> Vec<Foreign> {
        let mut all: Vec<Foreign> = Vec::new();
        for known in self.events.iter().filter(|known| !keys.contains(&known.key)) {
            let nearest = keys.iter().map(|key| differ(&known.key, key)).min_by_key(Vec::len);
            let differ = nearest.unwrap_or_default();
            match all.iter_mut().find(|foreign| foreign.differ == differ) {
                Some(foreign) => foreign.entries += 1,
                None => all.push(Foreign { entries: 1, differ }),
            }
        }
        all
    }

    /// Writes an event down, to the disk.
    pub fn write(&mut self, key: &Value, event: Event) -> Result<(), Failure> {
        if let Some((file, path)) = &mut self.file {
            let entry = Entry { schema: 1, key: key.clone(), event: event.clone() };
            let mut line = serde_json::to_string(&entry).map_err(std::io::Error::other)?;
            line.push('\n');
            let failed = |error| Failure::file("write", path, error);
            let before = file.metadata().map_err(failed)?.len();
            let written = file.write_all(line.as_bytes()).and_then(|()| file.sync_data());
            if written.is_err() {
                // No half of a line, where that can be helped.
                let _ = file.set_len(before);
            }
            written.map_err(failed)?;
        }
        self.events.push(Known { line: 0, key: key.clone(), event });
        Ok(())
    }
}

/// The most bytes of a log: those of a step are kilobytes.
const MOST: u64 = 256 << 20;

/// What a log holds; `None` of a file that begins as no log does. A model by mistake is not read to its end.
fn read(file: &mut File) -> std::io::Result<Option<Vec<u8>>> {
    let mut held = Vec::new();
    file.take(BEGINS.len() as u64).read_to_end(&mut held)?;
    // Cut off within its first bytes it is a log all the same.
    if !BEGINS.starts_with(&held) {
        return Ok(None);
    }
    file.take(MOST + 1).read_to_end(&mut held)?;
    if held.len() as u64 > MOST {
        return Err(std::io::Error::other(format!("expected a log of at most {MOST} bytes, got more")));
    }
    Ok(Some(held))
}

fn bad_line(path: &Path, line: usize, why: &str) -> Failure {
    let why = format!("line {line}: {why}; without that line, or with another --log, the step is done again");
    Failure::file("read", path, std::io::Error::other(why))
}

/// The fields in which keys differ; of those with fields of their own, these.
fn differ(one: &Value, other: &Value) -> Vec<String> {
    let (Some(left), Some(right)) = (one.as_object(), other.as_object()) else { return Vec::new() };
    let mut names: Vec<&String> = left.keys().chain(right.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let of = |name: &String| {
        let (one, other) = (left.get(name).unwrap_or(&Value::Null), right.get(name).unwrap_or(&Value::Null));
        let below = differ(one, other);
        match (one == other, below.is_empty()) {
            (true, _) => Vec::new(),
            (false, true) => vec![name.clone()],
            (false, false) => below.iter().map(|field| format!("{name}.{field}")).collect(),
        }
    };
    names.into_iter().flat_map(of).collect()
}

/// The entries of a log, and the lines that are none: cut off, of another version, or somebody's. A whole line of ours that
/// says something else than an entry does is an error.
fn parse(held: &[u8]) -> Result<(Vec<Known>, Vec<usize>), (usize, String)> {
    let (mut events, mut bad) = (Vec::new(), Vec::new());
    for (text, line) in held.split(|&byte| byte == b'\n').zip(1..) {
        // A machine that went down may leave zeros where the rest of a line was to be.
        let end = text.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        let text = text[..end].trim_ascii();
        if text.is_empty() {
            continue;
        }
        match serde_json::from_slice::<Entry>(text) {
            Ok(Entry { schema: 1, key, event }) => events.push(Known { line, key, event }),
            Err(why) if is_ours(text) && !why.is_eof() => return Err((line, why.to_string())),
            _ => bad.push(line),
        }
    }
    Ok((events, bad))
}

/// Whether a line that is no entry claims to be one, however somebody's program has written it again.
fn is_ours(text: &[u8]) -> bool {
    match serde_json::from_slice::<Value>(text) {
        Ok(value) => value["schema"] == 1,
        Err(_) => text.iter().filter(|byte| !byte.is_ascii_whitespace()).take(OURS.len()).eq(OURS),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn a_log_with_a_line_cut_off_goes_on() {
        let path = std::env::temp_dir().join(format!("plimsoll-log-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let (one, two) = (json!({"model": 1}), json!({"model": 2}));
        let mut log = Log::open(Some(&path)).unwrap();
        log.write(&one, Event::Begun { context: 8 }).unwrap();
        log.write(&two, Event::Begun { context: 9 }).unwrap();
        let ended = Ended::plain("floor", 8, Some("physical-memory"), "no more".to_owned());
        log.write(&one, Event::Ended(Box::new(ended.clone()))).unwrap();
        drop(log);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 20]).unwrap();
        let mut log = Log::open(Some(&path)).unwrap();
        assert_eq!(log.warnings().len(), 1, "{:?}", log.warnings());
        assert_eq!(log.under(&one).collect::<Vec<_>>(), [(1, &Event::Begun { context: 8 })]);
        log.write(&one, Event::Ended(Box::new(ended.clone()))).unwrap();
        let second = Log::open(Some(&path)).unwrap_err();
        assert!(second.code() == 2 && second.to_string().contains("another probe's"), "{second}");
        drop(log);
        let log = Log::open(Some(&path)).unwrap();
        assert_eq!(log.under(&one).last(), Some((4, &Event::Ended(Box::new(ended)))));
        assert_eq!((log.under(&one).count(), log.under(&two).count()), (2, 1));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_keys_differ_in_is_named() {
        let key = |memory: u32, file: &str| json!({"limits": {"memory": memory, "cache": 1}, "files": [file], "insist": false});
        let one = key(1, "a");
        assert_eq!(differ(&one, &one), [""; 0]);
        assert_eq!(differ(&one, &key(2, "b")), ["files", "limits.memory"]);
        assert_eq!(differ(&one, &json!({"limits": null, "files": ["a"], "insist": false})), ["limits"]);
        let mut log = Log::open(None).unwrap();
        for key in [key(2, "a"), key(2, "b"), key(2, "a"), one.clone()] {
            log.write(&key, Event::Begun { context: 8 }).unwrap();
        }
        let foreign = log.foreign(&[one, key(3, "b")]);
        assert_eq!(foreign, [Foreign { entries: 3, differ: vec!["limits.memory".to_owned()] }]);
    }
}
