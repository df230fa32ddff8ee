//! Attention, lowered: head norms, rope and the KV write; the pages of every segment; the merge of the splits.

use super::family::{MANY, Steps};
use super::{Family, Lowering, NARROW, Operand, Shared, tile_tokens};
use crate::error::PlanError;
use crate::plan::{KvSegment, When};
use plimsoll_kernels::ops::rope_kv::{HeadNorm, KvPlace, Rope};
use plimsoll_kernels::ops::{attention, attention_merge, rope_kv};
use plimsoll_models::graph::{self, Keys, TensorId};
use std::sync::Arc;

/// Drafts of segments with so many pages, by their index.
type Alike = Vec<(u32, usize)>;

impl<'a> Lowering<'a> {
    /// Head norms, rope and KV write; attention over every segment; the merge of its splits.
    pub(super) fn attention(
        &mut self,
        label: &'a str,
        qkv: TensorId,
        op: &graph::Attention,
        out: TensorId,
    ) -> Result<(), PlanError> {
        let Shared { model, profile, step, kv, .. } = *self.shared;
        let shape = op.shape;
        let layer = kv
            .layers
            .binary_search_by_key(&op.state, |l| l.state)
            .ok()
            .and_then(|index| kv.layers.get(index))
            .ok_or_else(|| PlanError::graph(label, "no such attention state"))?;
        if layer.layout.kv_heads != shape.kv_heads || layer.layout.head_dim != shape.head_dim {
            return Err(PlanError::graph(label, "the state has other heads"));
        }
        if shape.kv_heads == 0 || !shape.heads.is_multiple_of(shape.kv_heads) {
            return Err(PlanError::graph(label, "query heads are no multiple of KV heads"));
        }
        self.expect_writer(label, op)?;
        self.expect_width(label, qkv, op.keys.width(&shape))?;
        self.expect_width(label, out, shape.heads * shape.head_dim)?;
        let kind = kv.kinds[layer.kind as usize];
        let table = step.tables[layer.kind as usize];
        let norm = |norm: Option<graph::HeadNorm>| -> Result<Option<HeadNorm>, PlanError> {
            norm.map(|n| {
                self.expect_vector(label, n.weight, shape.head_dim)?;
                Ok(HeadNorm { weight: self.vector(label, n.weight)?, plus_one: n.plus_one, eps: n.eps })
            })
            .transpose()
        };
        let (q_norm, k_norm) = (norm(op.q_norm)?, norm(op.k_norm)?);
        let rope = match op.rotation {
            None => None,
            Some(rotation) => {
                let index = rotation.rope.0 as usize;
                let table = step.ropes.get(index).ok_or_else(|| PlanError::graph(label, "no such rope"))?;
                if table.pairs * 2 > shape.head_dim || model.ropes.len() <= index {
                    return Err(PlanError::graph(label, "more pairs are rotated than a head has"));
                }
                Some(Rope { table: table.offset, pairs: table.pairs, interleaved: rotation.interleaved })
            }
        };
        let sinks = self.vector_of(label, op.sinks, shape.heads)?;
        let place = |segment: &KvSegment| KvPlace {
            table: table.offset,
            pages: table.pages,
            first_page: segment.first_page,
            segment_pages: segment.pages,
        };
        // Where another layer wrote the keys, one dispatch prepares the queries, if anything is to be done to them.
        let prepared = match op.keys {
            Keys::Own | Keys::Values => layer.segments.len(),
            Keys::Shared if q_norm.is_some() || rope.is_some() => 1,
            Keys::Shared => 0,
        };
        let many = self.summed && layer.segments.len() >= MANY;
        let mut alike = Alike::default();
        for (i, segment) in layer.segments.iter().take(prepared).enumerate() {
            // All but the first of as many pages differ in where they begin.
            if many && i > 0 && self.again_in(&alike, segment) {
                continue;
            }
            let args = rope_kv::Args {
                shape,
                kv: layer.layout,
                place: place(segment),
                q_norm,
                k_norm,
                v_norm: op.v_norm,
                keys: op.keys,
                rope,
                rotate_queries: i == 0,
                positions: step.positions,
                token_slots: step.token_slots,
                qkv_stride: self.width(qkv),
            };
            let operands =
                vec![Operand::Tensor(qkv), Operand::View(segment.view), Operand::View(self.vectors)];
            self.push(label, ".rope_kv", When::Always, rope_kv::plan(profile, &args), operands);
            if many && i > 0 {
                alike.push((segment.pages, self.drafts.len() - 1));
                self.stand_for_pages(segment, |first_page| {
                    let place = KvPlace { first_page, ..args.place };
                    rope_kv::plan(profile, &rope_kv::Args { place, ..args.clone() }).params
                });
            }
        }

        let splits = if self.max_tokens <= NARROW { attention::decode_splits(profile, &shape) } else { 1 };
        let words = attention::scratch_words(&shape, splits, self.max_tokens);
        let scratch = self.scratch(words * 4);
        let tile = tile_tokens(&shape, self.max_tokens);
        let tile_table = step
            .tiles
            .iter()
            .position(|t| t.tokens == tile)
            .ok_or_else(|| PlanError::graph(label, "no tile table for its heads"))?;
        let last = layer.segments.len().saturating_sub(1);
        let mut alike = Alike::default();
        for (i, segment) in layer.segments.iter().enumerate() {
            let within = many && i > 0 && i < last;
            if within && self.again_in(&alike, segment) {
                continue;
            }
            let args = attention::Args {
                shape,
                kv: layer.layout,
                place: place(segment),
                scale: op.scale,
                softcap: op.softcap,
                window: kind.window,
                sinks,
                tile_table: tile_table as u32,
                tiles: step.tiles[tile_table],
                splits,
                first_segment: i == 0,
                last_segment: i == last,
                qkv_stride: self.width(qkv),
                out_stride: self.width(out),
                max_tokens: self.max_tokens,
            };
            let mut operands = vec![
                Operand::Tensor(qkv),
                Operand::View(segment.view),
                Operand::Tensor(out),
                Operand::Scratch(scratch),
            ];
            if args.joins_sinks() {
                operands.push(Operand::View(self.vectors));
            }
            self.push(label, "", When::Always, attention::plan(profile, &args), operands);
            // A window bounds the reach by itself; without one, long contexts are cut into ranges.
            if let Some(draft) = self.drafts.last_mut() {
                draft.ranged = kind.window.is_none();
            }
            if within {
                alike.push((segment.pages, self.drafts.len() - 1));
                self.stand_for_pages(segment, |first_page| {
                    let place = KvPlace { first_page, ..args.place };
                    attention::plan(profile, &attention::Args { place, ..args.clone() }).params
                });
            }
        }
        if splits > 1 {
            let args = attention_merge::Args {
                shape,
                splits,
                out_stride: self.width(out),
                max_tokens: self.max_tokens,
                sinks,
            };
            let mut operands = vec![Operand::Scratch(scratch), Operand::Tensor(out)];
            if sinks.is_some() {
                operands.push(Operand::View(self.vectors));
            }
            self.push(label, ".merge", When::Always, attention_merge::plan(profile, &args), operands);
        }
        Ok(())
    }

