//! Parts of the document that every engine's estimate fills alike.

use super::{BudgetPart, GeometryPart, Layers, ModelPart, RefusalPart, checkpoint_bytes};
use crate::budget::Budget;
use crate::build::facts;
use crate::geometry::Geometry;
use crate::verdict::{Broke, Refusal};
use crate::weights::{self, Parts};
use plimsoll_kernels::step::PAGE;
use plimsoll_models::Model;
use plimsoll_models::checkpoint::Checkpoint;

impl ModelPart {
    pub(crate) fn of(checkpoint: &Checkpoint, model: &Model) -> Self {
        let facts = facts(model);
        let parts = checkpoint_bytes(checkpoint, model);
        Self {
            name: model.name.clone(),
            architecture: model.architecture.clone(),
            source: checkpoint.source().to_string(),
            parameters: model.parameters(),
            checkpoint_bytes: parts.total(),
            stored_bytes: model.extras.recast.as_ref().map_or(parts.total(), |r| Parts::of(r.stored).total()),
            checkpoint_bytes_by_part: parts,
            read: checkpoint.bytes_read(),
            layers: Layers {
                attention_full: facts.attention_full,
                attention_sliding: facts.attention_sliding,
                recurrent: facts.recurrent,
                stateless: facts.stateless,
            },
            context_max: model.context_max,
            vocab: model.vocab,
            notes: model.notes.iter().cloned().chain(weights::stated_note(checkpoint, model)).collect(),
        }
    }
}

impl GeometryPart {
    pub(crate) fn of(model: &Model, geometry: &Geometry) -> Self {
        Self {
            context: geometry.context,
            slots: geometry.slots,
            prefill_chunk: geometry.prefill_chunk,
            kv: geometry.kv_pair().to_string(),
            weights: weights::scheme_of(model),
            images: geometry.priced.images.count,
            draft_depth: geometry.draft_depth,
            snapshots: geometry.priced.snapshots,
            page: PAGE,
            logit_rows: geometry.logit_rows,
            kv_bits: None,
        }
    }
}

impl BudgetPart {
    pub(crate) fn of(budget: &Budget) -> Self {
        Self {
            bytes: budget.bytes,
            source: budget.source.clone(),
            requested: budget.requested,
            setting: budget.setting.clone(),
            derived: budget.derived.as_ref().map(|r| r.bytes),
            // A figure that was not read, as a table's, was taken at no time: its source has the date.
            taken: budget.derived.as_ref().map(|r| r.taken).filter(|seconds| *seconds > 0),
            excluded: budget.derived.as_ref().map(|r| r.excluded.clone()).unwrap_or_default(),
            reserve: budget.reserve.clone(),
            won: budget.won,
            why: budget.why.clone(),
        }
    }
}

impl RefusalPart {
    pub(crate) fn of(refusal: &Refusal) -> Self {
        // A budget may be nothing; of the other limits 0 is what there is no number for.
        let known = |bytes: u64| {
            (bytes > 0 || matches!(refusal.broke, Broke::Total | Broke::LoadPeak)).then_some(bytes)
        };
        Self {
            broke: refusal.broke.name().into(),
            name: refusal.name.clone(),
            need: known(refusal.need).or((refusal.broke == Broke::Geometry).then_some(refusal.need)),
            have: known(refusal.have),
            term: refusal.term.map(|term| term.name().to_owned()),
            lasts: refusal.lasts,
            reason: refusal.reason.clone(),
            nearest: refusal.nearest.clone(),
        }
    }
}
