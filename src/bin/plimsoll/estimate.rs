//! `plimsoll estimate`: needs no GPU, unless one is named.

use crate::args::{AdapterArgs, LimitArgs, ModelArg, device_options, reading};
use crate::failure::Failure;
use plimsoll::estimator::cli::estimate::{self, Machine};
use plimsoll::estimator::cli::fleet;
use plimsoll::estimator::cli::modes::Given;

/// Flags.
#[derive(Debug, clap::Args)]
#[group(skip)] // the flattened one goes by the same name
pub struct Args {
    #[command(flatten)]
    pub model: ModelArg,
    #[command(flatten)]
    pub estimate: estimate::Args,
    #[command(flatten)]
    pub adapter: AdapterArgs,
}

/// Prices and judges.
pub fn run(args: &Args, given: &Given) -> Result<(), Failure> {
    args.estimate.check(given)?;
    if args.estimate.list_devices {
        return Ok(estimate::list_devices(args.estimate.output.json)?);
    }
    if let Some(file) = &args.estimate.fleet {
        return Ok(fleet::show(file, &args.estimate.output)?);
    }
    // A wrong setting is said before anything is opened.
    args.estimate.limits.policy()?;
    let checkpoint = args.model.checkpoint()?;
    let machine = match &args.adapter.adapter {
        Some(_) => {
            // With all that it allows: what is asked of that is resolved, and told, by the estimate.
            let device = args.adapter.open(&device_options(&args.adapter, &LimitArgs::default()))?;
            Some(Machine { profile: device.profile().clone(), reading: reading(&device.memory()) })
        }
        None => None,
    };
    Ok(estimate::run(&args.estimate, &checkpoint, args.model.path(), machine)?)
}
