//! Gated delta rule, token by token: decode, and what takes every shape.

use super::{delta, lanes};
use crate::Profile;
use crate::shader::{Access, Shader};
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// What the pipeline is generated from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Variant {
    /// `Ek`.
    pub key_dim: u32,
    /// Neighbouring columns of a lane: 1, 2 or 4.
    pub own: u32,
    /// Lanes side by side over columns.
    pub lanes: u32,
    /// Lanes that share a column.
    pub parts: u32,
    /// The workgroup is 8 lanes of one subgroup with whole columns; each loads an eighth of q and k and hands
    /// it to the others.
    pub broadcast: bool,
}

/// Lanes of a workgroup with whole columns.
const LANES: u32 = 8;

impl Variant {
    /// Variants that between them use every text.
    pub fn all() -> Vec<Self> {
        let variant = |key_dim, own, lanes, parts, broadcast| Self { key_dim, own, lanes, parts, broadcast };
        vec![
            variant(128, 1, 16, 8, false),
            variant(256, 1, 16, 8, false),
            variant(33, 2, 16, 4, false),
            variant(32, 4, 8, 1, false),
            variant(128, 2, 8, 1, true),
            variant(17, 4, 8, 1, true),
        ]
    }

    /// The variant for heads of this size.
    pub(crate) fn of(profile: &Profile, key_dim: u32) -> Self {
        if profile.cpu {
            // A lane of a software driver has a register file of any size, but long texts compile slowly.
            let own = [4, 2].into_iter().find(|own| key_dim <= 256 / own).unwrap_or(1);
            let broadcast = profile.subgroups && profile.subgroup_size.0 >= LANES;
            return Self { key_dim, own, lanes: LANES, parts: 1, broadcast };
        }
        // 64 bytes of neighbouring columns, and at most 32 rows a lane.
        Self { key_dim, own: 1, lanes: 16, parts: 8, broadcast: false }
    }

    /// Rows a lane handles at a time, and how often.
    fn groups(&self) -> (u32, u32) {
        let rows = self.key_dim.div_ceil(self.parts);
        if self.broadcast { (LANES, rows.div_ceil(LANES)) } else { (rows, 1) }
    }

    /// Operations for a token and the columns of a workgroup.
    pub(crate) fn flops(&self) -> u64 {
        // Two products and an update, and k·k, q·q and k·q.
        6 * u64::from(self.key_dim) * (u64::from(self.columns()) + 1)
    }

    /// Columns of a workgroup.
    pub(crate) fn columns(&self) -> u32 {
        self.own * self.lanes
    }

    /// Reads and writes of the columns of a lane, and their sums over the parts.
    fn own_text(&self) -> String {
        let (ty, names) = match self.own {
            1 => ("f32", &[""][..]),
            2 => ("vec2<f32>", &[".x", ".y"][..]),
            _ => ("vec4<f32>", &[".x", ".y", ".z", ".w"][..]),
        };
        let mut text = format!("alias Own = {ty};\n");
        for (name, buffer) in [("value", "qkv"), ("state", "states")] {
            let columns: Vec<_> = (0..names.len())
                .map(|c| format!("{buffer}[at + min(column + {c}u, p.value_dim - 1u)]"))
                .collect();
            let columns = columns.join(", ");
            let _ =
                writeln!(text, "fn load_{name}(at: u32, column: u32) -> Own {{ return Own({columns}); }}");
        }
        for (name, buffer) in [("out", "out"), ("state", "states")] {
            let _ = writeln!(text, "fn store_{name}(at: u32, column: u32, value: Own) {{");
            for (c, field) in names.iter().enumerate() {
                let _ = writeln!(
                    text,
                    "    if (column + {c}u < p.value_dim) {{ {buffer}[at + column + {c}u] = value{field}; }}"
                );
            }
            text.push_str("}\n");
        }
        text
    }
}

impl Shader for Variant {
    fn name(&self) -> String {
        let Self { key_dim, own, lanes, parts, broadcast } = self;
        let broadcast = if *broadcast { "_broadcast" } else { "" };
        format!("delta_sequential_e{key_dim}_{lanes}x{own}x{parts}{broadcast}")
    }

    fn wgsl(&self) -> String {
        let (each, groups) = self.groups();
        let (lanes_text, spread, total) = match (self.broadcast, self.parts) {
            (true, _) => (
                include_str!("delta_lanes_subgroup.wgsl"),
                include_str!("delta_spread_broadcast.wgsl"),
                include_str!("delta_total_broadcast.wgsl"),
            ),
            (false, 2..) => (
                delta::LANES,
                include_str!("delta_spread_load.wgsl"),
                include_str!("delta_total_shared.wgsl"),
            ),
            (false, _) => {
                (delta::LANES, include_str!("delta_spread_load.wgsl"), include_str!("delta_total_one.wgsl"))
            }
        };
        let text = include_str!("delta_sequential.wgsl").replace("SPREAD\n", spread);
        let counts = [("GROUPS", groups), ("EACH", each)];
        delta::source(self.workgroup(), self.key_dim, self.columns())
            .constant("LANES", self.lanes)
            .constant("OWN", self.own)
            .constant("EACH", each)
            .constant("ROWS", each * groups)
            .flag("EXACT", each * groups * self.parts == self.key_dim)
            .text(&self.own_text())
            .text(lanes_text)
            .text(&lanes::unroll(&text, &counts))
            .text(total)
            .finish()
    }

    fn operands(&self) -> Vec<Access> {
        delta::ACCESSES.to_vec()
    }

    fn workgroup(&self) -> u32 {
        self.lanes * self.parts
    }
}
