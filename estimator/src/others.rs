//! What else lives on the device: a model that drafts, models beside this one, layers of its own that draft, and a model
//! that makes room.
//!
//! Each is priced by a plan of its own, and what it takes is not there for this one: the budget is less by it. A model
//! that is replaced is credited: its bytes are free by the time they are needed.

use crate::budget::{Budget, Reading, Setting};
use crate::error::{PlanError, grouped};
use crate::geometry::Geometry;
use crate::peers::{self, Engine};
use crate::plan::Segment;
use crate::pricer::Pricer;
use plimsoll_kernels::step::PAGE;
use plimsoll_models::Model;
use plimsoll_models::model::Part;
use serde::{Deserialize, Serialize};

/// Why something else is on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It drafts tokens for this model.
    Draft,
    /// Layers of this model that draft.
    DraftLayers,
    /// It is another tenant.
    Beside,
}

impl Role {
    /// What it is to the model, as it stands after a name.
    pub const fn said(self) -> &'static str {
        match self {
            Role::Draft => "which drafts for it",
            Role::DraftLayers => "its own layers that draft",
            Role::Beside => "beside it",
        }
    }
}

/// Something else on the device, and its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the fields are the document's
pub struct Other {
    pub name: String,
    pub role: Role,
    pub context: u32,
    pub weights: u64,
    pub kv: u64,
    pub recurrent: u64,
    pub activations: u64,
    pub io: u64,
    pub total: u64,
}

/// A model that leaves the device before this one comes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Replaced {
    pub name: String,
    pub bytes: u64,
}

/// Everything else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Others {
    /// What stays.
    pub here: Vec<Other>,
    /// What goes.
    pub replaced: Vec<Replaced>,
    /// Bytes of what goes that were added to a budget: to a reading of free memory alone.
    #[serde(default)]
    pub credited: u64,
}

impl Other {
    /// A model of its own, with the context and slots of the one it serves, as far as it goes.
    ///
    /// # Errors
    /// As [`Pricer::price`].
    pub fn model(pricer: &Pricer<'_>, role: Role, asked: &Geometry) -> Result<Self, PlanError> {
        let model = pricer.model();
        let most = if model.context_max > 0 { model.context_max } else { asked.context };
        // It drafts nothing for itself, and keeps no snapshots or images.
        let priced = crate::Priced { snapshots: 0, images: Default::default(), ..asked.priced.clone() };
        let geometry = Geometry { context: asked.context.min(most), draft_depth: 0, priced, ..asked.clone() };
        let price = pricer.price(&geometry)?;
        let of = |segment| price.segment_bytes(segment);
        Ok(Self {
            name: model.name.clone(),
            role,
            context: geometry.context,
            weights: of(Segment::Weights),
            kv: of(Segment::Kv),
            recurrent: of(Segment::Recurrent),
            activations: of(Segment::Activations),
            io: of(Segment::Io),
            total: price.total(),
        })
    }

    /// A model of its own by the rules of another engine, which holds both: what the context means there it means here.
    ///
    /// # Errors
    /// [`PlanError::Engine`] where that engine does not hold it.
    pub fn of_engine(
        model: &Model,
        role: Role,
        asked: &Geometry,
        engine: Engine,
        options: &peers::Options,
    ) -> Result<Self, PlanError> {
        let most = match (model.context_max, engine) {
            (0, _) => asked.context,
            // There it is the total over all slots.
            (most, Engine::LlamaCpp) => most.saturating_mul(asked.slots),
            (most, _) => most,
        };
        let priced = crate::Priced { snapshots: 0, images: Default::default(), ..asked.priced.clone() };
        let geometry = Geometry { context: asked.context.min(most), draft_depth: 0, priced, ..asked.clone() };
        let price = peers::price(engine, model, &geometry, options)?;
        Ok(Self {
            name: model.name.clone(),
            role,
            context: geometry.context,
            weights: price.weights,
            kv: price.kv,
            recurrent: price.recurrent,
            activations: 0,
            io: 0,
            total: price.total(),
        })
    }

