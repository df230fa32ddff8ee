//! `plimsoll estimate`: needs no GPU, unless one is named.

use crate::args::{GeometryArgs, MachineArgs, ModelArg, Output};
use crate::failure::Failure;
use crate::load::Warned;
use crate::{load, output, show};
use plimsoll::estimator::geometry::MAX_DRAFT_DEPTH;
use plimsoll::{Budget, Device, Geometry, Profile};

/// Flags.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub model: ModelArg,
    #[command(flatten)]
    pub geometry: GeometryArgs,
    /// Tokens drafted ahead: every recurrent state is kept N + 1 times, so that a rejected draft can be taken back
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=i64::from(MAX_DRAFT_DEPTH)))]
    pub draft_depth: u32,
    #[command(flatten)]
    pub machine: MachineArgs,
    #[command(flatten)]
    pub output: Output,
}

/// Prices and judges.
pub fn run(args: &Args) -> Result<(), Failure> {
    let ceiling = args.machine.ceiling()?;
    let opened = args.model.open()?;
    let requested = ceiling.as_ref().map(|(bytes, setting)| (*bytes, setting.as_str()));
    let (profile, budget) = if args.machine.adapter.is_some() {
        let device = Device::open(&args.machine.options())?;
        (device.profile().clone(), plimsoll::budget(requested, &device.memory()))
    } else {
        let mut profile = Profile::webgpu_default();
        args.machine.cap(&mut profile.limits);
        (profile, Budget::resolve(requested, None))
    };
    let geometry = Geometry { draft_depth: args.draft_depth, ..args.geometry.resolve(&opened, None) };
    let warnings = load::note_warnings(&opened.model, &geometry);
    let (report, _) = opened.estimate(&geometry, &profile, budget.as_ref())?;
    if args.output.json {
        output::document(&Warned { document: &report, warnings: &warnings })?;
    } else {
        output::print(format_args!("{}\n", show::report(&report, args.machine.adapter.is_some())))?;
    }
    match &report.refusal {
        Some(refusal) => Err(Failure::Refused { reason: refusal.reason.clone(), details: String::new() }),
        None => Ok(()),
    }
}
