//! Many devices, many models, many geometries: what fits where. `estimate --fleet FILE.toml`.
//!
//! ```toml
//! [[device]]
//! name = "nvidia-rtx-4090-24"        # of the table, or with numbers of its own:
//! [[device]]
//! name = "my box"
//! memory = "96GiB"                   # also max_buffer, max_binding
//! [[model]]
//! path = "models/config.json"        # from the file's own folder on
//! weights = "q4_k_m"                 # as stored where it says nothing
//! [[geometry]]
//! context = 32768                    # also slots, chunk, kv
//! ```
//!
//! A model that cannot be read or a device that is not known does not stop the others: their cells say why they cannot be
//! priced. The exit code is 0 whatever the cells say, refusals among them: 2 and 5 are of the file itself, sizes that are
//! none among what is wrong with it.

mod file;

use super::args::{Output, build, on_hub, open};
use super::{Failure, bytes, output, show};
use crate::budget::{Budget, Reading};
use crate::company::{Company, LoadRoom};
use crate::devices::DeviceTable;
use crate::error::PlanError;
use crate::geometry::{Geometry, KvPair};
use crate::policy::{CACHE_VARIABLE, MEMORY_VARIABLE, MemoryPolicy, RESERVE_VARIABLE};
use crate::pricer::Pricer;
use crate::solve::{End, Solver};
use crate::verdict::Overhead;
use crate::weights;
use file::{Amount, DeviceRow, File, GeometryRow, ModelRow, Name};
use indicatif::{ProgressBar, ProgressStyle};
use plimsoll_kernels::{Limits, Profile};
use plimsoll_models::Model;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Instant;

/// More cells than this are a mistake of the file.
const MAX_CELLS: usize = 100_000;

/// One device, one model, one geometry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the fields are the document's
pub struct Cell {
    pub device: String,
    pub model: String,
    pub weights: String,
    pub context: Option<u32>,
    pub slots: Option<u32>,
    pub prefill_chunk: Option<u32>,
    pub kv: String,
    /// `fits`, `refused`, `cannot_price`, or `no_budget` where nothing is known to hold it against.
    pub verdict: String,
    pub total: Option<u64>,
    pub budget: Option<u64>,
    /// The longest context that fits, its load too, with the rest as asked.
    pub largest_context: Option<u32>,
    /// What ended the search for it, where that was not one that does not fit.
    #[serde(default)]
    pub bounded_by: Option<End>,
    /// Why it does not fit, or has no price.
    pub reason: Option<String>,
}

/// All cells, devices outermost, geometries innermost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct FleetReport {
    pub schema: u32,
    pub fits: usize,
    pub refused: usize,
    #[serde(default)]
    pub no_budget: usize,
    pub cannot_price: usize,
    pub cells: Vec<Cell>,
    /// Settings of the shell that change nothing here.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// A device as it is priced.
struct Machine {
    profile: Profile,
    /// What memory it has. None of its own that is known is no budget, as of a single estimate.
    budget: Option<Budget>,
    /// The memory that the host's share of a load must have room in, too.
    unified: Option<u64>,
}

fn machine(row: &DeviceRow, table: &DeviceTable) -> Result<Machine, String> {
    let [memory, buffer, binding] =
        [row.memory, row.max_buffer, row.max_binding].map(|size| size.map(|Amount(bytes)| bytes));
    let Name(name) = &row.name;
    let known = table.find(name);
    let (mut profile, reading, unified) = match (&known, memory) {
        (Ok(device), None) => (device.profile(), device.reading(&table.date), device.pool()),
        (Ok(device), Some(_)) => (device.profile(), None, None),
        (Err(_), Some(_)) => (Profile::new(name, Limits::webgpu_default(), None, false), None, None),
        (Err(error), None) => return Err(error.to_string()),
    };
    let limits = &mut profile.limits;
    limits.max_buffer_size = buffer.unwrap_or(limits.max_buffer_size);
    let binding = binding.unwrap_or(limits.max_storage_buffer_binding_size);
    limits.max_storage_buffer_binding_size = binding.min(limits.max_buffer_size);
    let own = memory.map(|bytes| Reading {
        bytes,
        total: Some(bytes),
        beside: 0,
        source: "the fleet's file".into(),
        taken: 0,
        excluded: Vec::new(),
    });
    Ok(Machine { profile, budget: Budget::resolve(None, own.or(reading)), unified })
}

fn model(row: &ModelRow, folder: &Path) -> Result<Model, String> {
    let path = if on_hub(&row.path).is_some() { row.path.clone() } else { folder.join(&row.path) };
    let checkpoint = open(&path).map_err(|e| e.to_string())?;
    let model = build(&checkpoint, Some(&path)).map_err(|e| e.to_string())?;
    match &row.weights {
        None => Ok(model),
        Some(scheme) => Ok(weights::recast(&model, scheme, &checkpoint).map_err(|e| e.to_string())?.model),
    }
}

