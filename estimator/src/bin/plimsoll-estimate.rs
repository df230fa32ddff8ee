//! Prices a model without a GPU: the verb `estimate` of `plimsoll` by itself, without what runs models.

use clap::{CommandFactory, FromArgMatches, Parser};
use plimsoll_estimator::cli::args::open;
use plimsoll_estimator::cli::modes::Given;
use plimsoll_estimator::cli::{Failure, end_of_usage, estimate, fleet, output, with_stack};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Prices a language model to the byte, before anything is loaded.
///
/// Exit codes: 0 fits (or no budget), 2 usage, 3 refused, 4 cannot price, 5 bad input file, 6 no memory left.
#[derive(Debug, Parser)]
#[command(name = "plimsoll-estimate", version, max_term_width = 110)]
struct Cli {
    /// A .gguf or .safetensors file, a directory with config.json, a bare config.json, or hf:owner/name (with :file and
    /// @revision where they matter)
    #[arg(value_name = "MODEL", required_unless_present_any = ["list_devices", "fleet"])]
    model: Option<PathBuf>,
    #[command(flatten)]
    args: estimate::Args,
}

fn run(path: Option<&Path>, args: &estimate::Args, given: &Given) -> Result<(), Failure> {
    args.check(given)?;
    if let Some(file) = &args.fleet {
        return fleet::show(file, &args.output);
    }
    let Some(path) = path.filter(|_| !args.list_devices) else {
        return estimate::list_devices(args.output.json);
    };
    let checkpoint = open(path)?;
    estimate::run(args, &checkpoint, Some(path), None)
}

fn main() -> ExitCode {
    with_stack(work)
}

fn work() -> ExitCode {
    output::full_files_are_errors();
    let mut command = Cli::command();
    let matches = command
        .try_get_matches_from_mut(std::env::args_os())
        .unwrap_or_else(|error| end_of_usage(&error, false));
    let cli = Cli::from_arg_matches(&matches)
        .unwrap_or_else(|error| end_of_usage(&error.format(&mut command), false));
    #[cfg(unix)]
    plimsoll_models::checkpoint::lost_pages::end_well_without_pages(cli.args.output.json);
    match run(cli.model.as_deref(), &cli.args, &Given::of(&command, &matches)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(cli.args.output.json),
    }
}
