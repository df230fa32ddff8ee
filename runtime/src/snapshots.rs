//! Where in a snapshot stands what a slot keeps beside pages of full attention.
//!
//! A snapshot is the state and the tail of every recurrent layer, one after the other, and then of every sliding layer
//! the pages of the last `min(context, window)` tokens, in the order of their tokens.

use crate::RuntimeError;
use plimsoll_estimator::Plan;
use plimsoll_estimator::plan::{KvLayer, View};
use plimsoll_kernels::step::PAGE;

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the slot into the snapshot.
    Out,
    /// From the snapshot into the slot.
    Back,
}

/// Bytes that are kept: buffer and offset of both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copy {
    pub live: (u32, u64),
    pub kept: (u32, u64),
    pub bytes: u64,
}

/// Bytes of a snapshot.
pub(crate) fn bytes(plan: &Plan) -> u64 {
    let states = plan.recurrent.layers.iter().map(|layer| layer.shape.bytes());
    let rings = plan.kv.layers.iter().map(|layer| layer.page_bytes.saturating_mul(cells(plan, layer).into()));
    states.chain(rings).fold(0, u64::saturating_add)
}

/// Pages of a layer that hold what its window sees; none of full attention.
fn cells(plan: &Plan, layer: &KvLayer) -> u32 {
    let window = plan.kv.kinds.get(layer.kind as usize).and_then(|kind| kind.window);
    window.map_or(0, |window| plan.geometry.context.min(window).div_ceil(PAGE))
}

/// The copies between a slot that stands after `position` tokens, whole pages of them, and a snapshot.
///
/// # Errors
/// [`RuntimeError::Input`] for a snapshot, slot or position that the plan does not have.
pub(crate) fn copies<'t>(
    plan: &Plan,
    slot: u32,
    position: u32,
    index: u32,
    table: impl Fn(u32) -> Option<&'t [u32]>,
) -> Result<Vec<Copy>, RuntimeError> {
    let count = plan.snapshots.len();
    let Some(snapshot) = plan.snapshots.get(index as usize) else {
        return Err(RuntimeError::input("snapshot", format!("under {count}"), index));
    };
    if slot >= plan.geometry.slots {
        return Err(RuntimeError::input("slot", format!("under {}", plan.geometry.slots), slot));
    }
    if !position.is_multiple_of(PAGE) || position > plan.geometry.context {
        let expected = format!("whole pages of {PAGE} tokens, at most {}", plan.geometry.context);
        return Err(RuntimeError::input("position of a snapshot", expected, position));
    }
    let mut copies = Copies { views: snapshot, before: 0, made: Vec::new() };
    for layer in &plan.recurrent.layers {
        // The first copy of a slot's state is the one that steps go on from.
        let segment = layer.segments.iter().find(|s| (s.first..s.first + s.places).contains(&slot));
        let Some(segment) = segment else {
            return Err(RuntimeError::plan("places of a recurrent layer", plan.geometry.slots, slot));
        };
        let place = u64::from(slot - segment.first);
        for (view, each) in
            [(segment.states, layer.shape.state_bytes()), (segment.tails, layer.shape.tail_bytes())]
        {
            copies.add((view.buffer, view.offset + place * each), each)?;
        }
    }
    for layer in &plan.kv.layers {
        let (cells, pages) = (cells(plan, layer), table(layer.kind).unwrap_or(&[]));
        let end = position / PAGE;
        for logical in end - end.min(cells)..end {
            let page = pages.get(logical as usize % pages.len().max(1)).copied();
            let segment = page.and_then(|page| {
                layer.segments.iter().find(|s| (s.first_page..s.first_page + s.pages).contains(&page))
            });
            let (Some(page), Some(segment)) = (page, segment) else {
                return Err(RuntimeError::plan("pages of a window", pages.len(), format!("{page:?}")));
            };
            let from = segment.view.offset + u64::from(page - segment.first_page) * layer.page_bytes;
            copies.add((segment.view.buffer, from), layer.page_bytes)?;
        }
    }
    Ok(copies.made)
}

/// Fills the pieces of a snapshot one after the other.
struct Copies<'p> {
    views: &'p [View],
    /// Bytes taken of the first view.
    before: u64,
    made: Vec<Copy>,
}

impl Copies<'_> {
    fn add(&mut self, (buffer, mut offset): (u32, u64), bytes: u64) -> Result<(), RuntimeError> {
        let mut left = bytes;
        while left > 0 {
            let Some(view) = self.views.first() else {
                return Err(RuntimeError::plan("bytes of a snapshot", "room for all it keeps", left));
            };
            let here = left.min(view.bytes - self.before);
            if here > 0 {
                let kept = (view.buffer, view.offset + self.before);
                self.made.push(Copy { live: (buffer, offset), kept, bytes: here });
            }
            (left, offset) = (left - here, offset + here);
            self.before += here;
            if self.before == view.bytes {
                (self.views, self.before) = (&self.views[1..], 0);
            }
        }
        Ok(())
    }
}
