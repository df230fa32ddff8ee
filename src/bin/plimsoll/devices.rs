//! `plimsoll devices`.

use crate::args::{AdapterArgs, Output};
use crate::failure::Failure;
use plimsoll::estimator::cli::bytes::human;
use plimsoll::estimator::cli::{output, show};
use plimsoll::kernels::tuning::{Field, table};
use plimsoll::runtime::{AdapterInfo, adapters};
use plimsoll::{AdapterChoice, Device, DeviceOptions, Profile};
use serde_json::json;
use std::fmt::Write;

/// Flags.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Show the built-in kernel variants, and not what `bench --tune` has saved
    #[arg(long)]
    pub no_tuning: bool,
    #[command(flatten)]
    pub output: Output,
}

impl Args {
    /// What plans on an adapter assume when it is opened without any flag.
    fn profile(&self, info: &AdapterInfo) -> Profile {
        let adapter = AdapterArgs {
            adapter: None,
            webgpu_limits: false,
            no_subgroups: false,
            no_tuning: self.no_tuning,
        };
        let plain = info.profile(&DeviceOptions::default());
        match adapter.saved(info, &plain).map(|tuned| plain.clone().tuned(&tuned)) {
            Some(Ok(tuned)) => tuned,
            _ => plain,
        }
    }
}

/// Lists the adapters.
pub fn run(args: &Args) -> Result<(), Failure> {
    let mut found = adapters()?;
    for (index, info) in found.iter_mut().enumerate() {
        // A driver's threads take of such a limit when it is opened, so that no load finds what is left before.
        if info.memory.source.is_of_the_process() {
            let options = DeviceOptions { adapter: AdapterChoice::Index(index), ..Default::default() };
            info.memory = Device::open(&options)?.memory();
        }
    }
    if args.output.json {
        let list: Vec<_> = found
            .iter()
            .enumerate()
            .map(|(index, info)| {
                let profile = args.profile(info);
                let row = table::look_up(&profile.facts());
                json!({"index": index, "adapter": info, "profile": profile, "tuning_row": row})
            })
            .collect();
        return Ok(output::document(&json!({"schema": 1, "adapters": list}))?);
    }
    if found.is_empty() {
        return Ok(output::print(format_args!(
            "no adapter: install a Vulkan driver (mesa-vulkan-drivers has a software one)\n"
        ))?);
    }
    for (index, info) in found.iter().enumerate() {
        output::print(format_args!("{}\n", describe(index, info, args)))?;
    }
    Ok(())
}

fn describe(index: usize, info: &AdapterInfo, args: &Args) -> String {
    let profile = args.profile(info);
    let verbose = args.output.verbose > 0;
    let (limits, tuning) = (&info.limits, &profile.tuning);
    let mut table = show::table(&[&format!("[{index}] {}", info.name), ""], &[]);
    let amount = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), human);
    let mut row = |name: &str, value: String| {
        table.add_row([name.to_owned(), value]);
    };
    row("kind", format!("{:?}, {}", info.kind, info.backend).to_lowercase());
    row("driver", format!("{} {}", info.driver, info.driver_info));
    row(
        "memory",
        format!(
            "{} free of {} ({})",
            amount(info.memory.available),
            amount(info.memory.total),
            info.memory.named()
        ),
    );
    row("largest buffer", human(limits.max_buffer_size));
    row("largest binding", human(limits.max_storage_buffer_binding_size));
    row("storage buffers a stage", limits.max_storage_buffers_per_shader_stage.to_string());
    row(
        "workgroup",
        format!(
            "{} invocations, {}",
            limits.max_compute_invocations_per_workgroup,
            human(limits.max_compute_workgroup_storage_size.into())
        ),
    );
    row(
        "subgroups",
        info.subgroup_size.map_or("none".to_owned(), |(low, high)| format!("{low} to {high} invocations")),
    );
    row(
        "variants",
        format!(
            "reduce {:?}, mat-vec {} × {} rows, mat-mat {}, rows {}, attention {} filling {}, state space {}, delta {}",
            tuning.reduce,
            tuning.mat_vec_workgroup,
            tuning.mat_vec_rows,
            if tuning.mat_mat_shared { "tiles" } else { "registers" },
            tuning.row_workgroup,
            tuning.attention_workgroup,
            tuning.attention_fill,
            Field::Ssd.value(tuning),
            Field::Delta.value(tuning),
        ),
    );
    row("variants by", profile.tuned_by.clone());
    let of = table::look_up(&profile.facts());
    let measured = match of.measured.len() {
        0 => format!("nothing was measured for it; {}", of.reasoning),
        some => format!("{} on {}", output::count(some, "measurement"), of.measured[0].driver),
    };
    row("table row", format!("{}, for {}: {measured}", of.name, of.when));
    if verbose {
        for seen in of.measured {
            row("measured", format!("{}: {}: {} ({})", seen.date, seen.what, seen.figures, seen.source));
        }
        let mut lines = String::new();
        for names in info.features.chunks(4) {
            let _ = writeln!(lines, "{}", names.join(", "));
        }
        row("features", lines.trim_end().to_owned());
    }
    table.to_string()
}
