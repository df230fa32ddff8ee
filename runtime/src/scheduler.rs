//! Who gets how many tokens of the next step.
//!
//! A step has room for a fixed number of tokens. Every sequence that has something to compute gets one first, so that
//! sequences that are generating move at every step; what is left is divided evenly among those that still have
//! prompt to read, so that a short prompt does not wait for a long one. Where there is not enough for all, turns
//! rotate: a sequence waits at most `ceil(sequences / room)` steps.

/// Divides `room` tokens among sequences that have `pending` tokens to compute, turns starting at index `first`.
///
/// The shares add up to `min(room, Σ pending)`, and none is larger than what is pending.
pub fn shares(pending: &[u32], room: u32, first: usize) -> Vec<u32> {
    let mut shares = vec![0_u32; pending.len()];
    let mut room = room;
    // Sequences that could take more, in the order of their turns.
    let mut open: Vec<usize> =
        (0..pending.len()).map(|turn| (first % pending.len() + turn) % pending.len()).collect();
    loop {
        open.retain(|&i| shares[i] < pending[i]);
        if open.is_empty() || room == 0 {
            return shares;
        }
        let nothing_yet = open.iter().any(|&i| shares[i] == 0);
        let each = if nothing_yet { 1 } else { (room / open.len() as u32).max(1) };
        for &i in &open {
            if nothing_yet && shares[i] > 0 {
                continue;
            }
            let more = each.min(pending[i] - shares[i]).min(room);
            shares[i] += more;
            room -= more;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn those_that_generate_move_and_the_rest_is_split() {
        assert_eq!(shares(&[1, 100, 1, 100], 32, 0), [1, 15, 1, 15]);
        assert_eq!(shares(&[1, 5, 100], 32, 0), [1, 5, 26]);
        assert_eq!(shares(&[100, 100, 100], 8, 1), [2, 3, 3]);
        assert_eq!(shares(&[1, 1, 1, 1], 2, 3), [1, 0, 0, 1]);
        assert_eq!(shares(&[], 8, 5), [0_u32; 0]);
        assert_eq!(shares(&[7], 512, 9), [7]);
    }

    proptest! {
        #[test]
        fn the_room_is_used_and_split_fairly(
            pending in prop::collection::vec(0_u32..50, 0..9),
            room in 0_u32..120,
            first in 0_usize..20,
        ) {
            let shares = shares(&pending, room, first);
            prop_assert_eq!(shares.iter().sum::<u32>(), room.min(pending.iter().sum()));
            for (&share, &wants) in shares.iter().zip(&pending) {
                prop_assert!(share <= wants);
                for &other in &shares {
                    // One that could take more is at most one token behind any other.
                    prop_assert!(share == wants || other <= share + 1, "{shares:?}");
                    prop_assert!(!(share == 0 && wants > 0 && other > 1), "{shares:?}");
                }
            }
        }

        #[test]
        fn turns_come_round(sequences in 1_usize..9, room in 1_u32..9) {
            let pending = vec![1; sequences];
            let mut got = vec![0; sequences];
            let mut first = 0;
            for _ in 0..sequences.div_ceil(room as usize) {
                for (got, share) in got.iter_mut().zip(shares(&pending, room, first)) {
                    *got += share;
                }
                first += room as usize;
            }
            prop_assert!(got.iter().all(|&g| g > 0), "{got:?}");
        }
    }
}
