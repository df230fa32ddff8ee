//! `plimsoll bench`: prefill and decode rates, as the engine runs them for a user; settings compared in turn.

mod arms;
mod ceilings;
mod profile;
mod report;
mod requests;
mod stats;
mod sweep;
mod tune;

use crate::args::{GeometryArgs, MachineArgs, ModelArg, Output};
use crate::failure::Failure;
use crate::output::median;
use crate::{account, lengths, load, output, show};
use ceilings::Unmeasured;
use indicatif::ProgressBar;
use plimsoll::estimator::cli::bytes::{self, grouped};
use plimsoll::kernels::StepShape;
use plimsoll::runtime::lone::Ceilings;
use plimsoll::runtime::{Request, RuntimeError, What};
use plimsoll::{Engine, Runtime};
use serde_json::json;
use stats::range;
pub use stats::spread;
use std::sync::Arc;
use std::time::Instant;

/// Flags.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub model: ModelArg,
    /// Tokens of the prompt
    #[arg(short = 'p', long, value_name = "TOKENS", default_value = "512", value_parser = bytes::count)]
    pub prompt_tokens: u32,
    /// Tokens generated after it
    #[arg(short = 'n', long, value_name = "TOKENS", default_value = "64", value_parser = bytes::count)]
    pub new_tokens: u32,
    /// Repetitions, after one that warms up and is not counted
    #[arg(short = 'r', long, value_name = "N", default_value = "5", value_parser = bytes::count)]
    pub repetitions: u32,
    /// Instead of one prompt, prompts of each of these lengths in one process and one plan, with the peak memory of
    /// the process and the allocations of the device at each: --lengths 500,1000,2000,4000,8000,16000
    #[arg(long, value_name = "TOKENS,…", value_delimiter = ',', value_parser = bytes::count, conflicts_with = "prompt_tokens")]
    pub lengths: Option<Vec<u32>>,
    /// Instead of one conversation, N requests from a seed: prompts of up to -p tokens, three of four with one of N/4
    /// beginnings, answers of up to -n tokens. The context is then what a load has by default
    #[arg(long, value_name = "N", value_parser = bytes::count, conflicts_with = "lengths")]
    pub requests: Option<u32>,
    /// The seed of --requests
    #[arg(long, value_name = "SEED", default_value_t = requests::SEED, requires = "requests")]
    pub seed: u64,
    /// Compare values of one setting, in turn (A B A B …), -r rounds of at least 3: cache-limit=0,64MiB,none, or chunk,
    /// slots, kv, context, snapshots. Arms of these are loaded for every turn, one plan at a time
    #[arg(long, value_name = "SETTING=VALUE,…", value_parser = sweep::parse, conflicts_with = "lengths")]
    pub sweep: Option<sweep::Sweep>,
    /// Instead of a model's rates, what the adapter does at best in several shapes: reading, copying, multiply-adds, and
    /// what a dispatch, a submit and a readback cost
    #[arg(long, conflicts_with_all = ["model", "prompt_tokens", "new_tokens", "repetitions", "lengths", "requests", "sweep", "profile", "tune"])]
    pub ceilings: bool,
    #[command(flatten)]
    pub profile: profile::ProfileArgs,
    #[command(flatten)]
    pub tune: tune::TuneArgs,
    #[command(flatten)]
    pub geometry: GeometryArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
    #[command(flatten)]
    pub output: Output,
}

/// Seconds of one repetition.
pub struct Times {
    pub prefill: f64,
    pub decode: f64,
}

/// Tokens of a prompt and what follows it: its last step chooses one token more.
pub fn tokens(flag: &str, prompt: u32, new: u32) -> Result<u32, Failure> {
    prompt.checked_add(new).and_then(|sum| sum.checked_add(1)).ok_or_else(|| {
        let (prompt, new) = (grouped(prompt.into()), grouped(new.into()));
        let most = grouped(u32::MAX.into());
        Failure::usage(format!(
            "{flag}: expected fewer than {most} tokens with those after them, got {prompt} + {new}"
        ))
    })
}

