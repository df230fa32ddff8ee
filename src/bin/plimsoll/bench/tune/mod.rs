//! `plimsoll bench --tune`: which kernel variants are fastest on this adapter, with the model at hand. One field at a
//! time, its values in turn with what is in force; each is planned first, and what does not fit is never tried. What is
//! found together is measured once more against what was in force at the beginning, and kept only where that shows that it
//! is better: of dozens of candidates some look better by chance.

mod report;
mod trial;

use super::arms::FEWEST;
use super::{Args, tokens};
use crate::failure::Failure;
use crate::{load, output, show};
use indicatif::ProgressBar;
use plimsoll::kernels::Tuned;
use plimsoll::kernels::tuning::Field;
use plimsoll::tuning::{Candidate, Identity, Measured, Planned, Store};
use plimsoll::{Device, Geometry, Opened, Profile};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};
use trial::{Outcome, Trial};

/// Flags of `--tune`.
#[derive(Debug, clap::Args)]
pub struct TuneArgs {
    /// Instead of rates, the fastest kernel variants of this adapter: every legal value of every field in turn with what is
    /// in force, -r rounds of at least 3. What does not fit the budget is skipped by its plan. What is shown to be better
    /// is kept in the cache folder and used from then on; results change by rounding only
    #[arg(long, conflicts_with_all = ["lengths", "requests", "sweep", "profile"])]
    pub tune: bool,
    /// Only plan the candidates of --tune
    #[arg(long, requires = "tune")]
    pub dry_run: bool,
    /// Fields that --tune goes through [default: all]: reduce, mat_vec_rows, ssd, …
    #[arg(long, value_name = "FIELD,…", value_delimiter = ',', value_parser = field, requires = "tune")]
    pub only: Vec<Field>,
}

fn field(text: &str) -> Result<Field, String> {
    let wanted = text.trim().replace('-', "_");
    Field::ALL.into_iter().find(|field| field.name() == wanted).ok_or_else(|| {
        let names = Field::ALL.map(Field::name).join(", ");
        format!("{text:?}: expected one of {names}")
    })
}

/// What stays the same from turn to turn.
pub struct Bench<'a> {
    pub args: &'a Args,
    pub opened: &'a Opened,
    pub geometry: Geometry,
    pub device: Device,
    /// What was resolved of every limit, in a line.
    pub limits: String,
}

/// What came of one field.
pub struct Round {
    pub field: Field,
    /// Its value before.
    pub before: String,
    /// What was in force, and every candidate.
    pub base: Trial,
    pub candidates: Vec<Trial>,
    /// Which of them is in force from here on.
    pub kept: Option<usize>,
}

/// All that was found.
pub struct Found {
    pub identity: Identity,
    /// What was in force at the beginning.
    pub start: Tuned,
    /// Bytes of its plan.
    pub planned: u64,
    /// What is, after all fields.
    pub end: Tuned,
    pub rounds: Vec<Round>,
    /// The end against the start, where they differ and it was measured.
    pub last: Option<[Trial; 2]>,
    /// Where it was kept.
    pub saved: Option<PathBuf>,
}

/// Plans, measures, keeps and reports.
pub fn run(args: &Args) -> Result<(), Failure> {
    if args.repetitions < FEWEST {
        return Err(Failure::usage(format!(
            "--repetitions: --tune compares ranges: expected at least {FEWEST}, got {}",
            args.repetitions
        )));
    }
    let opened = args.model.open()?;
    let tokens = tokens("--prompt-tokens", args.prompt_tokens, args.new_tokens)?;
    let geometry = args.geometry.resolve(&opened.model, Some(tokens));
    load::check_length(&geometry, args.prompt_tokens as usize, tokens - args.prompt_tokens)?;
    let ready = load::admit(&opened, &geometry, &args.machine, &args.output)?;
    let planned = ready.admitted.plan().total();
    let limits =
        show::limits(&ready.admitted.plan().profile.limits, ready.admitted.budget(), &ready.cache_limit);
    let bench = Bench { args, opened: &opened, geometry, device: ready.device, limits };
    let found = all(&bench, planned)?;
    if args.output.json {
        return Ok(output::document(&report::document(&bench, &found)?)?);
    }
    Ok(output::print(format_args!("{}\n", report::text(&bench, &found)))?)
}

