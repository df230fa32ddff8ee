//! How a question is answered: its price, the verdict on it, and what stands around the geometry.

use super::around::{Made, ladder, levers, shared};
use super::{BudgetPart, Exact, Fits, GeometryPart, ModelPart, OverheadPart, RefusalPart, Report, SCHEMA};
use super::{kv_bytes_per_token, ours};
use crate::budget::Budget;
use crate::build::estimate_only;
use crate::coefficients::Coefficients;
use crate::company::Company;
use crate::error::PlanError;
use crate::geometry::Geometry;
use crate::images::ImagesPart;
use crate::pricer::Pricer;
use crate::solve::{self, Search, Solver};
use crate::verdict::{self, Overhead, Refusal, Suggestion, Verdict};
use plimsoll_kernels::Profile;
use plimsoll_models::Model;
use plimsoll_models::checkpoint::Checkpoint;
use plimsoll_models::graph::Op;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What an estimate is made of.
#[derive(Clone, Copy)]
pub struct Question<'a> {
    /// Where the model came from.
    pub checkpoint: &'a Checkpoint,
    /// The model.
    pub model: &'a Model,
    /// What is asked of it.
    pub geometry: &'a Geometry,
    /// On what.
    pub profile: &'a Profile,
    /// Against what.
    pub budget: Option<&'a Budget>,
    /// The driver's part, if it was measured.
    pub overhead: Overhead,
    /// What else is on the device, as a geometry changes it; the budget is less by it at this one.
    pub company: Option<&'a Company<'a>>,
}

impl Question<'_> {
    /// Geometries near the one asked about that fit: see [`solve::nearest`].
    pub fn nearest(&self) -> Vec<Suggestion> {
        let Question { model, profile, geometry, budget, overhead, company, .. } = *self;
        let pricer = Pricer::new(model, profile);
        solve::nearest(&Solver { pricer: &pricer, budget, overhead, company }, geometry)
    }
}

impl Report {
    /// Prices, judges, and looks around the geometry: ladder, levers, the largest that fits.
    ///
    /// # Errors
    /// Only a fault of the architecture.
    pub fn new(question: &Question<'_>) -> Result<(Self, Verdict), PlanError> {
        Self::with(&Pricer::new(question.model, question.profile), question)
    }

    /// The same, with a pricer of the question's model and profile that has been asked before.
    ///
    /// # Errors
    /// As [`Report::new`].
    pub fn with(pricer: &Pricer<'_>, question: &Question<'_>) -> Result<(Self, Verdict), PlanError> {
        let (report, refusal) = Self::judged(pricer, question)?;
        let Question { geometry, budget, overhead, company, .. } = *question;
        let verdict = match refusal {
            Some(refusal) => Verdict::Refused(refusal),
            None => verdict::admitted(&Solver { pricer, budget, overhead, company }, geometry)?,
        };
        Ok((report, verdict))
    }

    /// The report alone, where nobody loads the plan: it is not made.
    ///
    /// # Errors
    /// As [`Report::new`].
    pub fn priced(pricer: &Pricer<'_>, question: &Question<'_>) -> Result<Self, PlanError> {
        Ok(Self::judged(pricer, question)?.0)
    }

    fn judged(pricer: &Pricer<'_>, question: &Question<'_>) -> Result<(Self, Option<Refusal>), PlanError> {
        let Question { checkpoint, model, geometry, profile, budget, overhead, company } = *question;
        let solver = Solver { pricer, budget, overhead, company };
        // All that is looked at around the geometry begins with its price; what the model is made of does not.
        let (refused, model_part) = (Made::nothing(), Made::nothing());
        shared(&[&|| refused.set(verdict::refusal(&solver, geometry)), &|| {
            model_part.set(ModelPart::of(checkpoint, model))
        }]);
        let refused = refused.take().unwrap_or_else(|| verdict::refusal(&solver, geometry))?;
        // What is over the budget still has bytes to show.
        let price = pricer.price(geometry).ok();
        let word = match (&refused, budget) {
            (Some(_), _) => "refused",
            (None, Some(_)) => "fits",
            (None, None) => "no_budget",
        };
        let refusal = refused.as_ref().map(RefusalPart::of);
        // Both threads take from all of it. What takes longest is begun first, and who is done with the rest joins.
        let search = budget.map(|_| Search::new(&solver, geometry));
        let frontier = || search.iter().for_each(Search::join);
        let around = price.as_ref().map(|_| Coefficients::around(geometry)).unwrap_or_default();
        let priced = AtomicUsize::new(0);
        let samples = || {
            while let Some(geometry) = around.get(priced.fetch_add(1, Ordering::Relaxed)) {
                // The price is kept, and so is what stands against it.
                pricer.price(geometry).ok();
            }
        };
        let (rungs, changes, images) = (Made::nothing(), Made::nothing(), Made::nothing());
        let (context, slots, chunk) = (Made::nothing(), Made::nothing(), Made::nothing());
        shared(&[
            &frontier,
            &samples,
            &|| changes.set(price.as_ref().map(|p| levers(pricer, geometry, p.total())).unwrap_or_default()),
            &|| context.set(solver.context_found(geometry)),
            &|| slots.set(solver.slots_found(geometry)),
            &|| chunk.set(solver.chunk_found(geometry)),
            &|| images.set(ImagesPart::of(&solver, geometry)),
            &|| rungs.set(ladder(&solver, geometry)),
            &samples,
            &frontier,
        ]);
        let report = Self {
            schema: SCHEMA,
            model: model_part.take().unwrap_or_else(|| ModelPart::of(checkpoint, model)),
            geometry: GeometryPart::of(model, geometry),
            profile: profile.name.clone(),
            bytes: price.as_ref().map(|p| p.bytes.clone()),
            not_in_bytes: Vec::new(),
            exact: Exact {
                weights: !model.extras.nearest_weights,
                kv: true,
                recurrent: true,
                activations: geometry.priced.images.count == 0
                    && !model.graph.ops.iter().any(|(_, op)| matches!(op, Op::Priced { .. })),
            },
            overhead: OverheadPart {
                bytes: overhead.bytes,
                source: if overhead.measured { "measured" } else { "unknown" }.into(),
            },
            kv_bytes_per_token: crate::kv::suits(model, geometry)
                .then(|| kv_bytes_per_token(model, geometry)),
            pool_bytes_per_token: None,
            recurrent_bytes_per_slot: Some(crate::recurrent::bytes_per_slot(model, geometry)),
            largest_allocation: price.as_ref().map(|p| p.largest_allocation.clone()),
            largest_binding: price.as_ref().map(|p| p.largest_binding.clone()),
            shards: price.as_ref().map(|p| pricer.shards(p)),
            budget: budget.map(BudgetPart::of),
            limits: Vec::new(),
            verdict: word.into(),
            refusal,
            ladder: rungs.take().unwrap_or_default(),
            levers: changes.take().unwrap_or_default(),
            largest: Fits::of(
                context.take().unwrap_or_default(),
                slots.take().unwrap_or_default(),
                chunk.take().unwrap_or_default(),
            ),
            runtime: ours(),
            rules: Vec::new(),
            host: Vec::new(),
            peak: None,
            images: images.take().flatten(),
            pipelines: price.as_ref().map(|p| p.pipelines),
            estimate_only: estimate_only(model, geometry),
            checks: Vec::new(),
            ceilings: None,
            others: None,
            coefficients: Coefficients::new(pricer, geometry),
            // Without a budget everything up to the limits of the adapter fits.
            frontier: search.map(Search::finish).unwrap_or_default(),
        };
        Ok((report, refused))
    }
}
