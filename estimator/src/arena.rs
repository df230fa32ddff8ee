//! The activation arena: tensors packed by liveness, so that two that are never alive together share bytes.

use crate::plan::ALIGN;
use std::cmp::Reverse;

/// A tensor to place: its size and the first and last op (inclusive) at which it is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Bytes; rounded up to [`ALIGN`]. Without any it takes no room, and is a number alone.
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
///
/// Only items that are alive together with the one at hand are looked at, so a chain of layers takes time in proportion
/// to its length.
pub fn pack(items: &[Item], max: u64) -> Result<(Vec<Place>, Vec<u64>), usize> {
    // Past the end of the numbers is past any `max`, a multiple of the alignment.
    let max = max / ALIGN * ALIGN;
    let size = |item: &Item| item.bytes.max(1).checked_next_multiple_of(ALIGN).unwrap_or(u64::MAX);
    let mut order: Vec<(Reverse<u64>, u32, usize)> =
        items.iter().enumerate().map(|(i, item)| (Reverse(size(item)), item.first, i)).collect();
    order.sort_unstable();
    let mut places = vec![Place { buffer: 0, offset: 0 }; items.len()];
    let mut sizes: Vec<u64> = Vec::new();
    let mut lives = Lives::new(items);
    // What stands at the same time: buffer, offset, bytes.
    let mut taken: Vec<(u32, u64, u64)> = Vec::new();
    for &(Reverse(bytes), _, i) in &order {
        if items[i].bytes == 0 {
            continue;
        }
        if bytes > max {
            return Err(i);
        }
        taken.clear();
        lives.together(i, |j| {
            let Place { buffer, offset } = places[j];
            taken.push((buffer, offset, size(&items[j])));
        });
        taken.sort_unstable();
        // The item goes in the lowest gap of the first buffer that has one.
        let mut rest = taken.iter().peekable();
        let mut buffer = 0;
        let place = loop {
            let mut offset = 0;
            while let Some(&&(_, start, len)) = rest.peek().filter(|taken| taken.0 == buffer) {
                if start.checked_sub(offset).is_some_and(|gap| gap >= bytes) {
                    break;
                }
                offset = offset.max(start + len);
                rest.next();
            }
            if max - offset >= bytes {
                break Place { buffer, offset };
            }
            while rest.next_if(|taken| taken.0 == buffer).is_some() {}
            buffer += 1;
        };
        let index = place.buffer as usize;
        if sizes.len() <= index {
            sizes.resize(index + 1, 0);
        }
        sizes[index] = sizes[index].max(place.offset + bytes);
        places[i] = place;
        lives.add(i);
    }
    Ok((places, sizes))
}

/// The bytes of each buffer of [`pack`], without the places.
///
/// A model is few layers many times over, and layers that are alike stand alike: an item meets only those of its own
/// layer and those that are alive through all of them. So one layer of each kind is packed.
pub fn pack_sizes(items: &[Item], max: u64) -> Result<Vec<u64>, usize> {
    let mut kept = one_of_each(items);
    kept.retain(|&i| items.get(i).is_some_and(|item| item.bytes > 0));
    let some: Vec<Item> = kept.iter().filter_map(|&i| items.get(i)).copied().collect();
    let sizes = pack(&some, max).map(|(_, sizes)| sizes);
    sizes.map_err(|i| kept.get(i).copied().unwrap_or_default())
}

/// Layers that a layer is compared with.
const KINDS: usize = 16;

