//! What to try when an adapter is measured: the legal values of every field, one field at a time.

use super::{Delta, Reduce, Ssd, Tuning};
use crate::profile::Facts;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A field of [`Tuning`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Field {
    /// [`Tuning::reduce`].
    Reduce,
    /// [`Tuning::mat_vec_workgroup`].
    MatVecWorkgroup,
    /// [`Tuning::mat_vec_rows`].
    MatVecRows,
    /// [`Tuning::norm_values`].
    NormValues,
    /// [`Tuning::mat_mat_shared`].
    MatMatShared,
    /// [`Tuning::row_workgroup`].
    RowWorkgroup,
    /// [`Tuning::attention_workgroup`].
    AttentionWorkgroup,
    /// [`Tuning::attention_fill`].
    AttentionFill,
    /// [`Tuning::ssd`].
    Ssd,
    /// [`Tuning::delta`].
    Delta,
}

impl Field {
    /// All of them, in the order in which they are tried: what others' values depend on comes first.
    pub const ALL: [Field; 10] = [
        Field::MatMatShared,
        Field::Reduce,
        Field::MatVecWorkgroup,
        Field::MatVecRows,
        Field::NormValues,
        Field::RowWorkgroup,
        Field::AttentionWorkgroup,
        Field::AttentionFill,
        Field::Ssd,
        Field::Delta,
    ];

    /// As documents name it.
    pub const fn name(self) -> &'static str {
        match self {
            Field::Reduce => "reduce",
            Field::MatVecWorkgroup => "mat_vec_workgroup",
            Field::MatVecRows => "mat_vec_rows",
            Field::NormValues => "norm_values",
            Field::MatMatShared => "mat_mat_shared",
            Field::RowWorkgroup => "row_workgroup",
            Field::AttentionWorkgroup => "attention_workgroup",
            Field::AttentionFill => "attention_fill",
            Field::Ssd => "ssd",
            Field::Delta => "delta",
        }
    }

    /// Its value in a tuning, in words.
    pub fn value(self, tuning: &Tuning) -> String {
        match self {
            Field::Reduce => match tuning.reduce {
                Reduce::Subgroup => "subgroup".to_owned(),
                Reduce::Shared => "shared".to_owned(),
            },
            Field::MatVecWorkgroup => tuning.mat_vec_workgroup.to_string(),
            Field::MatVecRows => tuning.mat_vec_rows.to_string(),
            Field::NormValues => tuning.norm_values.to_string(),
            Field::MatMatShared => tuning.mat_mat_shared.to_string(),
            Field::RowWorkgroup => tuning.row_workgroup.to_string(),
            Field::AttentionWorkgroup => tuning.attention_workgroup.to_string(),
            Field::AttentionFill => tuning.attention_fill.to_string(),
            Field::Ssd => match tuning.ssd {
                Ssd::Sequential => "sequential".to_owned(),
                Ssd::Streaming { block } => format!("streaming {block}"),
                Ssd::Kernels { block } => format!("kernels {block}"),
            },
            Field::Delta => match tuning.delta {
                Delta::Sequential => "sequential".to_owned(),
                Delta::Blocks { block } => format!("blocks {block}"),
            },
        }
    }

    /// `base` with each other value that this field may have on an adapter and that is worth trying. Every one is legal
    /// ([`Tuning::checked`]) if `base` is but for this field.
    pub fn candidates(self, facts: &Facts, base: &Tuning) -> Vec<Tuning> {
        let numbers = |values: &[u32], set: fn(&mut Tuning, u32)| -> Vec<Tuning> {
            values.iter().map(|&value| changed(base, |tuning| set(tuning, value))).collect()
        };
        let mut all = match self {
            Field::Reduce => [Reduce::Subgroup, Reduce::Shared]
                .into_iter()
                .map(|reduce| Tuning { reduce, ..base.clone() })
                .collect(),
            Field::MatVecWorkgroup => numbers(&[4, 8, 16, 32, 64, 128, 256], |t, v| t.mat_vec_workgroup = v),
            Field::MatVecRows => numbers(&[64, 32, 16, 8, 4, 2, 1], |t, v| t.mat_vec_rows = v),
            Field::NormValues => {
                numbers(&[0, 1 << 18, 1 << 20, 1 << 22, 1 << 23, 1 << 24], |t, v| t.norm_values = v)
            }
            Field::MatMatShared => numbers(&[0, 1], |t, v| t.mat_mat_shared = v == 1),
            Field::RowWorkgroup => numbers(&[4, 8, 16, 32, 64, 128, 256], |t, v| t.row_workgroup = v),
            Field::AttentionWorkgroup => numbers(&[8, 16, 32, 64], |t, v| t.attention_workgroup = v),
            Field::AttentionFill => {
                numbers(&[1, 2, 4, 8, 16, 32, 64, 256, 1024], |t, v| t.attention_fill = v)
            }
            Field::Ssd => [16, 32, 64]
                .map(|block| Ssd::Streaming { block })
                .into_iter()
                .chain([16, 32, 64, 128].map(|block| Ssd::Kernels { block }))
                .chain([Ssd::Sequential])
                .map(|ssd| Tuning { ssd, ..base.clone() })
                .collect(),
            Field::Delta => [Delta::Sequential, Delta::Blocks { block: 16 }, Delta::Blocks { block: 32 }]
                .into_iter()
                .map(|delta| Tuning { delta, ..base.clone() })
                .collect::<Vec<_>>(),
        };
        all.retain(|tuning| tuning != base && tuning.checked(facts).is_ok());
        all
    }
}

fn changed(base: &Tuning, change: impl Fn(&mut Tuning)) -> Tuning {
    let mut tuning = base.clone();
    change(&mut tuning);
    tuning
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
