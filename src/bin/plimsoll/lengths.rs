//! `plimsoll bench --lengths`: prompts of many lengths in one process and one plan. Rates should stay flat; memory of
//! the process and of the device should not grow with the prompt.

use crate::bench::{self, Args, Times};
use crate::failure::Failure;
use crate::output::median;
use crate::{account, load};
use indicatif::ProgressBar;
use plimsoll::estimator::cli::bytes::grouped;
use plimsoll::estimator::cli::{output, show};
use plimsoll::runtime::device::DeviceCounters;
use plimsoll::runtime::process::{ProcessMemory, forget_peak};
use plimsoll::{Engine, Runtime};
use serde_json::{Value, json};

/// What was seen at one length.
struct Row {
    prompt: u32,
    prefill: Vec<f64>,
    decode: Vec<f64>,
    /// Most bytes of the process that were resident meanwhile, where the system says.
    peak: Option<u64>,
    device: DeviceCounters,
    buffers_created: u64,
}

/// Measures every length, shortest first.
pub fn run(args: &Args, lengths: &[u32]) -> Result<(), Failure> {
    let mut lengths = lengths.to_vec();
    lengths.sort_unstable();
    let longest = lengths.last().copied().unwrap_or(1);
    let opened = args.model.open()?;
    let tokens = bench::tokens("--lengths", longest, args.new_tokens)?;
    let geometry = args.geometry.resolve(&opened.model, Some(tokens));
    load::check_length(&geometry, longest as usize, tokens - longest)?;
    let ready = load::admit(&opened, &geometry, &args.machine, &args.output)?;
    let (mut engine, load_time) = ready.engine(&opened)?;
    let loaded = ProcessMemory::take().resident.bytes;
    let mut rows = Vec::new();
    let bar = ProgressBar::new(lengths.len() as u64);
    // One step compiles nothing, but the first of a process touches pages for the first time.
    bench::once(&mut engine, 1, 1)?;
    let before = seen(&engine);
    for prompt in lengths {
        rows.push(measure(&mut engine, args, prompt)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    if args.output.json {
        let mut document = load::end(engine, &args.machine, &args.output)?;
        document["schema"] = json!(1);
        document["new_tokens"] = json!(args.new_tokens);
        document["repetitions"] = json!(args.repetitions);
        document["load_seconds"] = json!(load_time.as_secs_f64());
        document["resident_after_load"] = json!(loaded);
        document["device_before"] = device(&before.0, before.1);
        document["lengths"] = rows.iter().map(document_of).collect();
        return Ok(output::document(&document)?);
    }
    let header =
        ["prompt", "prefill tokens/s", "decode tokens/s", "process peak", "device bytes", "allocations"];
    let mut table = show::table(&header, &[0, 1, 2, 3, 4, 5]);
    for row in &rows {
        table.add_row([
            grouped(row.prompt.into()),
            format!("{:.2}", median(&row.prefill)),
            format!("{:.2}", median(&row.decode)),
            row.peak.map_or("unknown".to_owned(), grouped),
            row.device.buffer_memory.to_string(),
            (row.buffers_created - before.1).to_string(),
        ]);
    }
    let g = &engine.plan().geometry;
    Ok(output::print(format_args!(
        "{} ({}) on {}: context {}, chunk {}, KV {}; {} of each length, {} new tokens; kernel variants: {}\n{}\n{table}\n\
         process peak: most resident bytes while the length ran, {} after the load; allocations: device buffers\n\
         created since the load\n{}\n",
        engine.plan().model.name,
        engine.plan().model.architecture,
        engine.stepper().device().info().name,
        g.context,
        g.prefill_chunk,
        g.kv,
        output::count(args.repetitions as usize, "repetition"),
        args.new_tokens,
        engine.plan().profile.tuned_by,
        load::limits(&engine, &args.machine.policy()?.cache_limit()),
        loaded.map_or("unknown".to_owned(), grouped),
        account::table(&engine.stepper().account()),
    ))?)
}

fn measure(engine: &mut Engine<Runtime>, args: &Args, prompt: u32) -> Result<Row, Failure> {
    let peak_is_ours = forget_peak();
    let mut times: Vec<Times> = Vec::new();
    for _ in 0..args.repetitions {
        times.push(bench::once(engine, prompt, args.new_tokens)?);
    }
    let peak = peak_is_ours.then(|| ProcessMemory::take().peak.bytes).flatten();
    let (device, buffers_created) = seen(engine);
    Ok(Row {
        prompt,
        prefill: times.iter().map(|t| f64::from(prompt) / t.prefill).collect(),
        decode: times.iter().map(|t| f64::from(args.new_tokens) / t.decode).collect(),
        peak,
        device,
        buffers_created,
    })
}

/// What lives on the device by wgpu's counters, and how many buffers have ever been created by our books.
fn seen(engine: &Engine<Runtime>) -> (DeviceCounters, u64) {
    let device = engine.stepper().device();
    (device.counters(), device.totals().created)
}

fn device(counters: &DeviceCounters, created: u64) -> Value {
    json!({
        "buffers": counters.buffers,
        "buffer_bytes": counters.buffer_memory,
        "memory_allocations": counters.allocations,
        "buffers_created": created,
    })
}

fn document_of(row: &Row) -> Value {
    json!({
        "prompt_tokens": row.prompt,
        "prefill_tokens_per_second": bench::spread(&row.prefill),
        "decode_tokens_per_second": bench::spread(&row.decode),
        "process_peak_bytes": row.peak,
        "device": device(&row.device, row.buffers_created),
    })
}
