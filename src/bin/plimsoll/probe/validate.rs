//! The validation prompt: the same tokens at the same positions whatever the context, so that what a model says after a
//! position is what it said there in every other run.

use super::record::{Anchor, Checked};
use clap::ValueEnum;
use plimsoll::runtime::RuntimeError;
use plimsoll::runtime::rng::Rng;
use plimsoll::runtime::sampler::log_sum_exp;
use plimsoll::{Engine, KvFormat, Model, Runtime};
use std::time::Instant;

/// Tokens that a step decodes one by one, at the end of its context.
pub const NEW: u32 = 8;
/// Tokens of the shortest prompt.
pub const PROMPT: u32 = 16;
/// Tokens of the reference's context at most: it is computed by kernels that may be slow.
pub const REFERENCE: u32 = 512;
/// Logits of a row that are written down.
const SAMPLE: u64 = 32;

/// How much of a context is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// All of it, twice: prompt and decoding, then the same tokens again in other pieces
    Full,
    /// The reference's positions only; the rest is filled and never read: for drivers that are too slow
    Prefix,
}

impl Mode {
    /// The name in records.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Prefix => "prefix",
        }
    }

    /// Tokens of a context that are run.
    pub fn tokens(self, context: u32) -> u32 {
        match self {
            Self::Full => context,
            Self::Prefix => context.min(REFERENCE),
        }
    }
}

/// The most that a logit may differ by, in deviations of its row, where nothing is wrong: rounding of keys and values,
/// and of sums in another order. A router may choose another expert for a rounding.
pub fn tolerance(kv: KvFormat, model: &Model) -> f64 {
    let rounding = match kv {
        KvFormat::F32 => 0.005,
        KvFormat::F16 => 0.02,
        KvFormat::Q8_0 => 0.06,
    };
    let routed = model.matrices.iter().any(|matrix| matrix.experts > 1);
    if routed { rounding * 3.0 } else { rounding }
}

/// Of so many tokens, those that are decoded one by one.
pub fn decoded(tokens: u32) -> u32 {
    tokens - tokens.saturating_sub(NEW).max(1).min(tokens)
}

/// The token at every position under `length`.
fn prompt(length: u32, vocab: u32) -> Vec<u32> {
    let mut rng = Rng::new(0x706c_696d);
    // The remainder is under the vocabulary's size, which is a u32.
    (0..length).map(|_| (rng.next_u64() % u64::from(vocab.max(1))) as u32).collect()
}

/// The positions that are looked at in a prompt: near its begin, in the middle, at its end.
fn positions(prompt: u32) -> Vec<u32> {
    let end = prompt.saturating_sub(1);
    let mut at = vec![end.min(PROMPT - 1), end / 4, end / 2, end / 4 * 3, end];
    at.sort_unstable();
    at.dedup();
    at
}

fn anchor(position: u32, row: &[f32]) -> Result<Anchor, RuntimeError> {
    // A row that is not made of numbers is an error by itself.
    let log_sum_exp = log_sum_exp(row)? as f32;
    let mean = row.iter().map(|&v| f64::from(v)).sum::<f64>() / row.len().max(1) as f64;
    let square = row.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / row.len().max(1) as f64;
    let mut rng = Rng::new(SAMPLE);
    let place = |rng: &mut Rng| (rng.next_u64() % row.len().max(1) as u64) as usize;
    let sample = (0..SAMPLE).filter_map(|_| row.get(place(&mut rng)).copied()).collect();
    Ok(Anchor { position, best: best(row), log_sum_exp, deviation: square.sqrt() as f32, sample })
}

fn best(row: &[f32]) -> u32 {
    let most = (0_u32..).zip(row).max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
    most.map_or(0, |(id, _)| id)
}

/// How far two numbers are from each other, in deviations; what is no number is infinitely far.
fn apart(a: f32, b: f32, deviation: f32) -> f64 {
    let apart = f64::from((a - b).abs()) / f64::from(deviation.max(f32::MIN_POSITIVE));
    if apart.is_nan() { f64::INFINITY } else { apart }
}

