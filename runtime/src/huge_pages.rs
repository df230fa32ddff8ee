//! Huge pages for the buffers of software drivers. Their device memory is this process's, in pages of 4 KiB unless the
//! system is asked for more; a decode step walks through all weights, and then looks up pages all the time.
//!
//! Measured on lavapipe (Mesa 22.3, `transparent_hugepage` at `madvise`), decode in one run: Gemma 3 270M 8.7 and 11.2
//! tokens a second without, 13.1 and 14.0 with; SmolLM2-135M 16.0 and 18.1 without, 19.5 and 20.2 with.
//!
//! What is asked for is a hint about speed: every byte of a plan's buffers is touched at load anyway, so nothing
//! more becomes resident than was promised.

use crate::Device;

/// First address and the one behind the last.
#[cfg(target_os = "linux")]
type Region = (usize, usize);

/// The anonymous memory of the process before buffers are made.
pub(crate) struct Before(#[cfg(target_os = "linux")] Option<Vec<Region>>);

#[cfg(not(target_os = "linux"))]
impl Before {
    /// Nothing is asked for elsewhere.
    pub fn making(_: &Device) -> Self {
        Self()
    }

    /// Nothing to do.
    pub fn made(self) {}
}

#[cfg(target_os = "linux")]
impl Before {
    /// To be called before buffers are created.
    pub fn making(device: &Device) -> Self {
        Self(device.profile().cpu.then(regions).flatten())
    }

    /// Asks for huge pages in what has come since, before any of it is touched.
    pub fn made(self) {
        let Some(before) = self.0 else { return };
        for region in regions().unwrap_or_default() {
            for (start, end) in
                without(region, &before).into_iter().filter(|(start, end)| end - start >= HUGE)
            {
                // SAFETY: this advice changes no contents and no mapping; of memory that is gone by now, or that another
                // thread has mapped since, the system refuses it or takes it as it is meant.
                let answer =
                    unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_HUGEPAGE) };
                tracing::debug!(bytes = end - start, granted = answer == 0, "huge pages");
            }
        }
    }
}

/// A huge page of the usual machines; smaller regions have no room for one.
#[cfg(target_os = "linux")]
const HUGE: usize = 2 << 20;

/// Private anonymous memory that may be written, by rising address.
#[cfg(target_os = "linux")]
fn regions() -> Option<Vec<Region>> {
    Some(parse(&std::fs::read_to_string("/proc/self/maps").ok()?))
}

/// The same of the text of `/proc/self/maps`: `start-end perms offset device inode`, with nothing after it.
#[cfg(target_os = "linux")]
fn parse(maps: &str) -> Vec<Region> {
    let region = |line: &str| {
        let mut words = line.split_whitespace();
        let (range, perms) = (words.next()?, words.next()?);
        let inode = words.nth(2)?;
        let (start, end) = range.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        let anonymous = perms == "rw-p" && inode == "0" && words.next().is_none();
        anonymous.then_some((address(start)?, address(end)?)).filter(|(start, end)| start < end)
    };
    maps.lines().filter_map(region).collect()
}

/// What of a region is in none of `known`, which rise.
#[cfg(target_os = "linux")]
fn without(region: Region, known: &[Region]) -> Vec<Region> {
    let (mut parts, mut at) = (Vec::new(), region.0);
    for &(start, end) in known.iter().filter(|k| k.1 > region.0 && k.0 < region.1) {
        if start > at {
            parts.push((at, start));
        }
        at = at.max(end);
    }
    if at < region.1 {
        parts.push((at, region.1));
    }
    parts
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn only_anonymous_memory_that_may_be_written_counts() {
        let maps = "1000-3000 rw-p 00000000 00:00 0 \n\
                    4000-5000 r--p 00000000 00:00 0\n\
                    5000-6000 rw-p 00000000 08:01 77                         /a/file\n\
                    7000-9000 rw-p 00000000 00:00 0                          [heap]\n\
                    a000-c000 rw-s 00000000 00:00 0\n\
                    nonsense\n\
                    d000-f000 rw-p 00000000 00:00 0\n";
        assert_eq!(parse(maps), [(0x1000, 0x3000), (0xd000, 0xf000)]);
        assert!(parse("").is_empty());
    }

    #[test]
    fn what_was_there_before_is_left_out() {
        let known = [(10, 20), (30, 40), (90, 95)];
        assert_eq!(without((0, 100), &known), [(0, 10), (20, 30), (40, 90), (95, 100)]);
        assert!(without((12, 18), &known).is_empty());
        assert_eq!(without((15, 35), &known), [(20, 30)]);
        assert_eq!(without((40, 50), &known), [(40, 50)]);
        assert_eq!(without((0, 5), &[]), [(0, 5)]);
    }

    #[test]
    fn this_process_has_such_memory() {
        assert!(!regions().unwrap_or_default().is_empty());
    }
}
