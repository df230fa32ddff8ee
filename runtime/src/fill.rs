//! Filling what a load only promised with bytes that nothing can make smaller: pages of zeros, and any pattern, are
//! what a system that compresses memory keeps for nothing, so a size measured with them is not one that real keys and
//! values have.

use crate::rng::Rng;
use crate::{Runtime, RuntimeError};
use plimsoll_estimator::plan::Role;

/// Leaves the sign and the fraction of two halves, or of one float, and keeps the highest bit of the exponent at 0:
/// whatever a kernel reads before it writes is a number below 2, and no infinity that a mask of zeros would turn into
/// something that is not a number.
const FINITE: u64 = 0xBFFF_BFFF_BFFF_BFFF;

/// Bytes in these take part: what is written after a load, and at no known value before it.
fn filled(role: Role) -> bool {
    match role {
        Role::Kv | Role::Recurrent | Role::Arena | Role::Retained => true,
        Role::Matrices | Role::Vectors | Role::Step | Role::Params | Role::Upload | Role::Readback => false,
    }
}

impl Runtime {
    /// Writes pseudo-random numbers into every byte of keys and values, recurrent states, activations and snapshots,
    /// through the buffers that steps are uploaded with: nothing is allocated. Sequences that are held lose what they
    /// hold, so do this while there are none. Answers how many bytes were written.
    ///
    /// # Errors
    /// Those of a step: a lost device, a map or a submit that fails.
    pub fn fill(&mut self, seed: u64) -> Result<u64, RuntimeError> {
        self.device.check("the device")?;
        let plan = self.admitted.plan();
        let mut rng = Rng::new(seed);
        let mut written = 0_u64;
        for (index, planned) in (0_u32..).zip(&plan.buffers).filter(|(_, buffer)| filled(buffer.role)) {
            let target = self.buffers.get(index)?;
            let mut at = 0;
            while at < planned.bytes {
                let (buffer, upload) = self.ring.current(&self.buffers)?;
                let bytes = buffer.bytes().min(planned.bytes - at);
                upload.write(&self.device, buffer, |mut out| {
                    // In pieces: what is mapped may be memory that is best written once and in order.
                    let mut piece = [0_u8; 4096];
                    let end = usize::try_from(bytes).unwrap_or(usize::MAX).min(out.len());
                    let mut from = 0;
                    while from < end {
                        let to = end.min(from + piece.len());
                        for word in piece.chunks_exact_mut(8) {
                            word.copy_from_slice(&(rng.next_u64() & FINITE).to_le_bytes());
                        }
                        out.slice(from..to).copy_from_slice(&piece[..to - from]);
                        from = to;
                    }
                    Ok(())
                })?;
                let mut encoder = self.device.encoder("fill");
                encoder.copy_buffer_to_buffer(buffer.raw(), 0, target.raw(), at, bytes);
                let submitted = self.device.submit(encoder.finish())?;
                upload.used(buffer, submitted);
                self.ring.advance();
                at += bytes;
            }
            written += planned.bytes;
        }
        self.device.wait_idle()?;
        Ok(written)
    }
}
