//! From a path to a session, one step at a time.

use crate::{Error, Session};
use plimsoll_estimator::report::{Question, Report};
use plimsoll_estimator::verdict::{Overhead, Verdict, admit};
use plimsoll_estimator::{Admitted, Budget, Geometry, Reading};
use plimsoll_kernels::Profile;
use plimsoll_models::chat::ChatTemplate;
use plimsoll_models::{Checkpoint, Model, ModelError, Registry, Tokenizer};
use plimsoll_runtime::{Device, Engine, LoadProgress, MemoryReading, Runtime};
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// An opened checkpoint: what it is, and all that is needed to price and to load it.
#[derive(Debug)]
pub struct Opened {
    /// Its files.
    pub checkpoint: Checkpoint,
    /// What the zoo made of it.
    pub model: Model,
    /// Built when it is first asked for: an estimate needs none.
    tokenizer: OnceLock<Arc<Tokenizer>>,
}

/// Opens a `.gguf` file, a `.safetensors` file, a `config.json`, or a directory with them.
///
/// ```
/// let opened = plimsoll::open("tests/data/configs/smollm2-135m.json")?;
/// assert_eq!(opened.model.architecture, "llama");
/// assert_eq!(opened.model.parameters(), 134_515_008);
/// # Ok::<(), plimsoll::Error>(())
/// ```
///
/// # Errors
/// [`Error::Model`]: a file that contradicts itself, an architecture that is not in the zoo, a missing tensor, a
/// wrong shape. Tokenizer and template are read when they are asked for.
pub fn open(path: impl AsRef<Path>) -> Result<Opened, Error> {
    open_with(path, &Registry::standard())
}

/// Opens a checkpoint with architectures of your own.
///
/// # Errors
/// As [`open`].
pub fn open_with(path: impl AsRef<Path>, registry: &Registry) -> Result<Opened, Error> {
    Opened::new(Checkpoint::open(path.as_ref())?, registry)
}

/// What a plan is held against: the machine's reading under the operator's ceiling, given with the name of its
/// setting. `None` when nothing is known.
pub fn budget(requested: Option<(u64, &str)>, memory: &MemoryReading) -> Option<Budget> {
    Budget::resolve(requested, reading(memory))
}

/// What a device says of its free memory, as a reading to hold plans against. `None` when it says nothing.
pub fn reading(memory: &MemoryReading) -> Option<Reading> {
    memory.reading()
}

impl Opened {
    /// A checkpoint that has been read by other ways than a path.
    ///
    /// # Errors
    /// As [`open`].
    pub fn new(checkpoint: Checkpoint, registry: &Registry) -> Result<Self, Error> {
        let model = registry.build(&checkpoint)?;
        Ok(Self::of(checkpoint, model))
    }

    /// A checkpoint and the model that was built of it.
    pub fn of(checkpoint: Checkpoint, model: Model) -> Self {
        Self { checkpoint, model, tokenizer: OnceLock::new() }
    }

    /// The default geometry: context 8,192 or the model's maximum, one slot, chunks of 512, f16 KV.
    pub fn geometry(&self) -> Geometry {
        Geometry::default_for(self.model.context_max)
    }

