//! Recurrent layers, lowered: convolution and tail, state space, gated norm; a dispatch for each binding of the pool.

use super::family::{MANY, Steps};
use super::{Family, Lowering, Operand, Shared};
use crate::error::PlanError;
use crate::plan::{RecurrentLayer, RecurrentSegment, When};
use plimsoll_kernels::ops::{conv, delta, gated_norm, ssd};
use plimsoll_kernels::step::TileTable;
use plimsoll_models::graph::{self, StateId, TensorId, VectorId};
use std::ops::Range;
use std::sync::Arc;

/// The drafts of a segment with so many slots, and the bytes of its scratch.
struct Made {
    slots: u32,
    drafts: Range<usize>,
    scratch: Option<u64>,
}

impl<'a> Lowering<'a> {
    fn recurrent(&self, label: &str, state: StateId) -> Result<&'a RecurrentLayer, PlanError> {
        let layers = &self.shared.recurrent.layers;
        let layer = layers.binary_search_by_key(&state, |l| l.state).ok().and_then(|index| layers.get(index));
        layer.ok_or_else(|| PlanError::graph(label, "no such recurrent state"))
    }

    /// The segments that hold copy 0, and how many slots each has of it.
    fn live(&self, layer: &'a RecurrentLayer) -> Vec<(&'a RecurrentSegment, u32)> {
        let slots = self.shared.geometry.slots;
        let here = |s: &RecurrentSegment| s.places.min(slots.saturating_sub(s.first));
        layer.segments.iter().map(|s| (s, here(s))).filter(|(_, slots)| *slots > 0).collect()
    }

    /// Where only a sum is asked for and there are many segments, lets the drafts of the first with as many slots stand
    /// for those of another. Answers whether they do.
    fn again(&mut self, made: &[Made], segment: &RecurrentSegment, slots: u32) -> bool {
        let Some(made) = made.iter().find(|made| made.slots == slots) else { return false };
        let drafts = self.drafts.get_mut(made.drafts.clone()).unwrap_or_default();
        for family in drafts.iter_mut().filter_map(|draft| draft.family.as_mut()) {
            family.push(0, segment.first);
        }
        if let Some(bytes) = made.scratch {
            self.scratch(bytes);
        }
        true
    }

    /// Makes families of the drafts since `begun`, of a segment whose dispatches at another first slot have the
    /// parameters `words`.
    fn stand_for(
        &mut self,
        begun: usize,
        slots: u32,
        first: u32,
        scratch: Option<u64>,
        words: impl Fn(u32) -> Vec<Vec<u32>>,
    ) -> Made {
        let (here, next) = (words(0), words(1));
        for (i, draft) in self.drafts.iter_mut().skip(begun).enumerate() {
            let at = |_: u32, row: u32| {
                if row == 0 { here.get(i) } else { next.get(i) }.cloned().unwrap_or_default()
            };
            draft.family = Some(Family::of(at(0, 0), Arc::new(Steps::of(at)), 0, first));
        }
        Made { slots, drafts: begun..self.drafts.len(), scratch }
    }

    /// The tile table that has one entry a sequence.
    fn sequences(&self, label: &str) -> Result<(u32, TileTable), PlanError> {
        let step = self.shared.step;
        let found = (0..).zip(&step.tiles).find(|(_, t)| t.tokens == step.tokens);
        found.map(|(i, t)| (i, *t)).ok_or_else(|| PlanError::graph(label, "no table of sequences"))
    }

    pub(super) fn expect_columns(
        &self,
        label: &str,
        id: TensorId,
        first: u32,
        columns: u32,
    ) -> Result<(), PlanError> {
        if first.checked_add(columns).is_some_and(|end| end <= self.width(id)) {
            return Ok(());
        }
        let got = self.width(id);
        Err(PlanError::graph(label, format!("columns {first}+{columns} of a tensor of width {got}")))
    }

    /// Convolution and SiLU, then the tails.
    pub(super) fn conv(
        &mut self,
        label: &'a str,
        x: TensorId,
        op: &graph::Conv,
        out: TensorId,
    ) -> Result<(), PlanError> {
        let Shared { profile, step, .. } = *self.shared;
        let layer = self.recurrent(label, op.state)?;
        let (channels, taps) = (layer.shape.channels, layer.shape.taps);
        if taps == 0 {
            return Err(PlanError::graph(label, "a convolution without taps"));
        }
        self.expect_columns(label, x, op.column, channels)?;
        self.expect_width(label, out, channels)?;
        let values = channels.checked_mul(taps).ok_or_else(|| PlanError::graph(label, "too many taps"))?;
        self.expect_vector(label, op.weight, values)?;
        if let Some(bias) = op.bias {
            self.expect_vector(label, bias, channels)?;
        }
        let common = conv::Args {
            channels,
            taps,
            column: op.column,
            x_stride: self.width(x),
            out_stride: self.width(out),
            weight: self.vector(label, op.weight)?,
            bias: op.bias.map(|b| self.vector(label, b)).transpose()?,
            positions: step.positions,
            token_slots: step.token_slots,
            sequences: self.sequences(label)?,
            first_slot: 0,
            slots: 0,
            max_tokens: self.max_tokens,
        };
        let live = self.live(layer);
        let many = self.summed && live.len() >= MANY;
        let mut made: Vec<Made> = Vec::new();
        for (segment, slots) in live {
            if self.again(&made, segment, slots) {
                continue;
            }
            let begun = self.drafts.len();
            let args = conv::Args { first_slot: segment.first, slots, ..common.clone() };
            let operands = vec![
                Operand::Tensor(x),
                Operand::View(segment.tails),
                Operand::Tensor(out),
                Operand::View(self.vectors),
            ];
            self.push(label, "", When::Always, conv::plan(profile, &args), operands);
            if taps > 1 {
                let operands = vec![Operand::Tensor(x), Operand::View(segment.tails)];
                self.push(label, ".tail", When::Always, conv::tail(profile, &args), operands);
            }
            if many {
                made.push(self.stand_for(begun, slots, segment.first, None, |first_slot| {
                    let args = conv::Args { first_slot, ..args.clone() };
                    vec![conv::plan(profile, &args).params, conv::tail(profile, &args).params]
                }));
            }
        }
        Ok(())
    }

    /// State space.
    pub(super) fn ssd(
        &mut self,
        label: &'a str,
        xbc: TensorId,
        dt: TensorId,
        op: &graph::Ssd,
        out: TensorId,
    ) -> Result<(), PlanError> {
        let profile = self.shared.profile;
        let layer = self.recurrent(label, op.state)?;
        let shape = op.shape;
        if shape.groups == 0 || !shape.heads.is_multiple_of(shape.groups) {
            return Err(PlanError::graph(label, "heads are no multiple of groups"));
        }
        if layer.shape != shape.recurrent(layer.shape.taps) {
            return Err(PlanError::graph(label, "the state has another size"));
        }
        self.expect_width(label, xbc, shape.channels())?;
        self.expect_width(label, out, shape.inner())?;
        self.expect_columns(label, dt, op.dt_column, shape.heads)?;
        let vector = |id: VectorId| -> Result<u32, PlanError> {
            self.expect_vector(label, id, shape.heads)?;
            self.vector(label, id)
        };
        let (a, d, dt_bias) = (vector(op.a)?, vector(op.d)?, vector(op.dt_bias)?);
        let live = self.live(layer);
        let many = self.summed && live.len() >= MANY;
        let mut made: Vec<Made> = Vec::new();
        for (segment, slots) in live {
            if self.again(&made, segment, slots) {
                continue;
            }
            let begun = self.drafts.len();
            let args = ssd::Args {
                shape,
                xbc_stride: self.width(xbc),
                dt_column: op.dt_column,
                dt_stride: self.width(dt),
                out_stride: self.width(out),
                a,
                d,
                dt_bias,
                dt_limit: op.dt_limit,
                sequences: self.sequences(label)?,
                first_slot: segment.first,
                slots,
                max_tokens: self.max_tokens,
            };
            let words = ssd::scratch_words(profile, &args);
            let scratch = if words > 0 { Some(self.scratch(words * 4)) } else { None };
            for stage in ssd::plan(profile, &args) {
                let operands = stage.operands.iter().map(|operand| {
                    Ok(match operand {
                        ssd::Operand::Xbc => Operand::Tensor(xbc),
                        ssd::Operand::Dt => Operand::Tensor(dt),
                        ssd::Operand::States => Operand::View(segment.states),
                        ssd::Operand::Out => Operand::Tensor(out),
                        ssd::Operand::Vectors => Operand::View(self.vectors),
                        ssd::Operand::Scratch => Operand::Scratch(
                            scratch.ok_or_else(|| PlanError::graph(label, "scratch of no words"))?,
                        ),
                    })
                });
                let operands = operands.collect::<Result<_, PlanError>>()?;
                self.push(label, stage.name, When::Always, stage.call, operands);
            }
            if many {
                let bytes = scratch.map(|_| words * 4);
                made.push(self.stand_for(begun, slots, segment.first, bytes, |first_slot| {
                    let args = ssd::Args { first_slot, ..args.clone() };
                    ssd::plan(profile, &args).into_iter().map(|stage| stage.call.params).collect()
                }));
            }
        }
        Ok(())
    }

    /// Gated delta rule.
    pub(super) fn delta(
        &mut self,
        label: &'a str,
        qkv: TensorId,
        ab: TensorId,
        op: &graph::Delta,
        out: TensorId,
    ) -> Result<(), PlanError> {
        let profile = self.shared.profile;
        let layer = self.recurrent(label, op.state)?;
        let shape = op.shape;
        if shape.key_heads == 0 || !shape.heads.is_multiple_of(shape.key_heads) {
            return Err(PlanError::graph(label, "value heads are no multiple of key heads"));
        }
        if layer.shape != shape.recurrent(layer.shape.taps) {
            return Err(PlanError::graph(label, "the state has another size"));
        }
        self.expect_width(label, qkv, shape.channels())?;
        self.expect_width(label, out, shape.inner())?;
        self.expect_columns(label, ab, op.a_column, shape.heads)?;
        self.expect_columns(label, ab, op.b_column, shape.heads)?;
        self.expect_vector(label, op.a, shape.heads)?;
        self.expect_vector(label, op.dt_bias, shape.heads)?;
        let live = self.live(layer);
        let many = self.summed && live.len() >= MANY;
        let mut made: Vec<Made> = Vec::new();
        for (segment, slots) in live {
            if self.again(&made, segment, slots) {
                continue;
            }
            let begun = self.drafts.len();
            let args = delta::Args {
                shape,
                tiled: op.tiled,
                qkv_stride: self.width(qkv),
                a_column: op.a_column,
                b_column: op.b_column,
                ab_stride: self.width(ab),
                out_stride: self.width(out),
                a: self.vector(label, op.a)?,
                dt_bias: self.vector(label, op.dt_bias)?,
                eps: op.eps,
                sequences: self.sequences(label)?,
                first_slot: segment.first,
                slots,
                max_tokens: self.max_tokens,
            };
            let words = delta::scratch_words(profile, &args);
            let scratch = if words > 0 { Some(self.scratch(words * 4)) } else { None };
            for stage in delta::plan(profile, &args) {
                let operands = stage.operands.iter().map(|operand| {
                    Ok(match operand {
                        delta::Operand::Qkv => Operand::Tensor(qkv),
                        delta::Operand::Ab => Operand::Tensor(ab),
                        delta::Operand::States => Operand::View(segment.states),
                        delta::Operand::Out => Operand::Tensor(out),
                        delta::Operand::Vectors => Operand::View(self.vectors),
                        delta::Operand::Scratch => Operand::Scratch(
                            scratch.ok_or_else(|| PlanError::graph(label, "scratch of no words"))?,
                        ),
                    })
                });
                let operands = operands.collect::<Result<_, PlanError>>()?;
                self.push(label, stage.name, When::Always, stage.call, operands);
            }
            if many {
                let bytes = scratch.map(|_| words * 4);
                made.push(self.stand_for(begun, slots, segment.first, bytes, |first_slot| {
                    let args = delta::Args { first_slot, ..args.clone() };
                    delta::plan(profile, &args).into_iter().map(|stage| stage.call.params).collect()
                }));
            }
        }
        Ok(())
    }

    /// Gated norm.
    pub(super) fn gated_norm(
        &mut self,
        label: &'a str,
        x: TensorId,
        gate: TensorId,
        op: &graph::GatedNorm,
    ) -> Result<(), PlanError> {
        let width = self.width(x);
        if op.groups == 0 || !width.is_multiple_of(op.groups) {
            return Err(PlanError::graph(label, "the width is no multiple of the groups"));
        }
        self.expect_columns(label, gate, op.gate_column, width)?;
        let len = self.shared.model.vector(op.weight).map_or(0, |v| v.len);
        if len != width && len != width / op.groups {
            return Err(PlanError::graph(
                label,
                format!("a weight of {len} for {} groups of {width}", op.groups),
            ));
        }
        let args = gated_norm::Args {
            width,
            groups: op.groups,
            x_stride: width,
            gate_column: op.gate_column,
            gate_stride: self.width(gate),
            weight: self.vector(label, op.weight)?,
            weight_shared: len != width,
            eps: op.eps,
            gate_first: op.gate_first,
        };
        let operands = vec![Operand::Tensor(x), Operand::Tensor(gate), Operand::View(self.vectors)];
        self.push(label, "", When::Always, gated_norm::plan(self.shared.profile, &args), operands);
        Ok(())
    }
}
