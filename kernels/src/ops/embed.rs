//! Rows of the embedding table: `out[t] = scale · table[ids[t]]`.
//!
//! Grid: `ceil(octs / 64)` workgroups of 64 a token, an oct (8 values) an invocation. Workgroup memory: none.
//! Limits: 4 storage buffers. A table of several shards takes one dispatch a shard, each writing the rows it has.

use crate::shader::{Access, Shader, Source};
use crate::unpack::unpackers;
use crate::{Call, Cost, Count, Format, Profile, Record, Unit};
use serde::{Deserialize, Serialize};

/// What the pipeline is generated from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Variant {
    /// Stored format of the table.
    pub format: Format,
}

crate::params! {
    /// Sizes and places.
    pub struct Params {
        /// `D`.
        width: u32,
        /// Octs of a row.
        octs: u32,
        /// Words between rows of the table.
        w_stride: u32,
        /// Workgroups for one token.
        per_row: u32,
        /// First table row of this shard.
        first_row: u32,
        /// Rows of this shard.
        rows: u32,
        /// Word of the ids in the step tables.
        ids: u32,
        /// Values between rows of out.
        out_stride: u32,
        /// Factor.
        scale: f32,
    }
}

/// Sizes and places.
#[derive(Clone, Debug, PartialEq)]
pub struct Args {
    /// Stored format of the table.
    pub format: Format,
    /// `D`, whole blocks of the format.
    pub width: u32,
    /// First table row of this shard; tokens of other shards leave.
    pub first_row: u32,
    /// Rows of this shard.
    pub rows: u32,
    /// Factor.
    pub scale: f32,
    /// Word offset of the ids in the step tables.
    pub ids: u32,
    /// Values between rows of `out`.
    pub out_stride: u32,
}

const WORKGROUP: u32 = 64;

/// Plans the dispatch. Operands: table shard (Read), out (Write).
pub fn plan(_profile: &Profile, args: &Args) -> Call {
    let record = Record::new(args.format, args.width);
    let (octs, stride) = record.map_or((0, 0), |r| (r.octs(), r.stride()));
    let per_row = octs.div_ceil(WORKGROUP).max(1);
    let params = Params {
        width: args.width,
        octs,
        w_stride: (stride / 4) as u32,
        per_row,
        first_row: args.first_row,
        rows: args.rows,
        ids: args.ids,
        out_stride: args.out_stride,
        scale: args.scale,
    };
    Call {
        kernel: Variant { format: args.format }.into(),
        params: params.words(),
        workgroups: Count::each(Unit::Tokens, 1, per_row),
        rows: Unit::Tokens,
        cost: Cost {
            bytes_per_row: stride + 4 * u64::from(args.width) + 4,
            flops_per_row: 2 * u64::from(args.width),
            ..Cost::default()
        },
    }
}

/// The CPU twin: rows of `ids` that this shard (`table`, device records) holds.
pub fn twin(args: &Args, ids: &[u32], table: &[u8], out: &mut [f32]) {
    let Some(record) = Record::new(args.format, args.width) else { return };
    let stride = record.stride() as usize;
    let mut row = vec![0.0; args.width as usize];
    for (token, id) in ids.iter().enumerate() {
        let Some(at) = id.checked_sub(args.first_row).filter(|at| *at < args.rows) else { continue };
        record.decode(&table[at as usize * stride..][..stride], &mut row);
        let out = &mut out[token * args.out_stride as usize..][..row.len()];
        for (out, v) in out.iter_mut().zip(&row) {
            *out = (f64::from(*v) * f64::from(args.scale)) as f32;
        }
    }
}

impl Variant {
    /// Variants that between them use every text.
    pub fn all() -> Vec<Self> {
        Format::ALL.into_iter().map(|format| Self { format }).collect()
    }
}

impl Shader for Variant {
    fn name(&self) -> String {
        format!("embed_{}", self.format)
    }

    fn wgsl(&self) -> String {
        let source = Source::new(Params::WGSL)
            .operand(0, Access::Read, "w", "array<u32>")
            .operand(1, Access::Write, "out", "array<f32>")
            .constant("WG", WORKGROUP);
        unpackers(source, self.format).text(include_str!("embed.wgsl")).finish()
    }

    fn operands(&self) -> Vec<Access> {
        vec![Access::Read, Access::Write]
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }
}
