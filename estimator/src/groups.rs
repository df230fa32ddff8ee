//! Weight groups: which matrices are stacked, how their rows are sharded, and where they stand.

use crate::error::{Limit, PlanError};
use crate::plan::{Shard, View, WeightGroup};
use crate::pool::Pool;
use plimsoll_kernels::{Profile, Record};
use plimsoll_models::Model;
use plimsoll_models::graph::{MatrixId, Op};
use rustc_hash::FxHashMap;

/// The groups of a model and how ops find them.
#[derive(Debug)]
pub(crate) struct Groups {
    pub all: Vec<WeightGroup>,
    by_parts: FxHashMap<Vec<MatrixId>, usize>,
}

impl Groups {
    /// Stacks and places every matrix the graph names.
    pub fn place(model: &Model, profile: &Profile, pool: &mut Pool) -> Result<Self, PlanError> {
        let mut groups = Self { all: Vec::new(), by_parts: FxHashMap::default() };
        let mut owner: FxHashMap<MatrixId, usize> = FxHashMap::default();
        for (label, op) in &model.graph.ops {
            for parts in stacks(model, label, op)? {
                if groups.by_parts.contains_key(&parts) {
                    continue;
                }
                for part in &parts {
                    if owner.insert(*part, groups.all.len()).is_some() {
                        return Err(PlanError::graph(label, "a matrix is stacked in two ways"));
                    }
                }
                let group = place(model, label, &parts, profile, pool)?;
                groups.by_parts.insert(parts, groups.all.len());
                groups.all.push(group);
            }
        }
        Ok(groups)
    }

    /// The group of exactly these parts.
    pub fn get(&self, parts: &[MatrixId]) -> Option<&WeightGroup> {
        self.by_parts.get(parts).and_then(|&i| self.all.get(i))
    }
}

/// The stacks an op reads, top to bottom: neighbours of one format and width make one stack. Parts with biases are
/// not stacked, so that each keeps its own.
pub(crate) fn stacks(model: &Model, label: &str, op: &Op) -> Result<Vec<Vec<MatrixId>>, PlanError> {
    let (parts, apart) = match op {
        Op::Embed { table, .. } => return Ok(vec![vec![*table]]),
        Op::Linear { parts, bias, .. } => (parts, !bias.is_empty()),
        Op::Experts { experts, .. } => return Ok(vec![vec![*experts]]),
        Op::Priced { matrices, .. } => return Ok(matrices.iter().map(|id| vec![*id]).collect()),
        _ => return Ok(Vec::new()),
    };
    let mut stacks: Vec<Vec<MatrixId>> = Vec::new();
    let mut last = None;
    for &id in parts {
        let matrix = model.matrix(id).ok_or_else(|| PlanError::graph(label, "no such matrix"))?;
        let key = (matrix.format, matrix.cols);
        match stacks.last_mut() {
            Some(stack) if last == Some(key) && !apart => stack.push(id),
            _ => stacks.push(vec![id]),
        }
        last = Some(key);
    }
    Ok(stacks)
}

fn place(
    model: &Model,
    label: &str,
    parts: &[MatrixId],
    profile: &Profile,
    pool: &mut Pool,
) -> Result<WeightGroup, PlanError> {
    let matrices = || parts.iter().filter_map(|&id| model.matrix(id));
    let first = matrices().next().ok_or_else(|| PlanError::graph(label, "a linear op without matrices"))?;
    let record = Record::new(first.format, first.cols).ok_or_else(|| {
        PlanError::graph(
            label,
            format!("rows of {} values are not whole {} blocks", first.cols, first.format),
        )
    })?;
    let total: u64 = matrices().map(|m| u64::from(m.rows)).sum();
    let rows = u32::try_from(total).map_err(|_| PlanError::graph(label, "more than 2^32 rows"))?;
    let stride = record.stride();
    // Shards of a stack end where experts do.
    let experts = if parts.len() == 1 { first.experts.max(1) } else { 1 };
    let unit = match rows / experts {
        _ if experts == 1 => record.rows_per_shard_unit(),
        0 => return Err(PlanError::graph(label, "experts without rows")),
        n => {
            let expert = stride * u64::from(n);
            let units = 256 / (256u64.min(1 << expert.trailing_zeros()));
            u32::try_from(units * u64::from(n)).map_err(|_| PlanError::graph(label, "more than 2^32 rows"))?
        }
    };
    let limits = &profile.limits;
    let most = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size);
    if stride * u64::from(unit.min(rows)) > most {
        let rows = if unit == 1 { "a row".to_owned() } else { format!("{unit} rows") };
        let name = format!("{rows} of {}", first.source.name());
        return Err(PlanError::Limit {
            limit: Limit::Binding,
            name,
            need: stride * u64::from(unit),
            have: most,
        });
    }
    let whole_units = |bytes: u64| (bytes / stride).min(u64::from(u32::MAX)) as u32 / unit * unit;
    let mut shards = Vec::new();
    let mut row = 0;
    while row < rows {
        let left = rows - row;
        let bytes = stride * u64::from(left);
        let here = if bytes <= most && bytes <= pool.room() {
            left
        } else {
            // Fill what is left of the buffer, if that is worth a binding of its own.
            let room = whole_units(most.min(pool.room()));
            let fresh = whole_units(most).min(left);
            if room > 0 && room >= fresh / 4 { room.min(left) } else { fresh }
        };
        shards.push(Shard { first_row: row, rows: here, view: pool.place(stride * u64::from(here)) });
        row += here;
    }
    Ok(WeightGroup { matrices: parts.to_vec(), record, rows, shards })
}

/// Cuts a shard so that no piece has more than `most` rows: work budgets bound a dispatch.
pub(crate) fn pieces(shard: &Shard, record: &Record, most: u64) -> Vec<Shard> {
    let stride = record.stride();
    let unit = u64::from(record.rows_per_shard_unit());
    let step = (most / unit * unit).max(unit).min(u64::from(u32::MAX)) as u32;
    let mut pieces = Vec::new();
    let mut row = 0;
    while row < shard.rows {
        let rows = step.min(shard.rows - row);
        let view = View {
            buffer: shard.view.buffer,
            offset: shard.view.offset + stride * u64::from(row),
            bytes: stride * u64::from(rows),
        };
        pieces.push(Shard { first_row: shard.first_row + row, rows, view });
        row += rows;
    }
    pieces
}
