//! Kernel variants that were measured on this machine's adapters: files in the cache folder, one an adapter, that
//! `plimsoll bench --tune` writes; and what a candidate costs before anybody tries it.
//!
//! A file is a stranger until it has been checked: it is read up to a bound, must be of this adapter, this driver and
//! this version of the program, and its values must be legal on the adapter as it is opened.

use crate::{Admitted, Budget, Error, Geometry, Opened, Plan, Profile, Refusal};
use plimsoll_kernels::tuning::Field;
use plimsoll_kernels::{Tuned, Tuning, TuningError};
use plimsoll_models::hub::cache_folder;
use plimsoll_runtime::AdapterInfo;
use serde::{Deserialize, Serialize};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Bytes of the longest file; those that are written have some hundred.
const LONGEST: u64 = 64 << 10;
/// Characters of what is said of a malformed file.
const SAID: usize = 200;
/// The version of the files.
const SCHEMA: u32 = 1;
/// The version of the program: kernels change with it, and with them what is fastest.
const PROGRAM: &str = env!("CARGO_PKG_VERSION");

/// On what something was measured. A file is only for the same again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The adapter's name.
    pub adapter: String,
    /// `vulkan`, `metal`, `dx12`.
    pub backend: String,
    /// The driver's name.
    pub driver: String,
    /// The driver's version.
    pub driver_info: String,
    /// Smallest and largest subgroup; `None` without subgroup operations.
    pub subgroup_size: Option<(u32, u32)>,
    /// The version of this program.
    pub program: String,
}

impl Identity {
    /// An adapter as a profile uses it.
    pub fn of(info: &AdapterInfo, profile: &Profile) -> Self {
        Self {
            adapter: info.name.clone(),
            backend: info.backend.clone(),
            driver: info.driver.clone(),
            driver_info: info.driver_info.clone(),
            subgroup_size: profile.facts().subgroup_size,
            program: PROGRAM.to_owned(),
        }
    }

    /// The file's name: of what stays the same when a driver or the program is replaced, so that a file from before is
    /// found and named.
    fn file(&self) -> String {
        let plain = |text: &str| -> String {
            let kept =
                text.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' });
            let kept: String = kept.take(80).collect();
            kept.split('-').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-")
        };
        let lanes = match self.subgroup_size {
            Some((low, high)) => format!("subgroups-{low}-{high}"),
            None => "no-subgroups".to_owned(),
        };
        format!("{}-{}-{lanes}.json", plain(&self.adapter), plain(&self.backend))
    }

    /// The first thing in which they differ: what, here, there.
    fn difference(&self, other: &Self) -> Option<(&'static str, String, String)> {
        let lanes = |identity: &Self| format!("{:?}", identity.subgroup_size);
        [
            ("adapter", self.adapter.clone(), other.adapter.clone()),
            ("backend", self.backend.clone(), other.backend.clone()),
            ("driver", self.driver.clone(), other.driver.clone()),
            ("driver_info", self.driver_info.clone(), other.driver_info.clone()),
            ("subgroup_size", lanes(self), lanes(other)),
            ("program", self.program.clone(), other.program.clone()),
        ]
        .into_iter()
        .find(|(_, here, there)| here != there)
    }
}

/// What was measured: the variants of the file against those that were in force before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// The model's name.
    pub model: String,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens generated after it.
    pub new_tokens: u32,
    /// Rounds in which both took turns.
    pub rounds: u32,
    /// When, in seconds since 1970.
    pub unix_seconds: u64,
    /// What was in force before.
    pub against: String,
    /// Median prefill rate over that of before.
    pub prefill_ratio: f64,
    /// Median decode rate over that of before.
    pub decode_ratio: f64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    schema: u32,
    identity: Identity,
    tuning: Tuning,
    measured: Measured,
}

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
#[error("tuning file {}: {reason}", path.display())]
pub struct FileError {
    /// Which.
    pub path: PathBuf,
    /// Why.
    pub reason: Reason,
}

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
pub enum Reason {
    /// It cannot be read.
    #[error("{0}")]
    Read(#[from] io::Error),
    /// It is no file, or longer than any.
    #[error("expected a file of at most {LONGEST} bytes")]
    Shape,
    /// It is not such a document.
    #[error("malformed: {0}")]
    Malformed(String),
    /// It was measured on something else.
    #[error("{what}: it was measured with {there:?}, and this is {here:?}")]
    Other {
        /// What differs.
        what: &'static str,
        /// What is here.
        here: String,
        /// What the file says.
        there: String,
    },
    /// The adapter cannot have it.
    #[error(transparent)]
    Illegal(#[from] TuningError),
}

/// The folder of such files.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
}

impl Store {
    /// The folder `tuning` in the user's cache folder ([`cache_folder`]); `None` where nothing is kept.
    pub fn from_environment() -> Option<Self> {
        cache_folder().map(|cache| Self::new(&cache))
    }

    /// The folder `tuning` in a cache folder.
    pub fn new(cache: &Path) -> Self {
        Self { folder: cache.join("tuning") }
    }

