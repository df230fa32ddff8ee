//! The verb `estimate`: prices a model, judges the price, looks around it.

use super::args::{GeometryArgs, LimitArgs, Output, build, kv};
use super::beside::{companions, others, shorter};
use super::effect;
use super::modes::Given;
use super::peer_args::{ImageArgs, PeerArgs};
use super::{Failure, bytes, output, show};
use crate::budget::{Budget, Reading};
use crate::chart::chart;
use crate::company::{Company, LoadRoom};
use crate::devices::{DeviceError, DeviceTable};
use crate::error::grouped;
use crate::geometry::{Geometry, Images, KvPair, KvStore, MAX_DRAFT_DEPTH, Priced};
use crate::html;
use crate::images;
use crate::others::Others;
use crate::peers;
use crate::policy::{CACHE_VARIABLE, CacheLimit, MemoryPolicy};
use crate::pricer::Pricer;
use crate::report::{Question, RefusalPart, Report};
use crate::roofline::ceilings;
use crate::snapshot_bytes;
use crate::verdict::{Broke, Lasts, Overhead};
use crate::weights::{self, WeightsError};
use plimsoll_kernels::Profile;
use plimsoll_models::{Checkpoint, Model, ModelError};
use serde::Serialize;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Flags.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Context, slots, chunk, KV.
    #[command(flatten)]
    pub geometry: GeometryArgs,
    /// How keys are stored, where values are stored otherwise
    #[arg(long, value_name = "FORMAT", value_parser = kv)]
    pub kv_k: Option<KvStore>,
    /// How values are stored, where keys are stored otherwise
    #[arg(long, value_name = "FORMAT", value_parser = kv)]
    pub kv_v: Option<KvStore>,
    /// Weights in another format than the checkpoint's: bf16, q4_k_m, q8_0, mlx-4bit-g64, nvfp4, mxfp4 and others; a wrong
    /// name lists them all
    #[arg(long, value_name = "FORMAT")]
    pub weights: Option<String>,
    /// Tokens drafted ahead: every recurrent state is kept N + 1 times, so that a rejected draft can be taken back
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = bytes::at_most::<MAX_DRAFT_DEPTH>, allow_negative_numbers = true)]
    pub draft_depth: u32,
    /// A model that drafts tokens for this one, beside it on the device: with --draft-depth, and with the same context and
    /// slots, but no longer context than it was made for. Layers of this one that draft are not loaded then
    #[arg(long, value_name = "MODEL")]
    pub draft: Option<PathBuf>,
    /// Another model on the same device, with the same context and slots, but no longer context than it was made for; may be
    /// given several times
    #[arg(long = "with", value_name = "MODEL")]
    pub beside: Vec<PathBuf>,
    /// A model that leaves the device before this one comes, or the bytes that become free with it: told, and added to what
    /// an adapter says is free. A model is priced by itself, at its own default geometry: where it was started with another,
    /// give the bytes. What a device of the table has and a --memory are for everything together: to those nothing is added
    #[arg(long, value_name = "MODEL|BYTES", allow_negative_numbers = true)]
    pub replaces: Vec<String>,
    /// Images.
    #[command(flatten)]
    pub images: ImageArgs,
    /// Another engine's rules.
    #[command(flatten)]
    pub peer: PeerArgs,
    /// A device of the table to hold the model against: its memory, its limits, its rates (see --list-devices)
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Prices every model of a TOML file on every device at every geometry of it, instead of MODEL: what fits where. The exit
    /// code is 0 whatever the cells say, refusals among them; what is wrong with the file itself is 2 or 5
    #[arg(long, value_name = "FILE")]
    pub fleet: Option<PathBuf>,
    /// Lists the table of devices
    #[arg(long)]
    pub list_devices: bool,
    /// Writes the estimate as one page of HTML, with pictures
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Draws the estimate in characters, too
    #[arg(long)]
    pub chart: bool,
    /// Ceilings.
    #[command(flatten)]
    pub limits: LimitArgs,
    /// What is printed.
    #[command(flatten)]
    pub output: Output,
}

impl Args {
    /// Whether every flag that was written changes anything beside the others.
    ///
    /// # Errors
    /// As [`Given::check`].
    pub fn check(&self, given: &Given) -> Result<(), Failure> {
        self.peer.check()?;
        given.check(self.peer.engine(), !self.peer.no_flash_attention)
    }