/// The items that a packing needs to look at, in order.
///
/// Ops are cut into layers where no more items are alive than where fewest are in the middle of the model. Between two
/// layers in which nothing that passes a cut begins or ends, nor in any layer between them, the same items pass through
/// both; if their own items are alike too, every item of the one stands where that of the other does.
fn one_of_each(items: &[Item]) -> Vec<usize> {
    let ops = items.iter().map(|item| item.last as usize + 1).max().unwrap_or(0);
    if ops > 64 * items.len() || items.iter().any(|item| item.first > item.last) {
        return (0..items.len()).collect();
    }
    // How many are alive both at an op and at the one before it.
    let mut passing = vec![0i64; ops + 1];
    for item in items {
        passing[item.first as usize + 1] += 1;
        passing[item.last as usize + 1] -= 1;
    }
    for op in 1..=ops {
        passing[op] += passing[op - 1];
    }
    let fewest = passing.get(ops / 4 + 1..ops * 3 / 4).and_then(|middle| middle.iter().min()).copied();
    let mut layer = 0;
    let layers: Vec<usize> = (0..ops)
        .map(|op| {
            layer += usize::from(op > 0 && fewest.is_some_and(|fewest| passing[op] <= fewest));
            layer
        })
        .collect();
    let of = |item: &Item| (layers[item.first as usize], layers[item.last as usize]);
    let mut changes = vec![false; layer + 1];
    let mut own = Lists::new(layer + 1);
    for (i, item) in items.iter().enumerate().rev() {
        match of(item) {
            (first, last) if first == last => own.push(first, i),
            (first, last) => (changes[first], changes[last]) = (true, true),
        }
    }
    let mut kept: Vec<usize> = (0..items.len()).filter(|&i| of(&items[i]).0 != of(&items[i]).1).collect();
    // What each kind of layer has, since anything changed.
    let mut kinds: Vec<Vec<Item>> = Vec::new();
    for (layer, changes) in changes.into_iter().enumerate() {
        let mut here: Vec<usize> = Vec::new();
        own.each(layer, &mut |i| here.push(i));
        if changes {
            kinds.clear();
            kept.extend(here);
            continue;
        }
        let begin = here.iter().map(|&i| items[i].first).min().unwrap_or(0);
        let alike = here.iter().map(|&i| {
            let Item { bytes, first, last } = items[i];
            Item { bytes, first: first - begin, last: last - begin }
        });
        if kinds.iter().rev().take(KINDS).any(|kind| kind.iter().copied().eq(alike.clone())) {
            continue;
        }
        kinds.push(alike.collect());
        kept.extend(here);
    }
    kept.sort_unstable();
    kept
}

/// Items by when they are alive: which of those added meet another.
struct Lives {
    /// First and last rank of each item, among the ops at which any item begins.
    ranks: Vec<(usize, usize)>,
    /// Items added, by the rank they begin at.
    begin: Lists,
    /// A segment tree over the ranks: an item stands at the nodes that cover its life.
    cover: Lists,
}

impl Lives {
    fn new(items: &[Item]) -> Self {
        let mut firsts: Vec<u32> = items.iter().map(|item| item.first).collect();
        firsts.sort_unstable();
        firsts.dedup();
        let rank = |item: &Item| {
            let first = firsts.partition_point(|&op| op < item.first);
            // Most live for few ops.
            let later = firsts[first..].iter().take(4).take_while(|&&op| op <= item.last).count();
            let end = match later {
                4 => firsts.partition_point(|&op| op <= item.last),
                few => first + few,
            };
            (first, end.saturating_sub(1).max(first))
        };
        let ranks = items.iter().map(rank).collect();
        Self { ranks, begin: Lists::new(firsts.len()), cover: Lists::new(2 * firsts.len()) }
    }

    fn add(&mut self, item: usize) {
        let (first, last) = self.ranks[item];
        let ranks = self.begin.first.len();
        self.begin.push(first, item);
        let (mut left, mut right) = (first + ranks, last + ranks + 1);
        while left < right {
            if left & 1 == 1 {
                self.cover.push(left, item);
                left += 1;
            }
            if right & 1 == 1 {
                right -= 1;
                self.cover.push(right, item);
            }
            left /= 2;
            right /= 2;
        }
    }

    /// The items added that are alive at some op at which `item` is: those alive where it begins, and those that begin
    /// later in its life.
    fn together(&self, item: usize, mut found: impl FnMut(usize)) {
        let (first, last) = self.ranks[item];
        let mut node = first + self.begin.first.len();
        while node > 0 {
            self.cover.each(node, &mut found);
            node /= 2;
        }
        (first + 1..=last).for_each(|rank| self.begin.each(rank, &mut found));
    }
}

/// Lists of items in one allocation.
struct Lists {
    /// The entry each list begins with.
    first: Vec<u32>,
    /// Entries: an item and the entry that follows.
    entries: Vec<(u32, u32)>,
}

impl Lists {
    /// No entry.
    const END: u32 = u32::MAX;

    fn new(lists: usize) -> Self {
        Self { first: vec![Self::END; lists], entries: Vec::with_capacity(lists) }
    }

    fn push(&mut self, list: usize, item: usize) {
        self.entries.push((item as u32, self.first[list]));
        self.first[list] = self.entries.len() as u32 - 1;
    }

