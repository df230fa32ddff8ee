//! What a geometry takes beside its plan, and what its load must keep to: companions on the device grow with the context
//! and the slots as the model does, and a device must hold what a load holds for a while.

use crate::error::PlanError;
use crate::geometry::Geometry;
use crate::others::{Other, Role};
use crate::peers::{Engine, Options, PeerError};
use crate::pricer::{Price, Pricer};
use plimsoll_kernels::Profile;
use plimsoll_models::Model;

/// Memory that a load must not exceed while it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadRoom {
    /// For the plan with its staging.
    pub device: Option<u64>,
    /// For those with the host's share, where memory is one pool.
    pub unified: Option<u64>,
}

/// The companions of a model.
#[derive(Debug)]
pub struct Company<'a> {
    models: Vec<(Role, Pricer<'a>)>,
    /// The model, where layers of its own draft.
    drafts: Option<&'a Model>,
    /// The engine that holds them all, where it is not ours.
    engine: Option<(Engine, Options)>,
    /// Bytes there are for everybody; `None` where nothing is known.
    pub ceiling: Option<u64>,
    /// What a load must keep to.
    pub load: LoadRoom,
}

impl<'a> Company<'a> {
    /// Models on the same device, and the layers of `model` that draft where it has any and they are to be counted.
    pub fn new(models: &'a [(Role, Model)], drafts: Option<&'a Model>, profile: &'a Profile) -> Self {
        let models = models.iter().map(|(role, model)| (*role, Pricer::new(model, profile))).collect();
        Self { models, drafts, engine: None, ceiling: None, load: LoadRoom::default() }
    }

    /// The same, held by another engine.
    #[must_use]
    pub fn held_by(self, engine: Option<Engine>, options: Options) -> Self {
        Self { engine: engine.map(|engine| (engine, options)), ..self }
    }

    /// The same, where a load must keep to this.
    #[must_use]
    pub fn loading(self, load: LoadRoom) -> Self {
        Self { load, ..self }
    }

    /// Whether the model is alone.
    pub fn is_empty(&self) -> bool {
        self.models.is_empty()
    }

    /// Each of them as it would be with this geometry, or why it cannot be.
    fn each(&self, geometry: &Geometry) -> impl Iterator<Item = Result<Other, PlanError>> {
        let drafts = self.drafts.and_then(|model| {
            let layers = Other::draft_layers(model, geometry).transpose()?;
            Some((model, Role::DraftLayers, layers))
        });
        let models = self.models.iter().map(|(role, pricer)| {
            let other = match &self.engine {
                Some((engine, options)) => {
                    Other::of_engine(pricer.model(), *role, geometry, *engine, options)
                }
                None => Other::model(pricer, *role, geometry),
            };
            (pricer.model(), *role, other)
        });
        drafts.into_iter().chain(models).map(|(model, role, other)| {
            let model = model.name.clone();
            other.map_err(|error| PlanError::Beside { model, role, error: Box::new(error) })
        })
    }

    /// Each of them as it would be with this geometry.
    ///
    /// # Errors
    /// [`PlanError::Beside`]: the first that cannot be, and why.
    pub fn with(&self, geometry: &Geometry) -> Result<Vec<Other>, PlanError> {
        self.each(geometry).collect()
    }

    /// Whether each of them can have its keys and values in the formats of this geometry.
    pub(crate) fn suits(&self, geometry: &Geometry) -> bool {
        let unsuited = |error: &PlanError| {
            matches!(error, PlanError::KvFormat { .. } | PlanError::Engine(PeerError::KvFormat { .. }))
        };
        let beside = |other| matches!(other, Err(PlanError::Beside { error, .. }) if unsuited(&error));
        !self.each(geometry).any(beside)
    }

    /// Those of them that can be with this geometry.
    pub fn able(&self, geometry: &Geometry) -> Vec<Other> {
        self.each(geometry).filter_map(Result::ok).collect()
    }

    /// Bytes of all of them with this geometry; `None` where one of them cannot be with it.
    pub fn taken(&self, geometry: &Geometry) -> Option<u64> {
        let all = self.with(geometry).ok()?;
        Some(all.iter().map(|other| other.total).fold(0, u64::saturating_add))
    }

    /// Whether a device can load a plan of this price beside so many bytes of others.
    pub(crate) fn loads(&self, price: &Price, taken: u64) -> bool {
        let peak = price.total().saturating_add(price.staging).saturating_add(taken);
        let all = peak.saturating_add(price.bytes.load_host);
        self.load.device.is_none_or(|room| peak <= room) && self.load.unified.is_none_or(|room| all <= room)
    }
}
