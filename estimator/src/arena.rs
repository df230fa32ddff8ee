//! The activation arena: tensors packed by liveness, so that two that are never alive together share bytes.

use crate::plan::ALIGN;

/// A tensor to place: its size and the first and last op (inclusive) at which it is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Bytes; rounded up to [`ALIGN`].
    pub bytes: u64,
    /// First op that writes it.
    pub first: u32,
    /// Last op that uses it.
    pub last: u32,
}

/// Where an item went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Arena buffer.
    pub buffer: u32,
    /// Bytes from its start.
    pub offset: u64,
}

/// Packs items into as few buffers of at most `max` bytes as a first fit by falling size finds. Items alive at the
/// same op never overlap. Answers the places and the bytes of each buffer; `Err(i)` when item `i` alone exceeds `max`.
pub fn pack(items: &[Item], max: u64) -> Result<(Vec<Place>, Vec<u64>), usize> {
    let size = |item: &Item| item.bytes.max(1).next_multiple_of(ALIGN);
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(size(&items[i])), items[i].first, i));
    let mut places: Vec<Option<Place>> = vec![None; items.len()];
    let mut sizes: Vec<u64> = Vec::new();
    for &i in &order {
        let bytes = size(&items[i]);
        if bytes > max {
            return Err(i);
        }
        let alive = |j: usize| items[j].first <= items[i].last && items[i].first <= items[j].last;
        let mut buffer = 0;
        let place = loop {
            // What stands in this buffer at the same time, by offset: the item goes in the lowest gap that holds it.
            let mut taken: Vec<(u64, u64)> = order
                .iter()
                .filter_map(|&j| {
                    places[j].filter(|p| p.buffer == buffer && alive(j)).map(|p| (p.offset, size(&items[j])))
                })
                .collect();
            taken.sort_unstable();
            let mut offset = 0;
            for (start, len) in taken {
                if start >= offset + bytes {
                    break;
                }
                offset = offset.max(start + len);
            }
            if offset + bytes <= max {
                break Place { buffer, offset };
            }
            buffer += 1;
        };
        let index = place.buffer as usize;
        if sizes.len() <= index {
            sizes.resize(index + 1, 0);
        }
        sizes[index] = sizes[index].max(place.offset + bytes);
        places[i] = Some(place);
    }
    Ok((places.into_iter().flatten().collect(), sizes))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn item(bytes: u64, first: u32, last: u32) -> Item {
        Item { bytes, first, last }
    }

    #[test]
    fn tensors_that_never_meet_share_bytes() {
        let (places, sizes) = pack(&[item(1000, 0, 1), item(1000, 2, 3), item(256, 1, 2)], 1 << 20).unwrap();
        assert_eq!(places[0].offset, places[1].offset);
        assert_eq!(sizes, [1024 + 256]);
    }

    #[test]
    fn a_full_buffer_opens_the_next() {
        let (places, sizes) = pack(&[item(512, 0, 1), item(512, 0, 1)], 512).unwrap();
        assert_eq!((places[0].buffer, places[1].buffer), (0, 1));
        assert_eq!(sizes, [512, 512]);
        assert_eq!(pack(&[item(513, 0, 1)], 512), Err(0));
    }

    proptest! {
        #[test]
        fn live_tensors_never_overlap(
            raw in prop::collection::vec((1u64..5000, 0u32..30, 0u32..6), 1..60),
            max in 5120u64..20_000,
        ) {
            let items: Vec<Item> = raw.iter().map(|&(b, f, l)| item(b, f, f + l)).collect();
            let (places, sizes) = pack(&items, max).unwrap();
            prop_assert_eq!(places.len(), items.len());
            for (i, (a, p)) in items.iter().zip(&places).enumerate() {
                prop_assert!(p.offset.is_multiple_of(ALIGN));
                prop_assert!(p.offset + a.bytes <= sizes[p.buffer as usize]);
                prop_assert!(sizes[p.buffer as usize] <= max);
                for (b, q) in items.iter().zip(&places).skip(i + 1) {
                    let together = a.first <= b.last && b.first <= a.last && p.buffer == q.buffer;
                    let apart = p.offset + a.bytes <= q.offset || q.offset + b.bytes <= p.offset;
                    prop_assert!(!together || apart);
                }
            }
        }
    }
}
