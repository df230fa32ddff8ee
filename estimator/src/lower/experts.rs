//! Mixture of experts, lowered: the router, the sorted table where there are many tokens, the products by shards of the
//! stack, and the weighted sum.

use super::family::Steps;
use super::{Draft, Family, Lowering, NARROW, Operand};
use crate::error::PlanError;
use crate::plan::When;
use plimsoll_kernels::ops::{combine, expert_sort, experts, route};
use plimsoll_models::graph::{self, MatrixId, Rows, TensorId, VectorId};
use std::sync::Arc;

/// What follows the label of a dispatch that sorts.
pub(super) const SORT: &str = ".sort";

impl<'a> Lowering<'a> {
    /// Ids and weights of the chosen experts.
    pub(super) fn route(
        &mut self,
        label: &'a str,
        logits: TensorId,
        op: &graph::Router,
        out: TensorId,
    ) -> Result<(), PlanError> {
        let count = self.width(logits);
        let grouped = op.groups.is_none_or(|g| {
            (1..=route::MAX_GROUPS).contains(&g.count)
                && count.is_multiple_of(g.count)
                && (1..=g.count).contains(&g.keep)
                && op.top <= count / g.count * g.keep
        });
        if op.top == 0 || op.top > count || !grouped {
            return Err(PlanError::graph(label, "more experts are chosen than stand for choice"));
        }
        self.expect_width(label, out, 2 * op.top)?;
        let [bias, expert_scale] =
            [self.vector_of(label, op.bias, count)?, self.vector_of(label, op.expert_scale, count)?];
        let args = route::Args {
            experts: count,
            top: op.top,
            scoring: op.scoring,
            bias,
            groups: op.groups,
            normalise: op.normalise,
            scale: op.scale,
            expert_scale,
            logit_scale: op.logit_scale,
            logits_stride: count,
            routing_stride: self.width(out),
        };
        let operands = vec![Operand::Tensor(logits), Operand::Tensor(out), Operand::View(self.vectors)];
        self.push(label, "", When::Always, route::plan(self.shared.profile, &args), operands);
        Ok(())
    }

    /// The products of the chosen experts, a dispatch for each shard of the stack and for each piece of its rows that
    /// the work budget allows.
    #[allow(clippy::too_many_arguments)] // the op's own fields
    pub(super) fn experts(
        &mut self,
        label: &'a str,
        x: TensorId,
        routing: TensorId,
        id: MatrixId,
        bias: Option<VectorId>,
        out: TensorId,
    ) -> Result<(), PlanError> {
        let profile = self.shared.profile;
        let matrix = self.shared.model.matrix(id);
        let count = matrix.map_or(0, |m| m.experts);
        let group = self.group(label, &[id])?;
        let (record, top) = (group.record, self.width(routing) / 2);
        if count == 0 || !group.rows.is_multiple_of(count) {
            return Err(PlanError::graph(label, "a stack whose rows are no multiple of its experts"));
        }
        let n = group.rows / count;
        let bias = self.vector_of(label, bias, group.rows)?;
        self.expect_width(label, x, record.cols())?;
        self.expect_width(label, out, n)?;
        if top == 0 || self.tensor_rows(out) != Rows::Choices(top) {
            return Err(PlanError::graph(label, "an output without a row a choice"));
        }
        let x_choices = match self.tensor_rows(x) {
            Rows::Choices(rows) if rows == top => true,
            Rows::Tokens => false,
            Rows::Choices(_) | Rows::LogitRows => {
                return Err(PlanError::graph(label, "an input of neither tokens nor these choices"));
            }
        };
        let (tile, who) = self.choices(label, routing, count);
        let choices = u64::from(self.max_tokens) * u64::from(top);
        let flops_per_row = 2 * u64::from(record.cols()) * choices;
        let rows = (profile.work_budget / flops_per_row.max(1)).clamp(1, u64::from(n)) as u32;
        let rows = if rows < n { (rows / 64 * 64).max(rows.min(64)) } else { rows };
        // Dispatches that differ only in where they begin: experts and rows of each, and the first.
        let mut made: Vec<(u32, u32, usize)> = Vec::new();
        for shard in &group.shards {
            let (first, experts_here) = (shard.first_row / n, shard.rows / n);
            if self.summed {
                // A shard before it of as many experts has families for all rows of them.
                let mut found = false;
                for &(.., i) in made.iter().filter(|(experts, ..)| *experts == experts_here) {
                    if let Some(family) = self.drafts.get_mut(i).and_then(|draft| draft.family.as_mut()) {
                        family.push(first, 0);
                        found = true;
                    }
                }
                if found {
                    continue;
                }
            }
            for first_row in (0..n).step_by(rows as usize) {
                let args = experts::Args {
                    format: record.format(),
                    experts: count,
                    first_expert: first,
                    shard_experts: experts_here,
                    n,
                    k: record.cols(),
                    first_row,
                    rows: rows.min(n - first_row),
                    x_stride: self.width(x),
                    x_choices,
                    out_stride: n,
                    top,
                    routing_stride: self.width(routing),
                    bias,
                    tile,
                    max_tokens: self.max_tokens,
                };
                let like = made.iter().find(|(e, r, _)| (*e, *r) == (args.shard_experts, args.rows));
                let like = like.and_then(|&(.., i)| self.drafts.get_mut(i));
                let call = match like {
                    Some(Draft { family: Some(family), .. }) => {
                        family.push(args.first_expert, args.first_row);
                        continue;
                    }
                    Some(like) => experts::plan_as(&like.call, &args),
                    None => {
                        made.push((args.shard_experts, args.rows, self.drafts.len()));
                        experts::plan(profile, &args)
                    }
                };
                let operands = vec![
                    Operand::View(shard.view),
                    Operand::Tensor(x),
                    Operand::Tensor(out),
                    Operand::View(self.vectors),
                    match &who {
                        Operand::Scratch(i) => Operand::Scratch(*i),
                        _ => Operand::Tensor(routing),
                    },
                ];
                let words = |first_expert, first_row| {
                    let args = experts::Args { first_expert, first_row, ..args.clone() };
                    experts::plan_as(&call, &args).params
                };
                // The steps follow the rows of an expert, and whether there is a bias.
                let family = self.summed.then(|| {
                    let steps = self.steps.entry((n, bias.is_some()));
                    let steps = steps.or_insert_with(|| Arc::new(Steps::of(words))).clone();
                    let here = (args.first_expert, args.first_row);
                    let base = if here == (0, 0) { call.params.clone() } else { words(0, 0) };
                    Family::of(base, steps, here.0, here.1)
                });
                self.push(label, "", When::Always, call, operands);
                if let Some(draft) = self.drafts.last_mut() {
                    draft.family = family;
                }
            }
        }
        Ok(())
    }