/// What was said, and how it was checked.
pub struct Said {
    pub tokens: Vec<u32>,
    pub anchors: Vec<Anchor>,
    pub checked: Checked,
    pub prefill_tokens_per_second: f64,
    pub decode_tokens_per_second: f64,
}

/// Why a validation failed.
pub enum Trouble {
    /// The output is wrong, in a sentence.
    Wrong(String),
    /// There is none.
    Failed(RuntimeError),
}

impl From<RuntimeError> for Trouble {
    fn from(error: RuntimeError) -> Self {
        match error {
            // What is not made of numbers is an output, and a wrong one.
            RuntimeError::Logits { .. } => Trouble::Wrong(error.to_string()),
            other => Trouble::Failed(other),
        }
    }
}

fn wrong(what: String, drift: f64, tolerance: f64) -> Trouble {
    Trouble::Wrong(format!(
        "{what}: {drift:.4e} deviations apart, where rounding makes at most {tolerance:e}"
    ))
}

/// A row against what another run said there.
fn compare(row: &[f32], got: &Anchor, expected: &Anchor, tolerance: f64) -> Result<f64, Trouble> {
    let logits = got.sample.iter().zip(&expected.sample);
    let sum = apart(got.log_sum_exp, expected.log_sum_exp, expected.deviation);
    let drift = logits.map(|(a, b)| apart(*a, *b, expected.deviation)).fold(sum, f64::max);
    let place = got.position;
    if drift > tolerance || got.sample.len() != expected.sample.len() {
        return Err(wrong(format!("logits at position {place} against the reference's"), drift, tolerance));
    }
    // Within rounding of the most probable, the other may be it.
    let token = row.get(expected.best as usize).copied().unwrap_or(f32::NEG_INFINITY);
    let lead = apart(row.get(got.best as usize).copied().unwrap_or(f32::NAN), token, expected.deviation);
    if lead > 2.0 * tolerance {
        let what = format!("token {} after position {place}, the reference's {}", got.best, expected.best);
        return Err(wrong(what, lead, 2.0 * tolerance));
    }
    Ok(drift.max(lead))
}

/// Runs each of the plan's programs once, over as much of `tokens` as it takes: drivers compile a kernel when it first
/// runs, and no rate is to have that in it.
pub fn warm_up(engine: &mut Engine<Runtime>, tokens: u32) -> Result<(), RuntimeError> {
    let most: Vec<u32> =
        engine.plan().programs.iter().map(|program| program.max_tokens.min(tokens)).collect();
    let ids = prompt(tokens, engine.plan().model.vocab);
    for length in most {
        let (first, last) = ids[..length as usize].split_at(length.saturating_sub(1) as usize);
        let mut feed = engine.feed(length as usize)?;
        for piece in [first, last].into_iter().filter(|piece| !piece.is_empty()) {
            feed.push(piece, piece.len() - 1, |_, _| Ok(()))?;
        }
    }
    Ok(())
}

