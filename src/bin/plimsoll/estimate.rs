//! `plimsoll estimate`: needs no GPU, unless one is named.

use crate::args::{GeometryArgs, MachineArgs, ModelArg, Output};
use crate::failure::Failure;
use crate::{load, output, show};
use plimsoll::{Budget, Device, Profile};

/// Flags.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub model: ModelArg,
    #[command(flatten)]
    pub geometry: GeometryArgs,
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
    let geometry = args.geometry.resolve(&opened, None);
    load::note_context(&opened, &geometry);
    let (report, _) = opened.estimate(&geometry, &profile, budget.as_ref())?;
    if args.output.json {
        output::document(&report)?;
    } else {
        output::print(format_args!("{}\n", show::report(&report, args.machine.adapter.is_some())))?;
    }
    match &report.refusal {
        Some(refusal) => Err(Failure::Refused { reason: refusal.reason.clone(), details: String::new() }),
        None => Ok(()),
    }
}
