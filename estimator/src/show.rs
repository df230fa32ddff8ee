//! A whole plan as text that a person can read and a diff can show.

use crate::plan::{Plan, Segment, View};
use std::fmt;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, geometry, profile, .. } = self;
        writeln!(f, "{} ({}), {} parameters", model.name, model.architecture, model.parameters)?;
        writeln!(
            f,
            "context {}, slots {}, chunk {}, kv {}, logit rows {}, on {}",
            geometry.context,
            geometry.slots,
            geometry.prefill_chunk,
            geometry.kv,
            geometry.logit_rows,
            profile.name
        )?;
        for segment in Segment::ALL {
            writeln!(f, "  {:<12} {:>14}", segment.name(), self.segment_bytes(segment))?;
        }
        writeln!(f, "  {:<12} {:>14}  (load peak {})", "total", self.total(), self.load_peak())?;

        writeln!(f, "\nbuffers")?;
        for buffer in &self.buffers {
            writeln!(f, "  {:<12} {:>14}", buffer.name, buffer.bytes)?;
        }
        writeln!(f, "\nweights")?;
        for group in &self.groups {
            let (record, shards) = (&group.record, &group.shards);
            write!(
                f,
                "  {} × {} {}, stride {}:",
                group.rows,
                record.cols(),
                record.format(),
                record.stride()
            )?;
            for shard in shards {
                write!(f, " rows {}+{} at {}", shard.first_row, shard.rows, At(self, &shard.view))?;
            }
            writeln!(f)?;
        }
        writeln!(f, "\nkv")?;
        for kind in &self.kv.kinds {
            let window = kind.window.map_or("full".to_owned(), |w| format!("window {w}"));
            writeln!(f, "  {window}: {} pages a slot, {} in all", kind.pages_per_slot, kind.pages)?;
        }
        for (i, layer) in self.kv.layers.iter().enumerate() {
            write!(f, "  layer {i}, kind {}, pages of {} bytes:", layer.kind, layer.page_bytes)?;
            for segment in &layer.segments {
                write!(f, " pages {}+{} at {}", segment.first_page, segment.pages, At(self, &segment.view))?;
            }
            writeln!(f)?;
        }
        for layer in &self.recurrent.layers {
            write!(f, "  state {}, {} bytes a slot:", layer.state.0, layer.shape.bytes())?;
            for s in &layer.segments {
                let (states, tails) = (At(self, &s.states), At(self, &s.tails));
                write!(f, " places {}+{} at {states}, tails at {tails}", s.first, s.places)?;
            }
            writeln!(f)?;
        }
        writeln!(f, "\nkv ranges: {} of {} tokens", self.ranges.count, self.ranges.tokens)?;
        writeln!(f, "\nkernels")?;
        for (i, kernel) in self.kernels.iter().enumerate() {
            writeln!(f, "  {i:>2} {}", kernel.name())?;
        }
        for program in &self.programs {
            writeln!(f, "\nprogram {:?}, up to {} tokens", program.name, program.max_tokens)?;
            for d in &program.dispatches {
                write!(f, "  {:<28} kernel {:>2} params {:>3}", d.label, d.kernel, d.params)?;
                let count = &d.workgroups;
                write!(f, "  {}⌈{:?}/{}⌉", if count.plus > 0 { "(" } else { "" }, count.unit, count.tile)?;
                match count.plus {
                    0 => write!(f, "×{}", count.per)?,
                    plus => write!(f, "+{plus})×{}", count.per)?,
                }
                if d.ranged {
                    write!(f, " per range")?;
                }
                for view in &d.views {
                    write!(f, "  {}", At(self, view))?;
                }
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

/// `arena.0[1024..2048]`.
struct At<'a>(&'a Plan, &'a View);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let At(plan, view) = self;
        let name = plan.buffers.get(view.buffer as usize).map_or("?", |b| b.name.as_str());
        write!(f, "{name}[{}..{}]", view.offset, view.offset + view.bytes)
    }
}