    fn each(&self, list: usize, found: &mut impl FnMut(usize)) {
        let mut at = self.first[list];
        while let Some(&(item, next)) = self.entries.get(at as usize) {
            found(item as usize);
            at = next;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn item(bytes: u64, first: u32, last: u32) -> Item {
        Item { bytes, first, last }
    }

    /// What nothing touches stood at the first op with a unit of an offset each, which a deep model has thousands of.
    #[test]
    fn what_has_no_bytes_takes_none() {
        let alive = [item(1000, 0, 3), item(500, 1, 1), item(500, 2, 2)];
        let mut items = alive.to_vec();
        items.extend([item(0, 0, 0); 100]);
        let (places, sizes) = pack(&items, 1 << 20).unwrap();
        assert_eq!(sizes, [1024 + 512]);
        assert_eq!((&places[..3], &sizes), (&pack(&alive, 1 << 20).unwrap().0[..], &sizes));
        assert_eq!(pack_sizes(&items, 1 << 20).unwrap(), sizes);
        assert_eq!(pack(&[item(0, 0, 0)], 1 << 20).unwrap().1, [0u64; 0]);
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

    /// The same by looking at every pair: what [`pack`] is held against.
    fn pack_slowly(items: &[Item], max: u64) -> Result<(Vec<Place>, Vec<u64>), usize> {
        let size = |item: &Item| item.bytes.max(1).next_multiple_of(ALIGN);
        let mut order: Vec<usize> = (0..items.len()).collect();
        order.sort_by_key(|&i| (std::cmp::Reverse(size(&items[i])), items[i].first, i));
        let mut places: Vec<Option<Place>> = vec![None; items.len()];
        let mut sizes: Vec<u64> = Vec::new();
        for &i in &order {
            // What has no bytes stands nowhere: at the beginning, and nobody need stay clear of it.
            if items[i].bytes == 0 {
                continue;
            }
            if size(&items[i]) > max {
                return Err(i);
            }
            let together = |j: usize| items[j].first <= items[i].last && items[i].first <= items[j].last;
            let place = (0..)
                .find_map(|buffer| {
                    let in_buffer = |j: usize| places[j].filter(|p| p.buffer == buffer);
                    let others = (0..items.len()).filter(|&j| together(j));
                    let mut taken: Vec<(u64, u64)> =
                        others.filter_map(|j| Some((in_buffer(j)?.offset, size(&items[j])))).collect();
                    taken.sort_unstable();
                    let mut offset = 0;
                    for (start, len) in taken {
                        if start >= offset + size(&items[i]) {
                            break;
                        }
                        offset = offset.max(start + len);
                    }
                    (offset + size(&items[i]) <= max).then_some(Place { buffer, offset })
                })
                .unwrap();
            sizes.resize(sizes.len().max(place.buffer as usize + 1), 0);
            let used = &mut sizes[place.buffer as usize];
            *used = (*used).max(place.offset + size(&items[i]));
            places[i] = Some(place);
        }
        Ok((places.into_iter().map(|place| place.unwrap_or(Place { buffer: 0, offset: 0 })).collect(), sizes))
    }

    #[test]
    fn sizes_past_the_numbers_are_too_large() {
        assert_eq!(pack(&[item(u64::MAX, 0, 1)], u64::MAX), Err(0));
        assert!(
            pack(&[item(1 << 63, 0, u32::MAX), item(1 << 63, 1, 1)], u64::MAX).is_ok_and(|p| p.1.len() == 2)
        );
    }

    #[test]
    fn one_layer_of_each_kind_is_packed() {
        let layer = |at: u32| [item(700, at, at + 1), item(300, at + 1, at + 2), item(700, at + 2, at + 3)];
        let layers: Vec<Item> = (0..20).flat_map(|i| layer(4 * i)).chain([item(512, 0, 80)]).collect();
        assert!(one_of_each(&layers).len() < 10);
        assert_eq!(pack_sizes(&layers, 1 << 20), pack(&layers, 1 << 20).map(|(_, sizes)| sizes));
    }

    proptest! {
        #[test]
        fn layers_alike_take_what_all_of_them_take(
            raw in prop::collection::vec(prop::collection::vec((0u64..3000, 0u32..6, 0u32..6), 0..8), 1..4),
            order in prop::collection::vec(0usize..4, 1..24),
            through in prop::collection::vec((0u64..3000, 0u32..150, 0u32..150), 0..6),
            max in 3072u64..12_000,
        ) {
            let layer = |(at, kind): (u32, &usize)| {
                let items = raw[kind % raw.len()].iter();
                items.map(move |&(b, f, l)| item(b, at * 7 + f.min(l), at * 7 + f.max(l))).collect::<Vec<_>>()
            };
            let through = through.iter().map(|&(b, f, l)| item(b, f.min(l), f.max(l)));
            let items: Vec<Item> = through.chain((0..).zip(&order).flat_map(layer)).collect();
            prop_assert_eq!(pack_sizes(&items, max), pack(&items, max).map(|(_, sizes)| sizes));
        }

        #[test]
        fn places_are_those_of_looking_at_every_pair(
            raw in prop::collection::vec((0u64..5000, 0u32..40, 0u32..40), 1..80),
            max in 4000u64..20_000,
        ) {
            let items: Vec<Item> = raw.iter().map(|&(b, f, l)| item(b, f, f + l * l / 40)).collect();
            let max = max / ALIGN * ALIGN;
            prop_assert_eq!(pack(&items, max), pack_slowly(&items, max));
        }

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
