//! What the limits of an adapter cut: a matrix larger than a binding is bound in shards, and so are the pages of a layer.

use crate::bytes::human;
use crate::groups::Groups;
use crate::plan::KvPlan;
use crate::report::{Largest, Report};
use plimsoll_models::Model;
use serde::{Deserialize, Serialize};

/// How many things are larger than one binding, and how many shards they are bound in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// Things that are cut.
    pub cut: u32,
    /// Shards of those in all.
    pub shards: u32,
}

impl Cut {
    /// Of things in so many shards each.
    pub fn of(shards: impl Iterator<Item = usize>) -> Self {
        shards.filter(|shards| *shards > 1).fold(Self::default(), |sum, shards| Self {
            cut: sum.cut.saturating_add(1),
            shards: sum.shards.saturating_add(u32::try_from(shards).unwrap_or(u32::MAX)),
        })
    }

    /// Of the pages of layers.
    pub(crate) fn of_kv(kv: &KvPlan) -> Self {
        Self::of(kv.layers.iter().map(|layer| layer.segments.len()))
    }
}

/// The matrix, or the stack of some, that is in most shards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct MostCut {
    pub name: String,
    pub shards: u32,
}

/// What is cut of the weights.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightCuts {
    /// Matrices, or stacks of matrices that one dispatch computes.
    #[serde(flatten)]
    pub all: Cut,
    /// The first of those in most shards; `None` where none is cut.
    pub most: Option<MostCut>,
}

impl WeightCuts {
    pub(crate) fn of(model: &Model, groups: &Groups) -> Self {
        let all = Cut::of(groups.all.iter().map(|group| group.shards.len()));
        let cut = groups.all.iter().filter(|group| group.shards.len() > 1);
        // Of several, `max` would answer the last.
        let most = cut.rev().max_by_key(|group| group.shards.len()).and_then(|group| {
            let name = model.matrix(*group.matrices.first()?)?.source.name();
            Some(MostCut { name: name.into(), shards: u32::try_from(group.shards.len()).ok()? })
        });
        Self { all, most }
    }
}

/// What the limits cut of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shards {
    /// Buffers in all: each is one allocation.
    pub buffers: u32,
    /// Of the weights.
    pub weights: WeightCuts,
    /// Layers whose pages are cut.
    pub kv: Cut,
}

impl Report {
    /// The largest buffer and the largest binding beside what one may be, and what is cut to keep to that: a line each.
    pub fn largest_lines(&self) -> Vec<String> {
        let may = |what: &str| match self.limits.iter().find(|limit| limit.what == what) {
            Some(limit) => format!(" of {} that one may have", human(limit.bytes)),
            None => String::new(),
        };
        let line = |name: &str, largest: &Option<Largest>, what: &str| {
            let largest = largest.as_ref()?;
            Some(format!("largest {name}: {}, {}{}", largest.name, human(largest.bytes), may(what)))
        };
        let Shards { buffers, weights, kv } = self.shards.clone().unwrap_or_default();
        let buffers = line("buffer", &self.largest_allocation, "allocation").map(|line| match buffers {
            0 => line,
            1 => format!("{line}; it is the only one"),
            n => format!("{line}; {n} buffers in all"),
        });
        let weights = weights.most.map(|most| {
            let Cut { cut, shards } = weights.all;
            let rest = if cut == 1 {
                String::new()
            } else {
                format!(", and {} others in {}", cut - 1, shards - most.shards)
            };
            format!("matrices cut to bindings: {} in {} shards{rest}", most.name, most.shards)
        });
        let kv = (kv.cut > 0).then(|| {
            format!("layers of keys and values cut to bindings: {} in {} shards", kv.cut, kv.shards)
        });
        let binding = line("binding", &self.largest_binding, "binding");
        [buffers, binding, weights, kv].into_iter().flatten().collect()
    }
}
