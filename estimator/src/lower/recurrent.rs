//! Recurrent layers, lowered: convolution and tail, state space, gated norm; a dispatch for each binding of the pool.

use super::{Lowering, Operand, Shared};
use crate::error::PlanError;
use crate::plan::{RecurrentLayer, RecurrentSegment, When};
use plimsoll_kernels::ops::{conv, delta, gated_norm, ssd};
use plimsoll_kernels::step::TileTable;
use plimsoll_models::graph::{self, StateId, TensorId, VectorId};

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
        for (segment, slots) in self.live(layer) {
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
        for (segment, slots) in self.live(layer) {
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
        for (segment, slots) in self.live(layer) {
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