    /// Lets the draft of a segment of as many pages stand for this one. Answers whether there is one.
    fn again_in(&mut self, alike: &Alike, segment: &KvSegment) -> bool {
        let found = alike.iter().find(|(pages, _)| *pages == segment.pages);
        let draft = found.and_then(|(_, draft)| self.drafts.get_mut(*draft));
        let Some(family) = draft.and_then(|draft| draft.family.as_mut()) else { return false };
        family.push(0, segment.first_page);
        true
    }

    /// Makes a family of the last draft, of a segment whose dispatch at another first page has the parameters `words`.
    fn stand_for_pages(&mut self, segment: &KvSegment, words: impl Fn(u32) -> Vec<u32>) {
        if let Some(draft) = self.drafts.last_mut() {
            let steps = Steps::of(|_, page| words(page));
            draft.family = Some(Family::of(words(0), Arc::new(steps), 0, segment.first_page));
        }
    }

    /// That the state has one writer in a step: this op, or one before it whose keys it shares.
    pub(super) fn expect_writer(&self, label: &str, op: &graph::Attention) -> Result<(), PlanError> {
        let written = self.shared.prepared.facts.written_before(op.state, self.op);
        match (op.keys, written) {
            (Keys::Shared, false) => {
                Err(PlanError::graph(label, "no op before it writes the keys it shares"))
            }
            (Keys::Shared, true) if op.k_norm.is_some() || op.v_norm.is_some() => {
                Err(PlanError::graph(label, "shared keys and values are normed where they are written"))
            }
            (Keys::Own | Keys::Values, true) => {
                Err(PlanError::graph(label, "an op before it writes the same state"))
            }
            (Keys::Shared, true) | (Keys::Own | Keys::Values, false) => Ok(()),
        }
    }
}
