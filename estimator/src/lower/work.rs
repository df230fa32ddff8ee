//! What the dispatches of a step move and do, without the dispatches.

use super::{Cuts, Lowering, Shared};
use crate::error::PlanError;
use crate::plan::When;
use plimsoll_kernels::StepShape;
use plimsoll_models::graph::Op;
use rustc_hash::FxHashMap;

impl Lowering<'_> {
    /// Bytes moved and floating-point operations of a greedy step in the program for up to `max_tokens`, whose rows see
    /// `kv` tokens each: those of [`Plan::work`](crate::Plan::work).
    ///
    /// # Errors
    /// As those of a program, but for what its arena and its bindings exceed.
    pub fn work(
        shared: &Shared<'_>,
        cuts: &Cuts,
        max_tokens: u32,
        step: &StepShape,
        kv: u32,
    ) -> Result<(u64, u64), PlanError> {
        let mut this = Lowering { summed: true, ..Lowering::new(shared, max_tokens) };
        let mut seen: FxHashMap<(u32, u32), (u64, u64)> = FxHashMap::default();
        let mut sum = (0u64, 0u64);
        let mut add = |(bytes, flops): (u64, u64)| {
            sum = (sum.0.saturating_add(bytes), sum.1.saturating_add(flops));
        };
        for (index, (_, op)) in shared.model.graph.ops.iter().enumerate() {
            // Not every op of experts sorts their choices.
            let kind = this.class(op, index, Some(cuts)).filter(|_| !matches!(op, Op::Experts { .. }));
            let kind = kind.map(|(class, cut)| (class.kind, cut));
            if let Some(known) = kind.and_then(|kind| seen.get(&kind)) {
                add(*known);
                continue;
            }
            this.lower_at(index)?;
            let here = this.drafted(step, kv);
            seen.extend(kind.map(|kind| (kind, here)));
            add(here);
        }
        this.samples()?;
        add(this.drafted(step, kv));
        Ok(sum)
    }

    /// The work of the drafts, which are no longer needed then.
    fn drafted(&mut self, step: &StepShape, kv: u32) -> (u64, u64) {
        let counted = |when: When| match when {
            When::Always => true,
            When::Logits | When::Greedy => step.logit_rows > 0,
            When::TopK => false,
        };
        let mut sum = (0u64, 0u64);
        for draft in self.drafts.drain(..).filter(|draft| counted(draft.when)) {
            let (rows, cost) = (draft.call.rows.of(step), draft.call.cost);
            let times = draft.family.map_or(1, |family| family.experts.len() * family.rows.len()) as u64;
            sum.0 = sum.0.saturating_add(cost.bytes(rows, kv.into()).saturating_mul(times));
            sum.1 = sum.1.saturating_add(cost.flops(rows, kv.into()).saturating_mul(times));
        }
        sum
    }
}