fn geometry(row: &GeometryRow, model: &Model) -> Result<Geometry, String> {
    let default = Geometry::default_for(model.context_max);
    let [context, slots, chunk] = row.numbers();
    let slots = slots.unwrap_or(default.slots);
    let geometry = Geometry {
        context: context.unwrap_or(default.context),
        slots,
        prefill_chunk: chunk.unwrap_or(default.prefill_chunk),
        logit_rows: slots.max(1),
        ..default
    };
    match &row.kv {
        None => Ok(geometry),
        Some(kv) => {
            let kv = super::args::kv(kv).map_err(|why| format!("kv {kv:?}: {why}"))?;
            Ok(geometry.with_kv(KvPair { k: kv, v: kv }))
        }
    }
}

/// The cells of one model on one device.
fn cells(
    file: &File,
    device: usize,
    of: usize,
    machine: &Result<Machine, String>,
    model: &Result<Model, String>,
) -> Vec<Cell> {
    let (row, asked) = (&file.device[device], &file.model[of]);
    // Of what a row leaves open only the context is the model's to say.
    let default = Geometry::default_for(0);
    let blank = |g: &GeometryRow| Cell {
        device: row.name.0.clone(),
        model: asked.path.display().to_string(),
        weights: asked.weights.clone().unwrap_or_else(|| "as-stored".into()),
        context: g.numbers()[0],
        slots: g.numbers()[1].or(Some(default.slots)),
        prefill_chunk: g.numbers()[2].or(Some(default.prefill_chunk)),
        kv: g.kv.clone().unwrap_or_else(|| "f16".into()),
        verdict: "cannot_price".into(),
        total: None,
        budget: None,
        largest_context: None,
        bounded_by: None,
        reason: None,
    };
    let (machine, model) = match (machine, model) {
        (Ok(machine), Ok(model)) => (machine, model),
        (Err(why), _) | (_, Err(why)) => {
            let cell = |g| Cell { reason: Some(why.clone()), ..blank(g) };
            return file.geometry.iter().map(cell).collect();
        }
    };
    let Machine { profile, budget, unified } = machine;
    let pricer = Pricer::new(model, profile);
    // What fits once it is there must also fit while it comes.
    let load = LoadRoom { device: budget.as_ref().map(|budget| budget.bytes), unified: *unified };
    let company = Company::new(&[], None, profile).loading(load);
    let solver = Solver {
        pricer: &pricer,
        budget: budget.as_ref(),
        overhead: Overhead::default(),
        company: Some(&company),
    };
    let price = |g: &GeometryRow| {
        let geometry = match geometry(g, model) {
            Ok(geometry) => geometry,
            Err(why) => return Cell { reason: Some(why), ..blank(g) },
        };
        let over = |what: &str, need: u64, have: Option<u64>| {
            let have = have.filter(|have| need > *have)?;
            Some(format!("{what}: {} of {}", bytes::human(need), bytes::human(have)))
        };
        let (verdict, total, reason) = match pricer.price(&geometry) {
            Err(error @ PlanError::Graph { .. }) => ("cannot_price", None, Some(error.to_string())),
            Err(error) => ("refused", None, Some(error.to_string())),
            Ok(price) => {
                let peak = price.total().saturating_add(price.staging);
                let all = peak.saturating_add(price.bytes.load_host);
                let have = budget.as_ref().map(|budget| budget.bytes);
                let steady = over("total", price.total(), have).or_else(|| over("load peak", peak, have));
                match steady.or_else(|| over("load peak with the host's share", all, *unified)) {
                    None if budget.is_none() => {
                        let why = "no memory of its own is known: give it one (memory = \"8GiB\")";
                        ("no_budget", Some(price.total()), Some(why.to_owned()))
                    }
                    None => ("fits", Some(price.total()), None),
                    reason => ("refused", Some(price.total()), reason),
                }
            }
        };
        let largest_context = solver.largest_context(&geometry).map(|g| g.context);
        Cell {
            context: Some(geometry.context),
            slots: Some(geometry.slots),
            prefill_chunk: Some(geometry.prefill_chunk),
            kv: geometry.kv_pair().to_string(),
            verdict: verdict.into(),
            total,
            budget: budget.as_ref().map(|budget| budget.bytes),
            largest_context,
            bounded_by: largest_context.and_then(|context| solver.context_end(&geometry, context)),
            reason,
            ..blank(g)
        }
    };
    file.geometry.iter().map(price).collect()
}

