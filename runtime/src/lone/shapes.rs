//! The kernels that ceilings are measured with: the same work in several shapes, since no adapter likes all of them and
//! what it does with a shape it dislikes is no ceiling. (A software driver spends most of a short loop on the loop: it
//! likes many loads and many multiply-adds in each round, and few accumulators.)

use super::ceilings::BYTES;

/// How a buffer is read, or copied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    /// Invocations of a workgroup.
    pub workgroup: u32,
    /// 32-bit words of an element: 1, 2 or 4.
    pub words: u32,
    /// Elements an invocation takes; neighbours take neighbours.
    pub per: u32,
    /// Elements loaded before any is used.
    pub ahead: u32,
    /// Each element is written to a second buffer; otherwise their sum is kept.
    pub copy: bool,
}

/// How multiply-adds are chained.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chains {
    /// Invocations of a workgroup.
    pub workgroup: u32,
    /// Floats of an accumulator: 1 or 4.
    pub floats: u32,
    /// Accumulators that do not wait for each other.
    pub chains: u32,
    /// Steps of each without the loop coming round.
    pub unroll: u32,
    /// `a * b + c` instead of `fma(a, b, c)`.
    pub apart: bool,
}

/// Invocations of a kernel of multiply-adds.
const INVOCATIONS: u32 = 65_536;
/// Multiply-adds of each float of an accumulator.
const STEPS: u32 = 512;

impl Memory {
    pub const ALL: [Memory; 16] = [
        Self::reads(16, 4, 64, 4),
        Self::reads(32, 4, 32, 8),
        Self::reads(64, 2, 16, 4),
        Self::reads(64, 4, 16, 4),
        Self::reads(16, 2, 256, 4),
        Self::reads(16, 4, 256, 4),
        Self::reads(32, 2, 32, 8),
        Self::reads(256, 4, 8, 4),
        Self::reads(256, 4, 4, 1),
        Self::reads(8, 4, 64, 8),
        Self::reads(8, 4, 64, 1),
        Self::reads(64, 1, 64, 8),
        Self::copies(16, 4, 64, 4),
        Self::copies(64, 2, 16, 4),
        Self::copies(64, 4, 16, 4),
        Self::copies(256, 4, 4, 1),
    ];

    const fn reads(workgroup: u32, words: u32, per: u32, ahead: u32) -> Self {
        Self { workgroup, words, per, ahead, copy: false }
    }

    const fn copies(workgroup: u32, words: u32, per: u32, ahead: u32) -> Self {
        Self { workgroup, words, per, ahead, copy: true }
    }

    /// Workgroups that take the whole buffer.
    pub fn groups(&self) -> u32 {
        (BYTES / 4) as u32 / self.words / self.workgroup / self.per
    }

    /// In words.
    pub fn name(&self) -> String {
        let Self { workgroup, words, per, ahead, .. } = *self;
        format!("{workgroup} invocations, {words} words each, {per} times, {ahead} at once")
    }

    pub fn wgsl(&self) -> String {
        let Self { workgroup, words, per, ahead, copy } = *self;
        let ty = if words == 1 { "u32".to_owned() } else { format!("vec{words}<u32>") };
        let at = |u: u32| format!("at + {}u", u * workgroup);
        let load: String = (0..ahead).map(|u| format!("let v{u} = a[{}];\n", at(u))).collect();
        let put: String = match copy {
            true => (0..ahead).map(|u| format!("b[{}] = v{u};\n", at(u))).collect(),
            false => format!("sum = sum{};\n", (0..ahead).map(|u| format!(" ^ v{u}")).collect::<String>()),
        };
        let lone = if words == 1 { "" } else { ".x" };
        let end = if copy { String::new() } else { format!("if sum{lone} == 0x12345u {{ b[0] = sum; }}") };
        format!(
            "@group(0) @binding(0) var<storage, read> a: array<{ty}>;
             @group(0) @binding(1) var<storage, read_write> b: array<{ty}>;
             @compute @workgroup_size({workgroup})
             fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) l: u32) {{
                 var sum = {ty}(0u);
                 var at = w.x * {}u + l;
                 for (var j = 0u; j < {}u; j++) {{
                     {load} {put}
                     at += {}u;
                 }}
                 {end}
             }}",
            workgroup * per,
            per / ahead,
            workgroup * ahead,
        )
    }
}

impl Chains {
    pub const ALL: [Chains; 11] = [
        Self::of(8, 4, 2, 32),
        Self::of(8, 1, 12, 16),
        Self::of(8, 1, 10, 16),
        Self::of(64, 1, 8, 8),
        Self::of(64, 4, 4, 8),
        Self { apart: true, ..Self::of(8, 4, 4, 8) },
        Self { apart: true, ..Self::of(8, 1, 8, 16) },
        Self::of(8, 1, 8, 32),
        Self::of(32, 4, 8, 1),
        Self::of(256, 4, 8, 1),
        Self::of(256, 1, 8, 16),
    ];

    const fn of(workgroup: u32, floats: u32, chains: u32, unroll: u32) -> Self {
        Self { workgroup, floats, chains, unroll, apart: false }
    }

    /// Workgroups.
    pub fn groups(&self) -> u32 {
        INVOCATIONS / self.workgroup
    }

    /// Operations of all of them: a multiply-add is two.
    pub fn flops(&self) -> u64 {
        u64::from(INVOCATIONS) * u64::from(self.floats) * u64::from(self.chains) * u64::from(STEPS) * 2
    }

    /// In words.
    pub fn name(&self) -> String {
        let Self { workgroup, floats, chains, unroll, apart } = *self;
        let how = if apart { "a * b + c" } else { "fma" };
        format!("{workgroup} invocations, {chains} chains of {floats} floats, {how} {unroll} times a round")
    }

    pub fn wgsl(&self) -> String {
        let Self { workgroup, floats, chains, unroll, apart } = *self;
        let ty = if floats == 1 { "f32".to_owned() } else { format!("vec{floats}<f32>") };
        let declare: String = (0..chains).map(|c| format!("var s{c} = {ty}(x + {c}.0);\n")).collect();
        let one = |c: u32| match apart {
            true => format!("s{c} = s{c} * k + m;\n"),
            false => format!("s{c} = fma(s{c}, k, m);\n"),
        };
        let round: String = (0..unroll).flat_map(|_| (0..chains).map(one)).collect();
        let sum: String = (0..chains).map(|c| format!(" + s{c}")).collect();
        format!(
            "@group(0) @binding(0) var<storage, read> a: array<f32>;
             @group(0) @binding(1) var<storage, read_write> b: array<{ty}>;
             @compute @workgroup_size({workgroup})
             fn main(@builtin(global_invocation_id) g: vec3<u32>) {{
                 let x = f32(g.x);
                 let k = {ty}(a[0]);
                 let m = {ty}(a[1]);
                 {declare}
                 for (var j = 0u; j < {}u; j++) {{ {round} }}
                 b[g.x] = {ty}(0.0){sum};
             }}",
            STEPS / unroll
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_take_the_whole_of_it() {
        for m in Memory::ALL {
            assert_eq!(m.per % m.ahead, 0, "{m:?}");
            let bytes = u64::from(m.groups()) * u64::from(m.workgroup) * u64::from(m.per * m.words) * 4;
            assert_eq!(bytes, BYTES, "{m:?}");
            // WebGPU's least that every adapter has.
            assert!(m.groups() <= 65_535, "{m:?}");
        }
        for c in Chains::ALL {
            assert_eq!((STEPS % c.unroll, INVOCATIONS % c.workgroup), (0, 0), "{c:?}");
        }
    }
}