/// Measures.
pub fn run(args: &Args) -> Result<(), Failure> {
    if let Some(lengths) = &args.lengths {
        return lengths::run(args, lengths);
    }
    if args.ceilings {
        return ceilings::run(args);
    }
    if args.profile.profile {
        return profile::run(args);
    }
    if args.tune.tune {
        return tune::run(args);
    }
    if args.sweep.is_some() || args.requests.is_some() {
        return arms::run(args);
    }
    let opened = args.model.open()?;
    let tokens = tokens("--prompt-tokens", args.prompt_tokens, args.new_tokens)?;
    let geometry = args.geometry.resolve(&opened.model, Some(tokens));
    load::check_length(&geometry, args.prompt_tokens as usize, tokens - args.prompt_tokens)?;
    let ready = load::admit(&opened, &geometry, &args.machine, &args.output)?;
    let (mut engine, load_time) = ready.engine(&opened)?;
    let bar = ProgressBar::new(u64::from(args.repetitions) + 1);
    let mut times = Vec::new();
    for repetition in 0..=args.repetitions {
        let measured = once(&mut engine, args.prompt_tokens, args.new_tokens)?;
        if repetition > 0 {
            times.push(measured);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();

    let prefill: Vec<f64> = times.iter().map(|t| f64::from(args.prompt_tokens) / t.prefill).collect();
    let decode: Vec<f64> = times.iter().map(|t| f64::from(args.new_tokens) / t.decode).collect();
    let work = Work::of(&engine, args);
    let rates = (median(&prefill), median(&decode));
    if args.output.json {
        let reserved = engine.stepper().account().reserved.figure.bytes;
        let mut document = load::end(engine, &args.machine, &args.output)?;
        let ceilings = ceilings::beside(&args.machine)?;
        let measured = ceilings.as_ref().ok();
        let fractions = measured.map(|ceilings| work.fractions(rates, ceilings)).unzip();
        document["schema"] = json!(1);
        document["prompt_tokens"] = json!(args.prompt_tokens);
        document["new_tokens"] = json!(args.new_tokens);
        document["repetitions"] = json!(args.repetitions);
        document["load_seconds"] = json!(load_time.as_secs_f64());
        document["prefill_tokens_per_second"] = spread(&prefill);
        document["decode_tokens_per_second"] = spread(&decode);
        document["ceilings"] = json!(measured.map(|ceilings| json!({
            "read_bytes_per_second": ceilings.read,
            "copy_bytes_per_second": ceilings.copy,
            "flops_per_second": ceilings.flops,
        })));
        document["ceilings_not_measured"] = json!(ceilings.as_ref().err());
        document["prefill_fraction_of_flops"] = json!(fractions.0);
        document["decode_fraction_of_read"] = json!(fractions.1);
        document["reserved_bytes"] = json!(reserved);
        return Ok(output::document(&document)?);
    }
    let plan = engine.plan();
    let g = &plan.geometry;
    let mut table = show::table(&["tokens a second", "median", "least", "most"], &[1, 2, 3]);
    for (name, rates) in [
        (format!("prefill {}", args.prompt_tokens), &prefill),
        (format!("decode {} at {}", args.new_tokens, args.prompt_tokens), &decode),
    ] {
        let (least, most) = range(rates);
        table.add_row([name, format!("{:.2}", median(rates)), format!("{least:.2}"), format!("{most:.2}")]);
    }
    output::print(format_args!(
        "{} ({}) on {}: context {}, chunk {}, KV {}; {}; kernel variants: {}\n{}\n{table}\n",
        plan.model.name,
        plan.model.architecture,
        engine.stepper().device().info().name,
        g.context,
        g.prefill_chunk,
        g.kv,
        output::count(args.repetitions as usize, "repetition"),
        plan.profile.tuned_by,
        load::limits(&engine, &args.machine.policy()?.cache_limit()),
    ))?;
    let (account, telemetry) = (account::table(&engine.stepper().account()), engine.telemetry());
    let [trimmed, unloaded] = load::unload(engine);
    match ceilings::beside(&args.machine)? {
        Ok(ceilings) => {
            let (prefill, decode) = work.fractions(rates, &ceilings);
            output::print(format_args!(
                "ceilings of this adapter in this run: reading {:.1} GB/s, multiply-adds {:.1} GFLOP/s\n\
                 prefill at {:.0} % of the multiply-adds, decode at {:.0} % of the reading\n",
                ceilings.read / 1e9,
                ceilings.flops / 1e9,
                100.0 * prefill,
                100.0 * decode,
            ))?;
        }
        Err(Unmeasured { why, .. }) => {
            output::print(format_args!("ceilings of this adapter were not measured: {why}\n"))?;
        }
    }
    Ok(output::print(format_args!(
        "{account}\nload: {:.2} s\n{telemetry}\n{trimmed}\n{unloaded}\n",
        load_time.as_secs_f64()
    ))?)
}

/// What a token of prefill multiplies and one of decode reads, by the plan.
struct Work {
    prefill_flops: f64,
    decode_bytes: f64,
}

impl Work {
    fn of(engine: &Engine<Runtime>, args: &Args) -> Self {
        let plan = engine.plan();
        let chunk = plan.geometry.prefill_chunk;
        let mut flops = 0;
        let mut at = 0;
        while at < args.prompt_tokens {
            let tokens = chunk.min(args.prompt_tokens - at);
            let last = at + tokens == args.prompt_tokens;
            let step =
                StepShape { tokens, logit_rows: u32::from(last), kv_max: at + tokens, ..Default::default() };
            // A row sees all before the chunk, and half of the chunk on average.
            flops += plan.work(&step, at + tokens / 2).1;
            at += tokens;
        }
        let middle = args.prompt_tokens + args.new_tokens / 2;
        let step = StepShape { tokens: 1, logit_rows: 1, kv_max: middle, ..Default::default() };
        Self {
            prefill_flops: flops as f64 / f64::from(args.prompt_tokens.max(1)),
            decode_bytes: plan.work(&step, middle).0 as f64,
        }
    }

    /// What part of the adapter's own ceilings rates are: of multiply-adds for prefill, of reading for decode.
    fn fractions(&self, (prefill, decode): (f64, f64), ceilings: &Ceilings) -> (f64, f64) {
        (prefill * self.prefill_flops / ceilings.flops, decode * self.decode_bytes / ceilings.read)
    }
}

/// One request, in seconds: the prompt up to its first token, then the tokens after it.
pub fn once(engine: &mut Engine<Runtime>, prompt: u32, new: u32) -> Result<Times, Failure> {
    // The same prompt again would be found and not be computed.
    engine.trim();
    let vocab = engine.plan().model.vocab.max(1);
    // Any ids will do; they differ, so that no cache of embeddings flatters the rate.
    let ids = (0..prompt).map(|i| i.wrapping_mul(7919).wrapping_add(11) % vocab).collect();
    engine.submit(Request { prompt: ids, max_new: new.saturating_add(1), ..Default::default() })?;
    let start = Instant::now();
    let mut first = None;
    while !engine.is_idle() {
        for event in engine.step() {
            match event.what {
                What::Token { .. } => {
                    first.get_or_insert_with(|| start.elapsed().as_secs_f64());
                }
                What::Failed(error) => {
                    return Err(Arc::try_unwrap(error).unwrap_or_else(RuntimeError::Step).into());
                }
                What::Prefill { .. } | What::Done(_) => {}
            }
        }
    }
    let total = start.elapsed().as_secs_f64();
    let prefill = first.unwrap_or(total);
    Ok(Times { prefill, decode: total - prefill })
}