    /// What a geometry costs on a profile, against a budget: the document of `plimsoll estimate --json`, and the
    /// verdict.
    ///
    /// ```
    /// let opened = plimsoll::open("tests/data/configs/smollm2-135m.json")?;
    /// let profile = plimsoll::Profile::webgpu_default();
    /// let budget = plimsoll::Budget::flag(8 << 30, "my own");
    /// let (report, _) = opened.estimate(&opened.geometry(), &profile, Some(&budget))?;
    /// assert_eq!(report.verdict, "fits");
    /// // 30 layers with 3 heads of 64, keys and values, 2 bytes each.
    /// assert_eq!(report.kv_bytes_per_token, Some(30 * 3 * 64 * 2 * 2));
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Plan`] for a fault of the architecture; a refusal is not an error here.
    pub fn estimate(
        &self,
        geometry: &Geometry,
        profile: &Profile,
        budget: Option<&Budget>,
    ) -> Result<(Report, Verdict), Error> {
        Ok(Report::new(&Question {
            checkpoint: &self.checkpoint,
            model: &self.model,
            geometry,
            profile,
            budget,
            overhead: Overhead::default(),
            company: None,
        })?)
    }

    /// Admits a geometry against a budget, or says why not. Nothing is allocated either way.
    ///
    /// ```
    /// use plimsoll::{Budget, Error, Profile};
    /// let opened = plimsoll::open("tests/data/configs/smollm2-135m.json")?;
    /// let (profile, budget) = (Profile::webgpu_default(), Budget::flag(400 << 20, "my own"));
    /// let Err(Error::Refused(refusal)) = opened.admit(&opened.geometry(), &profile, Some(&budget)) else {
    ///     panic!("that context fits nowhere near")
    /// };
    /// // Every suggestion fits when it is tried.
    /// let nearest = refusal.nearest[0].geometry();
    /// assert!(opened.admit(&nearest, &profile, Some(&budget))?.plan().total() <= 400 << 20);
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Refused`], with the terms and the nearest geometries that fit.
    pub fn admit(
        &self,
        geometry: &Geometry,
        profile: &Profile,
        budget: Option<&Budget>,
    ) -> Result<Admitted, Error> {
        Ok(admit(&self.model, geometry, profile, budget, Overhead::default())?.admitted()?)
    }

    /// Loads an admitted plan: the only place where device memory is allocated.
    ///
    /// # Errors
    /// [`Error::Missing`] without a tokenizer; [`Error::Runtime`] when the device cannot do it: everything is freed
    /// then.
    pub fn load(
        &self,
        device: Device,
        admitted: Admitted,
        progress: &mut (dyn FnMut(LoadProgress<'_>) + Send),
    ) -> Result<Session, Error> {
        let tokenizer = self.tokenizer()?;
        Ok(Session::new(self.load_engine(device, admitted, progress)?, tokenizer))
    }

    /// Loads an admitted plan for work in tokens.
    ///
    /// ```
    /// use plimsoll::runtime::{Request, What};
    /// use plimsoll::{Device, DeviceOptions, Geometry};
    ///
    /// let opened = plimsoll::open("tests/data/golden/llama")?;
    /// let device = Device::open(&DeviceOptions::default())?;
    /// let geometry = Geometry { context: 64, slots: 2, logit_rows: 2, ..opened.geometry() };
    /// let admitted = opened.admit(&geometry, device.profile(), None)?;
    /// let mut engine = opened.load_engine(device, admitted, &mut |_| ())?;
    ///
    /// // Requests share steps; each gets what it would get alone.
    /// for prompt in [vec![1, 2, 3], vec![7; 20]] {
    ///     engine.submit(Request { prompt, max_new: 8, ..Default::default() })?;
    /// }
    /// let mut tokens = 0;
    /// while !engine.is_idle() {
    ///     for event in engine.step() {
    ///         if let What::Token { .. } = event.what {
    ///             tokens += 1;
    ///         }
    ///     }
    /// }
    /// assert_eq!(tokens, 16);
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Opened::load`], but a tokenizer is not needed.
    pub fn load_engine(
        &self,
        device: Device,
        admitted: Admitted,
        progress: &mut (dyn FnMut(LoadProgress<'_>) + Send),
    ) -> Result<Engine<Runtime>, Error> {
        let runtime = Runtime::load(device, &self.model, &self.checkpoint, admitted, progress)?;
        Ok(Engine::new(runtime)?)
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// [`Error::Missing`] when there is none; [`Error::Model`] when it contradicts itself or has more tokens than
    /// the model.
    pub fn tokenizer(&self) -> Result<Arc<Tokenizer>, Error> {
        if let Some(tokenizer) = self.tokenizer.get() {
            return Ok(Arc::clone(tokenizer));
        }
        let found = Tokenizer::from_checkpoint(&self.checkpoint)?;
        let tokenizer = Arc::new(found.ok_or_else(|| self.missing("a tokenizer"))?);
        if tokenizer.vocab_size() > self.model.vocab as usize {
            return Err(ModelError::Tokenizer {
                place: "vocabulary".into(),
                expected: format!("at most the {} tokens of the embedding", self.model.vocab),
                got: tokenizer.vocab_size().to_string(),
            }
            .into());
        }
        Ok(Arc::clone(self.tokenizer.get_or_init(|| tokenizer)))
    }

    /// The chat template.
    ///
    /// # Errors
    /// [`Error::Missing`] when there is none; [`Error::Model`] when it does not parse.
    pub fn template(&self) -> Result<ChatTemplate, Error> {
        ChatTemplate::from_checkpoint(&self.checkpoint)?.ok_or_else(|| self.missing("a chat template"))
    }

    fn missing(&self, what: &'static str) -> Error {
        Error::Missing { what, name: self.checkpoint.path().display().to_string() }
    }
}