    /// The layers of a model that draft, when they do: their weights as stored, and their own keys and values over the
    /// whole context. `None` of a model that has none, or where nothing is drafted.
    ///
    /// # Errors
    /// When the KV format does not suit their heads.
    pub fn draft_layers(model: &Model, asked: &Geometry) -> Result<Option<Self>, PlanError> {
        if asked.draft_depth == 0 || model.extras.draft.is_empty() {
            return Ok(None);
        }
        let mut kv = 0u64;
        let mut recurrent = 0u64;
        let cells = u64::from(asked.context.div_ceil(PAGE)).saturating_mul(asked.slots.into());
        for state in &model.extras.draft {
            match state.recurrent() {
                Some(shape) => {
                    recurrent = recurrent.saturating_add(shape.bytes().saturating_mul(asked.slots.into()));
                }
                None => {
                    let (_, page) = crate::kv::page(state, asked)?;
                    kv = kv.saturating_add(page.saturating_mul(cells));
                }
            }
        }
        let of_draft = model.extras.tensors.iter().filter(|t| t.part == Part::Draft);
        let weights = of_draft
            .map(|t| {
                let row = t.format.row_bytes(t.cols).unwrap_or(u64::MAX);
                row.saturating_mul(t.rows).saturating_mul(t.count)
            })
            .fold(0, u64::saturating_add);
        let total = weights.saturating_add(kv).saturating_add(recurrent);
        Ok(Some(Self {
            name: format!("{}: layers that draft", model.name),
            role: Role::DraftLayers,
            context: asked.context,
            weights,
            kv,
            recurrent,
            activations: 0,
            io: 0,
            total,
        }))
    }
}

impl Others {
    /// Whether there is nothing else.
    pub fn is_empty(&self) -> bool {
        self.here.is_empty() && self.replaced.is_empty()
    }

    /// What stays, alone: nothing is credited to what a device has in all, of which nothing was taken away.
    pub fn staying(&self) -> Self {
        Self { here: self.here.clone(), ..Self::default() }
    }

    /// Bytes that stay taken.
    pub fn taken(&self) -> u64 {
        self.here.iter().map(|o| o.total).fold(0, u64::saturating_add)
    }

    /// Bytes that become free.
    pub fn freed(&self) -> u64 {
        self.replaced.iter().map(|r| r.bytes).fold(0, u64::saturating_add)
    }

    /// What is left for the model at hand of a ceiling (with its setting's name) and a reading: more by what goes, less by
    /// what stays. An operator's ceiling is for everything together, so what goes is credited to a reading of free memory
    /// alone.
    pub fn budget(&self, requested: Option<(u64, &str)>, derived: Option<Reading>) -> Option<Budget> {
        self.budget_leaving(requested, derived, None)
    }

    /// The same, where `reserve` of the reading is left for others than those.
    pub fn budget_leaving(
        &self,
        requested: Option<(u64, &str)>,
        derived: Option<Reading>,
        reserve: Option<&Setting>,
    ) -> Option<Budget> {
        let (freed, taken) = (self.freed(), self.taken());
        let credited = derived.map(|mut reading| {
            if freed > 0 {
                reading.bytes = reading.bytes.saturating_add(freed);
                reading.source = format!("{} + {} that will be freed", reading.source, grouped(freed));
            }
            reading
        });
        let mut budget = Budget::resolve_beside(requested, credited, reserve)?;
        if taken > 0 {
            let names: Vec<&str> = self.here.iter().map(|o| o.name.as_str()).collect();
            budget.leave(taken, &names.join(", "));
        }
        Some(budget)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn other(total: u64) -> Other {
        Other {
            name: "beside".into(),
            role: Role::Beside,
            context: 1,
            weights: total,
            kv: 0,
            recurrent: 0,
            activations: 0,
            io: 0,
            total,
        }
    }

    #[test]
    fn what_stays_is_taken_and_what_goes_is_credited_once() {
        let reading = || {
            Some(Reading {
                bytes: 100,
                total: None,
                beside: 0,
                source: "reading".into(),
                taken: 1,
                excluded: vec![],
            })
        };
        let replaced = vec![Replaced { name: "old".into(), bytes: 50 }];
        let others = Others { here: vec![other(30)], replaced, credited: 0 };
        let derived = others.budget(None, reading()).unwrap();
        assert_eq!((derived.bytes, derived.derived.as_ref().map(|r| r.bytes)), (120, Some(150)));
        assert!(derived.source.contains("50") && derived.source.contains("less 30 for beside"));
        // A ceiling is for everything together.
        assert_eq!(others.budget(Some((110, "flag")), reading()).unwrap().bytes, 80);
        assert_eq!(others.budget(Some((200, "flag")), reading()).unwrap().bytes, 120);
        assert_eq!(others.budget(Some((20, "flag")), None).unwrap().bytes, 0);
        assert_eq!(others.staying().budget(None, reading()).unwrap().bytes, 70);
        assert_eq!(others.budget(None, None), None);
        assert_eq!(Others::default().budget(None, reading()).unwrap().bytes, 100);
    }
}
