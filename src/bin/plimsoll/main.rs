//! The command line: one file per verb. Results go to standard output, progress and messages to standard error;
//! `--json` prints one document and nothing else.

mod account;
mod args;
mod bench;
mod chat;
mod devices;
mod estimate;
mod failure;
mod inspect;
mod lengths;
mod load;
mod logits;
mod perplexity;
mod probe;
mod run;
mod show;
mod text;

// What the command line of estimates has, too.
use plimsoll::estimator::cli::{bytes, output};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use failure::Failure;
use plimsoll::estimator::cli::modes::Given;
use plimsoll::estimator::cli::{end_of_usage, with_stack};
use std::process::ExitCode;

/// Prices a language model to the byte, then refuses it or runs it; after the load nothing is allocated again.
///
/// Exit codes: 0 done or fits, 2 usage (also what cannot be written), 3 refused, 4 cannot price, 5 bad input file, 6 device error,
/// or no memory, thread or open file for something else.
///
/// SIGINT, SIGTERM and SIGHUP end every verb at once, by that signal: text that was printed stays, JSON documents are whole
/// or not there, and the system takes back all memory. A probe takes its step's process with it, and goes on from its --log.
#[derive(Debug, Parser)]
#[command(name = "plimsoll", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Lists adapters: limits, memory with its source, features, chosen kernel variants
    Devices(devices::Args),
    /// Describes a checkpoint: architecture, tensors, formats, tokenizer, template
    Inspect(inspect::Args),
    /// Prices a model: bytes, verdict, context ladder, what fits, what saves most
    Estimate(estimate::Args),
    /// Continues a prompt
    Run(run::Args),
    /// Talks, with the model's chat template: one line is one message
    ///
    /// /reset begins the conversation again, /help lists the commands, /quit (or /exit, /bye, or the end of input)
    /// ends it.
    Chat(chat::Args),
    /// Measures prefill and decode rates
    ///
    /// Beside them stands what part they are of the adapter's ceilings, which are measured in 128 MiB once the model is
    /// unloaded. Where the budget or a limit of the shell has no room for these, the rates are reported without them, and
    /// why.
    Bench(bench::Args),
    /// Finds the machine's real ceiling: larger and larger contexts, each loaded, touched and checked in a process of its
    /// own, at two rates
    ///
    /// What was derived of the machine is stepped past. --memory and --reserve hold, unless there is --insist. A probe that
    /// reaches --max before any limit says that it found no ceiling, and its exit code is 0. Where a limit ends it before any
    /// step went well its exit code is 3, and where somebody else does, 6.
    Probe(probe::Args),
    /// Writes the logits of a sequence to a safetensors file
    Logits(logits::Args),
    /// Scores a text: mean negative log-likelihood and perplexity
    Perplexity(perplexity::Args),
}

impl Verb {
    fn json(&self) -> bool {
        match self {
            Verb::Devices(a) => a.output.json,
            Verb::Inspect(a) => a.output.json,
            Verb::Estimate(a) => a.estimate.output.json,
            Verb::Run(a) => a.output.json,
            Verb::Chat(a) => a.output.json,
            Verb::Bench(a) => a.output.json,
            Verb::Probe(a) => a.output.json,
            Verb::Logits(a) => a.output.json,
            Verb::Perplexity(_) => true,
        }
    }

    fn run(&self, given: &Given) -> Result<(), Failure> {
        match self {
            Verb::Devices(args) => devices::run(args),
            Verb::Inspect(args) => inspect::run(args),
            Verb::Estimate(args) => estimate::run(args, given),
            Verb::Run(args) => run::run(args),
            Verb::Chat(args) => chat::run(args),
            Verb::Bench(args) => bench::run(args),
            Verb::Probe(args) => probe::run(args),
            Verb::Logits(args) => logits::run(args),
            Verb::Perplexity(args) => perplexity::run(args),
        }
    }
}

fn main() -> ExitCode {
    with_stack(work)
}

fn work() -> ExitCode {
    output::full_files_are_errors();
    let mut command = Cli::command();
    // Scores are a document always.
    let document = std::env::args_os().nth(1).is_some_and(|verb| verb == "perplexity");
    let matches = command
        .try_get_matches_from_mut(std::env::args_os())
        .unwrap_or_else(|error| end_of_usage(&error, document));
    let cli = Cli::from_arg_matches(&matches)
        .unwrap_or_else(|error| end_of_usage(&error.format(&mut command), document));
    #[cfg(unix)]
    plimsoll::models::checkpoint::lost_pages::end_well_without_pages(cli.verb.json());
    match cli.verb.run(&Given::of_verb(&command, &matches)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(cli.verb.json()),
    }
}