/// Runs the prompt over `tokens` positions, decodes the last of them, and compares.
pub fn run(
    engine: &mut Engine<Runtime>,
    mode: Mode,
    tokens: u32,
    expected: &[Anchor],
    tolerance: f64,
) -> Result<Said, Trouble> {
    let vocab = engine.plan().model.vocab;
    let chunk = engine.plan().geometry.prefill_chunk;
    let length = tokens - decoded(tokens);
    let mut ids = prompt(length, vocab);
    let own = positions(length);
    let mut at = own.clone();
    at.extend(expected.iter().map(|anchor| anchor.position).filter(|&position| position < length));
    at.sort_unstable();
    at.dedup();

    // Once in pieces that end where something is looked at, then token by token.
    let (mut anchors, mut references, mut drift) = (Vec::new(), Vec::new(), 0_f64);
    let mut last = Vec::new();
    let mut feed = engine.feed(tokens as usize)?;
    let start = Instant::now();
    let mut from = 0;
    for &position in &at {
        let piece = &ids[from..=position as usize];
        feed.push(piece, piece.len() - 1, |_, row| {
            last = row.to_vec();
            Ok(())
        })?;
        from = position as usize + 1;
        let said = anchor(position, &last)?;
        for other in expected.iter().filter(|other| other.position == position) {
            drift = drift.max(compare(&last, &said, other, tolerance)?);
            references.push(position);
        }
        if own.contains(&position) {
            anchors.push(said);
        }
    }
    let prefill = start.elapsed();
    let start = Instant::now();
    let mut decoded = Vec::new();
    for _ in length..tokens {
        let token = best(&last);
        decoded.push(token);
        feed.push(&[token], 0, |_, row| {
            last = row.to_vec();
            Ok(())
        })?;
    }
    let decode = start.elapsed();
    drop(feed);

    // And again in other pieces, to the same end: what was decoded is part of a prompt now.
    ids.extend_from_slice(&decoded);
    let mut again = Vec::new();
    let mut feed = engine.feed(ids.len())?;
    let first = (chunk / 2 + 1).min(tokens / 2).max(1) as usize;
    for piece in [&ids[..first], &ids[first..]] {
        feed.push(piece, piece.len() - 1, |_, row| {
            again = row.to_vec();
            Ok(())
        })?;
    }
    drop(feed);
    let end = tokens - 1;
    let (said, other) = (anchor(end, &again)?, anchor(end, &last)?);
    let rows = again.iter().zip(&last).map(|(a, b)| apart(*a, *b, other.deviation));
    let recomputed = rows.fold(0_f64, f64::max);
    if recomputed > tolerance || again.len() != last.len() {
        let what = format!("logits at position {end}, decoded and computed again as part of a prompt");
        return Err(wrong(what, recomputed, tolerance));
    }
    drift = drift.max(compare(&again, &said, &other, tolerance)?).max(recomputed);
    Ok(Said {
        tokens: decoded,
        anchors,
        checked: Checked {
            mode: mode.name().to_owned(),
            tokens,
            references,
            recomputed: vec![end],
            drift,
            tolerance,
        },
        prefill_tokens_per_second: f64::from(length) / prefill.as_secs_f64().max(1e-9),
        decode_tokens_per_second: f64::from(tokens - length) / decode.as_secs_f64().max(1e-9),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_prompt_is_the_beginning_of_every_longer_one() {
        assert_eq!(prompt(16, 300)[..], prompt(64, 300)[..16]);
        assert!(prompt(1000, 3).iter().all(|&id| id < 3));
        assert_eq!(positions(16), [3, 7, 9, 15]);
        assert_eq!(positions(1), [0]);
        let long = positions(8184);
        assert_eq!((long[0], long[long.len() - 1], long.len()), (15, 8183, 5));
    }

    #[test]
    fn rounding_is_no_difference_and_more_is_one() {
        let row: Vec<f32> = (0..500_u32).map(|i| (f64::from(i) * 0.7).sin() as f32).collect();
        let said = anchor(9, &row).unwrap();
        let check = |change: &dyn Fn(usize, f32) -> f32| {
            let row: Vec<f32> = row.iter().enumerate().map(|(i, &v)| change(i, v)).collect();
            compare(&row, &anchor(9, &row).unwrap(), &said, 0.05)
        };
        assert_eq!(check(&|_, v| v).ok(), Some(0.0));
        assert!(check(&|i, v| v + if i % 2 == 0 { 0.01 } else { -0.01 }).is_ok_and(|drift| drift > 0.005));
        assert!(check(&|_, v| v * 1.2).is_err());
        assert!(check(&|_, v| v + 0.1).is_err());
        // One token alone, which no sample has: the greedy answer is another.
        assert!(check(&|i, v| if i == 123 { 3.0 } else { v }).is_err());
        assert!(anchor(0, &[0.0, f32::NAN]).is_err());
    }
}