fn all(bench: &Bench<'_>, planned: u64) -> Result<Found, Failure> {
    let profile = bench.device.profile().clone();
    let start = Tuned { tuning: profile.tuning.clone(), source: profile.tuned_by.clone() };
    let mut found = Found {
        identity: Identity::of(bench.device.info(), &profile),
        end: start.clone(),
        start,
        planned,
        rounds: Vec::new(),
        last: None,
        saved: None,
    };
    let asked = &bench.args.tune.only;
    let bar = ProgressBar::no_length();
    for field in Field::ALL.into_iter().filter(|field| asked.is_empty() || asked.contains(field)) {
        let now = profile.clone().tuned(&found.end).map_err(plimsoll::runtime::RuntimeError::from)?;
        let round = bench.field(field, &now, &bar)?;
        if let Some(kept) = round.kept.and_then(|at| round.candidates.get(at)) {
            found.end = kept.tuned.clone();
        }
        found.rounds.push(round);
    }
    if found.end.tuning != found.start.tuning {
        found.end.source = "measured in this run".to_owned();
        found.last = Some(bench.last(&found, &bar)?);
        found.saved = keep(bench, &found);
    }
    bar.finish_and_clear();
    Ok(found)
}

impl Bench<'_> {
    /// Plans a field's candidates, and measures those that may be loaded and change anything.
    fn field(&self, field: Field, now: &Profile, bar: &ProgressBar) -> Result<Round, Failure> {
        let policy = self.args.machine.policy()?;
        // Nothing is loaded at this moment: what is free is free for a candidate.
        let budget = policy.budget(plimsoll::reading(&self.device.memory()));
        let planned = self.opened.tuning_candidates(field, &self.geometry, now, budget.as_ref())?;
        let in_force = Tuned { tuning: now.tuning.clone(), source: now.tuned_by.clone() };
        let before = field.value(&now.tuning);
        let mut base = Trial::new(before.clone(), in_force, Outcome::Planned);
        let mut candidates: Vec<Trial> = planned.into_iter().map(|c| trial(c, &now.tuned_by)).collect();
        let mut kept = None;
        if !self.args.tune.dry_run && candidates.iter().any(Trial::runs) {
            bar.set_message(field.name());
            self.turns(&mut base, &mut candidates, bar)?;
            kept = trial::best(&base, &candidates);
        }
        Ok(Round { field, before, base, candidates, kept })
    }

    /// What was found against what was in force at the beginning.
    fn last(&self, found: &Found, bar: &ProgressBar) -> Result<[Trial; 2], Failure> {
        let mut start = Trial::new("before".to_owned(), found.start.clone(), Outcome::Planned);
        let mut end = [Trial::new("found".to_owned(), found.end.clone(), Outcome::Planned)];
        self.turns(&mut start, &mut end, bar)?;
        let [end] = end;
        Ok([start, end])
    }
}

fn trial(candidate: Candidate, base: &str) -> Trial {
    let Candidate { field, value, tuning, planned } = candidate;
    let outcome = match &planned {
        Planned::Admitted(_) => Outcome::Planned,
        Planned::Same(_) => Outcome::Same,
        Planned::Refused(refusal) => Outcome::Skipped {
            need: Some(refusal.need),
            have: Some(refusal.have),
            why: refusal.reason.clone(),
        },
        Planned::Impossible(error) => Outcome::Skipped { need: None, have: None, why: error.to_string() },
    };
    let bytes = match &planned {
        Planned::Admitted(admitted) | Planned::Same(admitted) => Some(admitted.plan().total()),
        Planned::Refused(_) | Planned::Impossible(_) => None,
    };
    let tuned = Tuned { tuning, source: format!("{base}, with {field} {value}") };
    Trial { planned_bytes: bytes, ..Trial::new(value, tuned, outcome) }
}

/// Writes the file, where it is shown that it should be. A folder that cannot be written is said and is no failure: what
/// was measured is in the report.
fn keep(bench: &Bench<'_>, found: &Found) -> Option<PathBuf> {
    let [start, end] = found.last.as_ref()?;
    let compared = end.against(start)?;
    if !trial::better(&compared) {
        return None;
    }
    let Some(store) = Store::from_environment() else {
        output::note(format_args!("plimsoll: PLIMSOLL_CACHE is empty, or there is no home: nothing is kept"));
        return None;
    };
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let measured = Measured {
        model: bench.opened.model.name.clone(),
        prompt_tokens: bench.args.prompt_tokens,
        new_tokens: bench.args.new_tokens,
        rounds: bench.args.repetitions,
        unix_seconds: since.map_or(0, |since| since.as_secs()),
        against: found.start.source.clone(),
        prefill_ratio: compared[0].ratio,
        decode_ratio: compared[1].ratio,
    };
    match store.save(&found.identity, &found.end.tuning, &measured) {
        Ok(path) => Some(path),
        Err(error) => {
            let path = store.path(&found.identity);
            output::note(format_args!("plimsoll: cannot write {}: {error}", path.display()));
            None
        }
    }
}