/// Prices every cell of a fleet's file, in parallel; `step` is called once for each model on each device.
///
/// # Errors
/// [`Failure::File`] when the file cannot be read; [`Failure::Usage`] when it is no such file, names nothing, or makes more
/// than 100,000 cells. What is wrong with one row is in its cells.
pub fn run(path: &Path, step: &(dyn Fn(usize) + Sync)) -> Result<FleetReport, Failure> {
    let wrong = |why: String| Failure::Usage(format!("--fleet {}: {why}", path.display()));
    let mut file = File::read(path)?;
    if file.geometry.is_empty() {
        file.geometry.push(GeometryRow::default());
    }
    let pairs = file.device.len().saturating_mul(file.model.len());
    let count = pairs.saturating_mul(file.geometry.len());
    if count == 0 || count > MAX_CELLS {
        return Err(wrong(format!("{count} cells: expected 1 to {MAX_CELLS}")));
    }
    let table = DeviceTable::standard().map_err(|e| wrong(e.to_string()))?;
    let machines: Vec<_> = file.device.iter().map(|row| machine(row, &table)).collect();
    let folder = path.parent().unwrap_or(Path::new(""));
    let threads = threads()?;
    let models: Vec<_> = threads.install(|| file.model.par_iter().map(|row| model(row, folder)).collect());
    let priced: Vec<Vec<Cell>> = threads.install(|| {
        let priced = (0..pairs).into_par_iter().map(|pair| {
            let (device, of) = (pair / file.model.len(), pair % file.model.len());
            let cells = cells(&file, device, of, &machines[device], &models[of]);
            step(pairs);
            cells
        });
        priced.collect()
    });
    let cells: Vec<Cell> = priced.into_iter().flatten().collect();
    let counted = |word: &str| cells.iter().filter(|c| c.verdict == word).count();
    let [fits, refused, no_budget, cannot_price] =
        ["fits", "refused", "no_budget", "cannot_price"].map(counted);
    Ok(FleetReport {
        schema: crate::report::SCHEMA,
        fits,
        refused,
        no_budget,
        cannot_price,
        cells,
        warnings: Vec::new(),
    })
}

/// What of the shell's settings says nothing of devices that a file names.
fn without_effect(policy: &MemoryPolicy) -> Vec<String> {
    let set = [
        policy.memory().is_some().then_some(MEMORY_VARIABLE),
        policy.reserve().is_some().then_some(RESERVE_VARIABLE),
        policy.cache_limit().bytes.is_some().then_some(CACHE_VARIABLE),
    ];
    let said = |name| format!("{name} changes nothing with --fleet: its file says what each device has");
    set.into_iter().flatten().map(said).collect()
}

/// Prices a fleet and shows what fits where.
///
/// # Errors
/// As [`run`] and [`output::print`].
pub fn show(path: &Path, asked: &Output) -> Result<(), Failure> {
    let (begun, json) = (Instant::now(), asked.json);
    let bar = if json { ProgressBar::hidden() } else { ProgressBar::no_length() };
    if let Ok(style) = ProgressStyle::with_template("models on devices {wide_bar} {pos}/{len}") {
        bar.set_style(style);
    }
    let step = |all: usize| {
        bar.set_length(all as u64);
        bar.inc(1);
    };
    // Those of the shell are not refused as the flags are: they may stand there for other work.
    let policy = MemoryPolicy::from_environment().map_err(|error| Failure::Usage(error.to_string()))?;
    let mut report = run(path, &step)?;
    report.warnings = without_effect(&policy);
    for warning in &report.warnings {
        output::note(format_args!("plimsoll: {warning}"));
    }
    bar.finish_and_clear();
    if asked.verbose > 0 {
        let took = begun.elapsed().as_secs_f64() * 1e3;
        output::note(format_args!("plimsoll: {} cells priced in {took:.2} ms", report.cells.len()));
    }
    if json {
        return output::document(&report);
    }
    let number = |n: Option<u32>, absent: &str| n.map_or(absent.to_owned(), |n| bytes::grouped(n.into()));
    let header =
        ["device", "model", "weights", "context", "slots", "KV", "verdict", "total", "largest context", ""];
    let mut table = show::table(&header, &[3, 4, 7, 8]);
    for c in &report.cells {
        // Where nothing was priced nobody looked for one.
        let none = if c.verdict == "cannot_price" { "-" } else { "none" };
        let largest = number(c.largest_context, none);
        table.add_row([
            c.device.clone(),
            c.model.clone(),
            c.weights.clone(),
            number(c.context, "-"),
            number(c.slots, "-"),
            c.kv.clone(),
            c.verdict.replace('_', " "),
            c.total.map_or(String::new(), bytes::human),
            match c.bounded_by {
                Some(End::Search) => format!("at least {largest}"),
                _ => largest,
            },
            c.reason.as_deref().unwrap_or_default().chars().take(120).collect(),
        ]);
    }
    let FleetReport { fits, refused, no_budget, cannot_price, .. } = report;
    let open = if no_budget > 0 { format!(" {no_budget} have no budget,") } else { String::new() };
    output::print(format_args!(
        "{table}\n{fits} fit, {refused} are refused,{open} {cannot_price} cannot be priced\n"
    ))
}

/// Threads of this call's own, or this thread alone where the system gives no others: the pool that all share panics then.
fn threads() -> Result<rayon::ThreadPool, Failure> {
    let some = rayon::ThreadPoolBuilder::new().build();
    let pool = some.or_else(|_| rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build());
    pool.map_err(|error| Failure::Standard(std::io::Error::new(std::io::ErrorKind::OutOfMemory, error)))
}
