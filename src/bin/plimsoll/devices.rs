//! `plimsoll devices`.

use crate::args::Output;
use crate::failure::Failure;
use plimsoll::DeviceOptions;
use plimsoll::estimator::cli::bytes::human;
use plimsoll::estimator::cli::{output, show};
use plimsoll::runtime::{AdapterInfo, adapters};
use serde_json::json;
use std::fmt::Write;

/// Flags.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub output: Output,
}

/// Lists the adapters.
pub fn run(args: &Args) -> Result<(), Failure> {
    let found = adapters();
    if args.output.json {
        let list: Vec<_> = found
            .iter()
            .enumerate()
            .map(|(index, info)| {
                json!({"index": index, "adapter": info, "profile": info.profile(&DeviceOptions::default())})
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
        output::print(format_args!("{}\n", describe(index, info, args.output.verbose > 0)))?;
    }
    Ok(())
}

fn describe(index: usize, info: &AdapterInfo, verbose: bool) -> String {
    let profile = info.profile(&DeviceOptions::default());
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
            "reduce {:?}, mat-vec {} × {} rows, mat-mat {}, rows {}, attention {}",
            tuning.reduce,
            tuning.mat_vec_workgroup,
            tuning.mat_vec_rows,
            if tuning.mat_mat_shared { "tiles" } else { "registers" },
            tuning.row_workgroup,
            tuning.attention_workgroup
        ),
    );
    if verbose {
        let mut lines = String::new();
        for names in info.features.chunks(4) {
            let _ = writeln!(lines, "{}", names.join(", "));
        }
        row("features", lines.trim_end().to_owned());
    }
    table.to_string()
}