    /// Whether there is a memory that flags about memory can speak of.
    fn check_memory(&self, policy: &MemoryPolicy, read: bool, known: bool) -> Result<(), Failure> {
        let reserved = self.limits.reserve.is_some_and(|bytes| bytes > 0);
        if reserved && !read && policy.memory().is_none() {
            let why = "it is left of the memory that a device has (--device, or an adapter that tells), and none is known";
            return Err(Failure::Usage(format!("--reserve changes nothing without --device: {why}")));
        }
        if let (Some(reserve), false, Some(memory)) = (policy.reserve(), read, policy.memory())
            && reserve.bytes > 0
        {
            let [reserve, memory] = [reserve, memory].map(|s| s.name.trim_start_matches("flag "));
            output::note(format_args!(
                "plimsoll: {reserve} is left of what a device has, and none is named: {memory} stays whole"
            ));
        }
        if self.peer.gpu_memory_utilization.is_some() && !known {
            let why = "no memory is known of which it is a share";
            let flags = "--gpu-memory-utilization changes nothing without --device or --memory";
            return Err(Failure::Usage(format!("{flags}: {why}")));
        }
        Ok(())
    }

    /// The geometry for a model.
    pub fn geometry(&self, model: &Model) -> Geometry {
        let asked = self.geometry.resolve(model, None);
        let pair = asked.kv_pair();
        let pair = KvPair { k: self.kv_k.unwrap_or(pair.k), v: self.kv_v.unwrap_or(pair.v) };
        let images = self.images.images();
        let priced = Priced { images, ..asked.priced.clone() };
        let asked = Geometry { draft_depth: self.draft_depth, priced, ..asked }.with_kv(pair);
        self.peer.geometry(asked, self.geometry.chunk)
    }
}

/// A live adapter that a model is held against.
pub struct Machine {
    /// What it is, with all that it allows.
    pub profile: Profile,
    /// What memory it has.
    pub reading: Option<Reading>,
}

/// A scheme that is none is a mistake of the usage; one that has no plan cannot be priced.
fn weights_error(scheme: &str, error: WeightsError) -> Failure {
    match error {
        WeightsError::Unknown { .. } => Failure::Usage(format!("--weights: {error}")),
        _ => Failure::Model(ModelError::Unsupported {
            what: format!("--weights {scheme}"),
            detail: error.to_string(),
        }),
    }
}

/// The model in the weights that were asked for.
fn recast(args: &Args, model: Model, checkpoint: &Checkpoint) -> Result<Model, Failure> {
    let Some(scheme) = &args.weights else { return Ok(model) };
    let recast = weights::recast(&model, scheme, checkpoint).map_err(|error| weights_error(scheme, error))?;
    for note in &recast.notes {
        output::note(format_args!("plimsoll: {note}"));
    }
    Ok(recast.model)
}

fn table_error(error: DeviceError) -> Failure {
    Failure::Usage(format!("--device: {error}"))
}

/// Shows the table of devices.
///
/// # Errors
/// As [`output::print`].
pub fn list_devices(json: bool) -> Result<(), Failure> {
    let table = DeviceTable::standard().map_err(table_error)?;
    if json {
        return output::document(&table);
    }
    output::print(format_args!("{}\n", show::devices(&table)))
}

/// A document with what was warned of.
#[derive(Debug, Serialize)]
pub struct Warned<'w, D> {
    /// The document.
    #[serde(flatten)]
    pub document: &'w D,
    /// The warnings.
    pub warnings: &'w [String],
    /// The limit of what is retained.
    pub cache_limit: CacheLimit,
}

/// What is allowed, and may not be meant: more context than the model was made for works, and what it says may not.
/// `snapshot` are the bytes of one of the model's prefix snapshots; 0 where it needs none.
pub fn warnings(context_max: u32, snapshot: u64, geometry: &Geometry) -> Vec<String> {
    let (asked, snapshots) = (geometry.context, geometry.priced.snapshots);
    let beyond = (context_max > 0 && asked > context_max)
        .then(|| format!("context {asked} is beyond the {context_max} this model was made for"));
    let idle = (snapshots > 0 && snapshot == 0).then(|| {
        format!("--snapshots {snapshots} changes nothing: pages hold all that this model keeps of a prompt")
    });
    beyond.into_iter().chain(idle).collect()
}

