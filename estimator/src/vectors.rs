//! Where the model's vectors stand: as f32, in windows that a binding holds. Most models need one; the biases of many
//! experts need more.

use crate::error::{Limit, PlanError};
use crate::plan::{ALIGN, Role, Segment, VectorPlace, View};
use crate::pool::Slab;
use plimsoll_kernels::Profile;
use plimsoll_models::Model;

/// Places every vector, those of one op in one window, and adds a buffer for each window.
///
/// # Errors
/// [`Limit::Binding`] when the vectors of one op do not fit a binding.
pub(crate) fn place(
    model: &Model,
    profile: &Profile,
    buffers: &mut Vec<Slab>,
) -> Result<(Vec<VectorPlace>, Vec<View>), PlanError> {
    let limits = &profile.limits;
    let have =
        limits.max_storage_buffer_binding_size.min(limits.max_buffer_size).min(u64::from(u32::MAX) * 4);
    let have = have / ALIGN * ALIGN;
    let mut places = vec![VectorPlace::default(); model.vectors.len()];
    let mut windows = vec![0u64];
    for family in families(model) {
        let len = |id: usize| u64::from(model.vectors[id].len);
        let need = family.iter().map(|&id| len(id) * 4).sum::<u64>();
        if need > have {
            return Err(PlanError::Limit { limit: Limit::Binding, name: "vectors".into(), need, have });
        }
        if windows.last().is_none_or(|words| words * 4 + need > have) {
            windows.push(0);
        }
        let window = windows.len() - 1;
        for id in family {
            places[id] = VectorPlace { window: window as u32, word: windows[window] as u32 };
            windows[window] += len(id);
        }
    }
    let views = (0..)
        .zip(windows)
        .map(|(i, words): (u32, u64)| {
            let bytes = (words * 4).max(4);
            let view = View { buffer: buffers.len() as u32, offset: 0, bytes };
            buffers.push(Slab {
                name: "vectors",
                index: Some(i),
                segment: Segment::Weights,
                role: Role::Vectors,
                bytes: bytes.next_multiple_of(ALIGN),
            });
            view
        })
        .collect();
    Ok((places, views))
}

/// The vectors, with those together that some op reads together; both in the model's order.
fn families(model: &Model) -> Vec<Vec<usize>> {
    // The vector before it in its family, itself for the first.
    let mut before: Vec<usize> = (0..model.vectors.len()).collect();
    fn first(before: &[usize], mut id: usize) -> usize {
        while before[id] != id {
            id = before[id];
        }
        id
    }
    for (_, op) in &model.graph.ops {
        let ids = op.vectors().into_iter().map(|id| id.0 as usize).filter(|&id| id < model.vectors.len());
        let firsts: Vec<usize> = ids.map(|id| first(&before, id)).collect();
        if let Some(&least) = firsts.iter().min() {
            firsts.into_iter().for_each(|id| before[id] = least);
        }
    }
    let mut families = vec![Vec::new(); model.vectors.len()];
    for id in 0..model.vectors.len() {
        families[first(&before, id)].push(id);
    }
    families.retain(|family| !family.is_empty());
    families
}
