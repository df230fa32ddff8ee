//! The flags of a probe.

use super::validate::{Mode, NEW, PROMPT};
use crate::args::{GeometryArgs, MachineArgs, ModelArg, Output};
use crate::bytes::{self, grouped};
use crate::failure::Failure;
use plimsoll::Opened;
use std::path::PathBuf;
use std::time::Duration;

/// Flags.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub model: ModelArg,
    /// Tokens by which the context grows
    #[arg(long, value_name = "TOKENS", default_value = "8192", value_parser = bytes::count)]
    pub step: u32,
    /// The first context [default: a step, or the last context where that is smaller]
    #[arg(long, value_name = "TOKENS", value_parser = bytes::count)]
    pub from: Option<u32>,
    /// The last context [default: the model's maximum]
    #[arg(long, value_name = "TOKENS", value_parser = bytes::count)]
    pub max: Option<u32>,
    /// Wait this long before each step: systems free memory slowly, so a fast ceiling may be lower than a slow one.
    /// May be given several times; each is a run of its own
    #[arg(long, value_name = "TIME", default_values = ["0", "1s"], value_parser = duration)]
    pub pause: Vec<Duration>,
    /// Memory of the machine that stays free, a part of it or an amount; a step that would take it is not tried, and one
    /// that does is stopped
    #[arg(long, value_name = "PERCENT|BYTES", default_value = "10%", value_parser = floor)]
    pub floor: Floor,
    /// The longest that one step may take
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = some_time)]
    pub step_time: Duration,
    /// How much of each context is run and compared
    #[arg(long, value_enum, default_value_t = Mode::Full)]
    pub validate: Mode,
    /// The most that logits may differ by, in standard deviations of their row [default: by the format of keys and values,
    /// 0.005 for f32, 0.02 for f16, 0.06 for q8_0; three times that with routed experts]
    #[arg(long, value_name = "X", value_parser = tolerance)]
    pub tolerance: Option<f64>,
    /// Write down what happens, one JSON object a line, and go on from what stands there for the same files, program, machine,
    /// geometry and limits; what is of others is named and not used, and figures that cannot be are an error. One probe at a
    /// time may have it
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Print the steps with their planned bytes, and load nothing
    #[arg(long, conflicts_with = "preflight")]
    pub dry_run: bool,
    /// Check the machine's state: ok, fix, or ask a check; changes nothing
    #[arg(long)]
    pub preflight: bool,
    /// Be the process of one step: the order is on standard input
    #[arg(long, hide = true)]
    pub child: bool,
    #[command(flatten)]
    pub geometry: GeometryArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
    #[command(flatten)]
    pub output: Output,
}

/// What stays free.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Floor {
    /// Hundredths of the machine's memory.
    Percent(f64),
    /// Bytes.
    Bytes(u64),
}

impl Default for Floor {
    fn default() -> Self {
        Self::Percent(10.0)
    }
}

impl Floor {
    /// In bytes, of a machine with `total`.
    pub fn bytes(self, total: u64) -> u64 {
        match self {
            // The cast saturates, and the part is at most the whole.
            Self::Percent(percent) => (total as f64 * percent / 100.0) as u64,
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// Reads a floor.
fn floor(text: &str) -> Result<Floor, String> {
    let Some(number) = text.trim().strip_suffix('%') else { return Ok(Floor::Bytes(bytes::parse(text)?)) };
    match number.trim().parse::<f64>() {
        Ok(percent) if (0.0..100.0).contains(&percent) => Ok(Floor::Percent(percent)),
        _ => Err("expected a part from 0% to under 100%, or an amount of bytes".to_owned()),
    }
}

/// Reads a time: `0`, `1s`, `500ms`, `1.5s`, `2m`.
fn duration(text: &str) -> Result<Duration, String> {
    let expected = || "expected a time such as 0, 500ms, 1s or 2m, of at most a day".to_owned();
    let text = text.trim();
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number = number.trim().parse::<f64>().map_err(|_| expected())?;
    let seconds = match unit {
        "ms" => number / 1e3,
        "s" => number,
        "m" | "min" => number * 60.0,
        "h" => number * 3600.0,
        "" if number == 0.0 => 0.0,
        _ => return Err(expected()),
    };
    if (0.0..=86_400.0).contains(&seconds) { Ok(Duration::from_secs_f64(seconds)) } else { Err(expected()) }
}

/// Reads a time in which something can be done.
fn some_time(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("nothing can be done in no time: expected more than 0".to_owned()),
        time => Ok(time),
    }
}

fn tolerance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value.is_finite() => Ok(value),
        _ => Err("expected a number above 0".to_owned()),
    }
}

impl Args {
    /// What stays free of a machine with `total`: less than all of it.
    pub fn floor(&self, total: u64) -> Result<u64, Failure> {
        let floor = self.floor.bytes(total);
        if floor < total {
            return Ok(floor);
        }
        let (total, floor) = (grouped(total), grouped(floor));
        Err(Failure::usage(format!(
            "--floor: expected less than the {total} bytes that there are, got {floor}: nothing could be tried"
        )))
    }

    /// The first context and the last.
    pub fn ends(&self, opened: &Opened) -> Result<(u32, u32), Failure> {
        if self.geometry.context.is_some() {
            return Err(Failure::usage(
                "--context: a probe tries many: give --from, --step and --max".into(),
            ));
        }
        let last = self.max.unwrap_or(opened.model.context_max);
        let first = self.from.unwrap_or(self.step.min(last));
        let least = PROMPT + NEW;
        if first < least || first > last {
            let (first, last) = (grouped(first.into()), grouped(last.into()));
            return Err(Failure::usage(format!(
                "--from: expected {least} tokens (the prompt of a step and its continuation) to --max {last}, got \
                 {first}"
            )));
        }
        Ok((first, last))
    }
}

/// The contexts to try; the last is tried whether or not a step ends there.
pub fn contexts(first: u32, step: u32, last: u32) -> impl Iterator<Item = u32> {
    let mut next = Some(first);
    std::iter::from_fn(move || {
        let context = next?;
        next = (context < last).then(|| context.saturating_add(step).min(last));
        Some(context)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_context_is_always_tried() {
        let all = |first, step, last| contexts(first, step, last).collect::<Vec<_>>();
        assert_eq!(all(100, 100, 300), [100, 200, 300]);
        assert_eq!(all(100, 100, 250), [100, 200, 250]);
        assert_eq!(all(64, 8192, 64), [64]);
        assert_eq!(all(u32::MAX - 1, 8, u32::MAX), [u32::MAX - 1, u32::MAX]);
    }

    #[test]
    fn times_and_floors() {
        let ms = |text| duration(text).map(|time| time.as_millis());
        assert_eq!(
            [ms("0"), ms("1s"), ms("500ms"), ms("1.5s"), ms("2m")].map(Result::ok),
            [Some(0), Some(1000), Some(500), Some(1500), Some(120_000)]
        );
        assert!(some_time("1ms").is_ok());
        for zero in ["0", "0s", "0ms", "0h"] {
            assert!(duration(zero).is_ok() && some_time(zero).is_err(), "{zero}");
        }
        for bad in ["1", "-1s", "s", "NaNs", "1e9h", "1 week", ""] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert_eq!(floor("10%"), Ok(Floor::default()));
        assert_eq!(floor("2GiB"), Ok(Floor::Bytes(2 << 30)));
        assert_eq!((Floor::default().bytes(1000), Floor::Bytes(7).bytes(1000)), (100, 7));
        for bad in ["100%", "-1%", "NaN%", "ten", "%"] {
            assert!(floor(bad).is_err(), "{bad}");
        }
    }
}