/// What is said of images that the model does not read as they are.
fn image_warning(model: &Model, geometry: &Geometry) -> Option<String> {
    let Images { width, height, .. } = geometry.priced.images;
    let tower = model.extras.vision.as_ref().filter(|tower| images::is_beyond(tower, width, height))?;
    let cap = images::cap(tower);
    Some(format!(
        "--image-size {width}x{height} is beyond the cap of {}x{} pixels: such an image is scaled down to as many, and that is \
         what is priced",
        cap.width, cap.height
    ))
}

/// Says them.
pub fn note_warnings(model: &Model, geometry: &Geometry) -> Vec<String> {
    let warnings = warnings(model.context_max, snapshot_bytes(model, geometry), geometry);
    for warning in &warnings {
        output::note(format_args!("plimsoll: {warning}"));
    }
    warnings
}

/// Prices a checkpoint (that was named by `path`) and judges the price.
///
/// # Errors
/// [`Failure`]: the refusal among them, after its report has been shown.
pub fn run(
    args: &Args,
    checkpoint: &Checkpoint,
    path: Option<&Path>,
    machine: Option<Machine>,
) -> Result<(), Failure> {
    let begun = Instant::now();
    let policy = args.limits.policy()?;
    args.peer.check()?;
    if let (Some(both), Some(k), Some(v)) = (args.geometry.kv, args.kv_k, args.kv_v)
        && (k, v) != (both, both)
    {
        return Err(Failure::Usage("--kv: --kv-k and --kv-v say otherwise of both".into()));
    }
    // What is read, so that nothing is written over it.
    let mut inputs = checkpoint.files();
    // The process ends with this: to free what thousands of layers took piece by piece would be a fifth of its time.
    let mut model = ManuallyDrop::new(recast(args, build(checkpoint, path)?, checkpoint)?);
    if args.draft.is_some() {
        // One drafts: the model that was named, and not layers of this one, which are not loaded then.
        model.extras.draft.clear();
    }
    let model = model;
    let table = args.device.as_deref().map(DeviceTable::standard_for).transpose().map_err(table_error)?;
    let device = match (&args.device, &table) {
        (Some(_), _) if machine.is_some() => {
            return Err(Failure::Usage("--device and --adapter name two devices: give one".into()));
        }
        (Some(name), Some(table)) => Some((table.find(name).map_err(table_error)?, table.date.as_str())),
        _ => None,
    };
    let on_adapter = machine.is_some() || device.is_some();
    let (mut profile, derived) = match (machine, device) {
        (Some(machine), _) => (machine.profile, machine.reading),
        (None, Some((device, date))) => (device.profile(), device.reading(date)),
        (None, None) => (Profile::webgpu_default(), None),
    };
    // Another engine's rules ask for an allocation of its own, and for no limit of a device.
    let limits = match args.peer.engine() {
        None => {
            let whole = profile.limits.clone();
            let mut limits = args.limits.cap(&mut profile);
            // A row of the table may not say them.
            if let Some((device, _)) = device {
                for limit in &mut limits {
                    let known = if limit.what == "binding" { device.max_binding } else { device.max_buffer };
                    limit.assumed = known.is_none();
                }
            }
            args.limits.note(&whole, &profile.name);
            limits
        }
        Some(_) => Vec::new(),
    };
    let geometry = args.geometry(&model);
    // The flag is refused beside another engine; a variable may stand there for other work.
    let (cache_limit, idle) = match (args.peer.engine(), policy.cache_limit()) {
        (Some(engine), CacheLimit { bytes: Some(_), .. }) => {
            let said = format!("{CACHE_VARIABLE} changes nothing with --runtime {}", engine.name());
            (CacheLimit::default(), Some(said))
        }
        (_, limit) => (limit, None),
    };
    let each = snapshot_bytes(&model, &geometry);
    cache_limit.keeps(geometry.priced.snapshots, each).map_err(Failure::Usage)?;
    let mut warnings = note_warnings(&model, &geometry);
    warnings.extend(idle.into_iter().inspect(|said| output::note(format_args!("plimsoll: {said}"))));
    warnings.extend(image_warning(&model, &geometry).into_iter().inspect(|said| {
        output::note(format_args!("plimsoll: {said}"));
    }));
    let companions = companions(args, &mut inputs)?;
    // The other engines' prices hold the layers that draft.
    let drafts = args.peer.engine().is_none().then_some(&*model);
    let options = args.peer.options(args.limits.max_allocation);
    let mut company = Company::new(&companions, drafts, &profile).held_by(args.peer.engine(), options);
    // The table says what a device has in all, an adapter what is free of it.
    let read = derived.is_some();
    let live = read && device.is_none();
    let (others, unknown) = others(args, &company, &geometry, &profile, live, &mut inputs)?;
    let idle = effect::without(args, &model, &geometry, &profile, &companions);
    let short = others.here.iter().filter_map(|other| shorter(other, &geometry));
    warnings.extend(idle.into_iter().chain(unknown).chain(short).inspect(|said| {
        output::note(format_args!("plimsoll: {said}"));
    }));
    if let Some(page) = &args.html {
        output::spares("--html", page, &inputs)?;
    }
    let counted = if device.is_some() { others.staying() } else { others.clone() };
    let alone = Others { here: Vec::new(), ..counted.clone() };
    let whole = policy.budget_beside(derived.clone(), &alone);
    let reserve = policy.reserve().map_or(0, |reserve| reserve.bytes);
    company.ceiling = whole.as_ref().map(|budget| budget.bytes);
    company.load = LoadRoom {
        device: whole.as_ref().and_then(Budget::load_room),
        unified: device.and_then(|(device, _)| device.pool()).map(|pool| pool.saturating_sub(reserve)),
    };
    let budget = policy.budget_beside(derived, &counted);
    args.check_memory(&policy, read, budget.is_some())?;
    let question = Question {
        checkpoint,
        model: &model,
        geometry: &geometry,
        profile: &profile,
        budget: budget.as_ref(),
        overhead: Overhead::default(),
        company: Some(&company),
    };
    let pricer = ManuallyDrop::new(Pricer::new(&model, &profile));
    let mut report = match args.peer.engine() {
        Some(engine) => peers::report(&question, engine, &options),
        None => Report::priced(&pricer, &question)?,
    };
    // A load that does not fit has a plan that does.
    let planned = report.refusal.as_ref().is_none_or(|refusal| refusal.broke == Broke::LoadPeak.name());
    if let (Some((device, _)), None, true) = (device, args.peer.engine(), planned) {
        let price = pricer.price(&geometry)?;
        report.ceilings = Some(ceilings(&pricer, &geometry, device)?);
        report.checks = device.checks(&price, others.taken(), reserve);
        // What fits once it is there must also fit while it comes.
        if let Some(broken) = report.checks.iter().find(|c| !c.ok).filter(|_| report.refusal.is_none()) {
            let (name, need, have) = (broken.what.clone(), broken.need, broken.have);
            let reason = format!("{name}: {} bytes of {}", grouped(need), grouped(have));
            report.verdict = "refused".into();
            report.refusal = Some(RefusalPart {
                broke: Broke::LoadPeak.name().into(),
                name,
                need: Some(need),
                have: Some(have),
                term: None,
                lasts: Lasts::Forever,
                reason,
                nearest: question.nearest(),
            });
        }
    }
    report.limits = limits;
    let credited = if live { others.freed() } else { 0 };
    report.others = (!others.is_empty()).then_some(Others { credited, ..others });
    if args.output.verbose > 0 {
        let took = begun.elapsed().as_secs_f64() * 1e3;
        output::note(format_args!("plimsoll: priced in {took:.2} ms"));
    }
    if let Some(path) = &args.html {
        output::file(path, html::page(&report).as_bytes())?;
    }
    if args.output.json {
        // Text says so under the verdict.
        warnings.extend(report.least_limits().into_iter().inspect(|said| {
            output::note(format_args!("plimsoll: {said}"));
        }));
        output::document(&Warned { document: &report, warnings: &warnings, cache_limit })?;
    } else {
        output::print(format_args!("{}\n", show::report(&report, on_adapter)))?;
        if let Some(most) = cache_limit.bytes {
            let (most, source) = (bytes::human(most), cache_limit.source);
            output::print(format_args!("kept without being live: at most {most} ({source})\n"))?;
        }
        if args.chart {
            output::print(format_args!("\n{}", chart(&report, 80)))?;
        }
    }
    match &report.refusal {
        Some(refusal) => Err(Failure::Refused { reason: refusal.reason.clone(), details: String::new() }),
        None => Ok(()),
    }
}