    /// Where the file of an adapter is, or would be.
    pub fn path(&self, identity: &Identity) -> PathBuf {
        self.folder.join(identity.file())
    }

    /// What was measured on this adapter, if anything was.
    ///
    /// # Errors
    /// A file that is there and not to be used. Whoever gets one goes on without it.
    pub fn load(&self, info: &AdapterInfo, profile: &Profile) -> Result<Option<Tuned>, FileError> {
        let identity = Identity::of(info, profile);
        let path = self.path(&identity);
        match read(&path, &identity, profile) {
            Ok(found) => Ok(found.map(|tuning| Tuned { tuning, source: format!("file {}", path.display()) })),
            Err(reason) => Err(FileError { path, reason }),
        }
    }

    /// Keeps what was measured, whole or not at all, in place of what was there. Answers where.
    ///
    /// # Errors
    /// What the file system says.
    pub fn save(&self, identity: &Identity, tuning: &Tuning, measured: &Measured) -> io::Result<PathBuf> {
        let path = self.path(identity);
        let saved = Saved {
            schema: SCHEMA,
            identity: identity.clone(),
            tuning: tuning.clone(),
            measured: measured.clone(),
        };
        let mut text = serde_json::to_string_pretty(&saved)?;
        text.push('\n');
        std::fs::create_dir_all(&self.folder)?;
        let part = path.with_extension(format!("{}.part", std::process::id()));
        let done = std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, &path));
        if done.is_err() {
            let _ = std::fs::remove_file(&part);
        }
        done.map(|()| path)
    }
}

fn read(path: &Path, identity: &Identity, profile: &Profile) -> Result<Option<Tuning>, Reason> {
    // Nothing else ends by itself.
    match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
        Ok(about) if !about.is_file() || about.len() > LONGEST => return Err(Reason::Shape),
        Ok(_) => {}
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(LONGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST {
        return Err(Reason::Shape);
    }
    let saved: Saved = serde_json::from_slice(&bytes).map_err(|error| {
        // It may quote the file.
        Reason::Malformed(error.to_string().chars().flat_map(char::escape_debug).take(SAID).collect())
    })?;
    if saved.schema != SCHEMA {
        let (here, there) = (SCHEMA.to_string(), saved.schema.to_string());
        return Err(Reason::Other { what: "schema", here, there });
    }
    if let Some((what, here, there)) = identity.difference(&saved.identity) {
        return Err(Reason::Other { what, here, there: there.chars().take(SAID).collect() });
    }
    saved.tuning.checked(&profile.facts())?;
    Ok(Some(saved.tuning))
}

/// One value of one field, and what its plan says.
#[derive(Debug)]
pub struct Candidate {
    /// The field that differs from what is in force.
    pub field: Field,
    /// Its value, in words.
    pub value: String,
    /// All variants.
    pub tuning: Tuning,
    /// Whether it may be tried.
    pub planned: Planned,
}

/// What the plan of a candidate says.
#[derive(Debug)]
pub enum Planned {
    /// It may be loaded.
    Admitted(Box<Admitted>),
    /// It may be loaded, and no kernel of this model differs from what is in force, or from an earlier candidate.
    Same(Box<Admitted>),
    /// It does not fit: it is never tried.
    Refused(Box<Refusal>),
    /// It has no plan: it is never tried.
    Impossible(Box<Error>),
}

impl Opened {
    /// Plans every candidate for a field, with all others as `profile` has them, and holds it against the adapter's limits
    /// and a budget. Nothing is allocated: what does not fit is known before it is tried.
    ///
    /// # Errors
    /// What is wrong with the plan that is in force.
    pub fn tuning_candidates(
        &self,
        field: Field,
        geometry: &Geometry,
        profile: &Profile,
        budget: Option<&Budget>,
    ) -> Result<Vec<Candidate>, Error> {
        // Plans but for their profiles, which differ always.
        let mut seen = vec![Plan::new(&self.model, geometry, profile)?];
        let facts = profile.facts();
        let candidates = field.candidates(&facts, &profile.tuning).into_iter().map(|tuning| {
            let value = field.value(&tuning);
            let tuned = Tuned { tuning: tuning.clone(), source: format!("candidate {field} {value}") };
            let planned = match profile
                .clone()
                .tuned(&tuned)
                .map_err(|error| Error::Runtime(error.into()))
                .and_then(|profile| self.admit(geometry, &profile, budget))
            {
                Ok(admitted) => {
                    let plan = Plan { profile: profile.clone(), ..admitted.plan().clone() };
                    let admitted = Box::new(admitted);
                    if seen.contains(&plan) {
                        Planned::Same(admitted)
                    } else {
                        seen.push(plan);
                        Planned::Admitted(admitted)
                    }
                }
                Err(Error::Refused(refusal)) => Planned::Refused(refusal),
                Err(error) => Planned::Impossible(Box::new(error)),
            };
            Candidate { field, value, tuning, planned }
        });
        Ok(candidates.collect())
    }
}