    /// The tile in which the choices of a routing among `count` experts are read, where there are many tokens, and where
    /// they stand.
    pub(super) fn choices(
        &mut self,
        label: &'a str,
        routing: TensorId,
        count: u32,
    ) -> (Option<u32>, Operand) {
        if self.max_tokens <= NARROW {
            return (None, Operand::Tensor(routing));
        }
        let top = self.width(routing) / 2;
        let tile = experts::tile(self.shared.profile, count, top, self.max_tokens);
        (Some(tile), Operand::Scratch(self.sort(label, routing, count, top, tile)))
    }

    /// The choices of a routing, sorted by expert: made where they are first used, alive to where they are last.
    fn sort(&mut self, label: &'a str, routing: TensorId, count: u32, top: u32, tile: u32) -> usize {
        if let Some(&made) = self.sorted.get(&(routing, tile)) {
            if let Some((.., last)) = self.scratch.get_mut(made) {
                *last = self.op;
            }
            return made;
        }
        let args = expert_sort::Args {
            experts: count,
            top,
            tile,
            routing_stride: self.width(routing),
            max_tokens: self.max_tokens,
        };
        let table = self.scratch(expert_sort::words(&args) * 4);
        for call in expert_sort::plan(self.shared.profile, &args) {
            let operands = vec![Operand::Tensor(routing), Operand::Scratch(table)];
            self.push(label, SORT, When::Always, call, operands);
        }
        self.sorted.insert((routing, tile), table);
        table
    }

    /// The weighted sum over the choices of each token.
    pub(super) fn combine(
        &mut self,
        label: &'a str,
        x: TensorId,
        routing: TensorId,
        out: TensorId,
        accumulate: bool,
    ) -> Result<(), PlanError> {
        let top = self.width(routing) / 2;
        if self.tensor_rows(x) != Rows::Choices(top) || self.tensor_rows(out) != Rows::Tokens {
            return Err(PlanError::graph(label, "rows of choices are summed into rows of tokens"));
        }
        self.expect_width(label, x, self.width(out))?;
        let args = combine::Args {
            width: self.width(out),
            top,
            x_stride: self.width(x),
            routing_stride: self.width(routing),
            out_stride: self.width(out),
            accumulate,
        };
        let operands = vec![Operand::Tensor(x), Operand::Tensor(routing), Operand::Tensor(out)];
        self.push(label, "", When::Always, combine::plan(self.shared.profile, &args), operands);
        Ok(())
    }
}
