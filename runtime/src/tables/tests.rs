#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::{Sampling, SequenceInput, Wanted};
use plimsoll_models::rope::Scaling;

fn tables() -> Tables {
    let ropes = vec![Rope::new(10_000.0, 8, Scaling::None)];
    let layout = StepLayout::new(16, 4, 3, &[4, 1], &[2, 3], &[4]).unwrap();
    Tables {
        ropes,
        context: 64,
        vocab: 100,
        pages: vec![6, 9],
        words: vec![0; layout.words as usize],
        dirty: vec![false; 6],
        used: Vec::new(),
        shape: StepShape { tiles: vec![0; 2], ..StepShape::default() },
        seen: vec![false; 3],
        angles: Vec::new(),
        layout,
    }
}

fn sequence(slot: u32, position: u32, ids: &[u32], wanted: Wanted) -> SequenceInput<'_> {
    SequenceInput { slot, position, ids, wanted }
}

fn input<'a>(sequences: &'a [SequenceInput<'a>]) -> StepInput<'a> {
    StepInput { sequences, sampling: Sampling::Logits, cancel: None }
}

fn part(tables: &Tables, offset: u32, words: usize) -> &[u32] {
    &tables.words[offset as usize..][..words]
}

#[test]
fn a_ragged_step_is_laid_out_token_by_token() {
    let mut tables = tables();
    let sequences = [
        sequence(2, 0, &[10, 11, 12, 13, 14], Wanted::Last),
        sequence(0, 30, &[20], Wanted::None),
        sequence(1, 7, &[40, 41], Wanted::All),
    ];
    tables.fill(&input(&sequences)).unwrap();
    let layout = tables.layout.clone();
    assert_eq!(part(&tables, 0, 6), [8, 3, 31, 0, 4, 8]);
    assert_eq!(part(&tables, layout.ids, 8), [10, 11, 12, 13, 14, 20, 40, 41]);
    assert_eq!(part(&tables, layout.positions, 8), [0, 1, 2, 3, 4, 30, 7, 8]);
    assert_eq!(part(&tables, layout.token_slots, 8), [2, 2, 2, 2, 2, 0, 1, 1]);
    assert_eq!(part(&tables, layout.rows, 3), [4, 6, 7]);
    // Tiles of at most four tokens, none of two sequences.
    let tiles = [[0, 4, 2, 0], [4, 1, 2, 4], [5, 1, 0, 30], [6, 2, 1, 7]];
    assert_eq!(part(&tables, layout.tiles[0].offset, 16), tiles.as_flattened());
    assert_eq!(part(&tables, layout.tiles[1].offset + 7 * 4, 4), [7, 1, 1, 8]);
    assert_eq!(tables.shape(), &StepShape { tokens: 8, logit_rows: 3, tiles: vec![4, 8], kv_max: 31 });

    let mut angles = Vec::new();
    tables.ropes[0].fill(30, &mut angles);
    let expected: &[u32] = bytemuck::cast_slice(&angles);
    assert_eq!(part(&tables, layout.ropes[0].offset + 5 * 8, 8), expected);
}

#[test]
fn only_what_the_step_uses_is_uploaded() {
    let mut tables = tables();
    let sequences = [sequence(0, 0, &[1, 2, 3], Wanted::None)];
    tables.fill(&input(&sequences)).unwrap();
    let words = |tables: &Tables| tables.used().iter().map(|r| r.len()).sum::<usize>();
    let plain = 16 + 3 * 3 + 4 + 3 * 4 + 3 * 8;
    assert_eq!(words(&tables), plain);

    // A changed row of a block table goes along until a step was uploaded; an unchanged one does not.
    tables.set_block_table(1, 2, &[8, 7]).unwrap();
    tables.set_block_table(0, 1, &[0]).unwrap();
    for _ in 0..2 {
        tables.fill(&input(&sequences)).unwrap();
        assert_eq!(words(&tables), plain + 3);
    }
    let row = tables.layout.tables[1].offset as usize + 2 * 3;
    assert!(tables.used().contains(&(row..row + 3)));
    assert_eq!(tables.words(&(row..row + 3)), [8, 7, 0]);
    tables.uploaded();
    tables.set_block_table(1, 2, &[8, 7]).unwrap();
    tables.fill(&input(&sequences)).unwrap();
    assert_eq!(words(&tables), plain);
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let mut tables = tables();
    tables.fill(&input(&[sequence(0, 0, &[1], Wanted::None)])).unwrap();
    let before = tables.words.clone();
    let long = [5; 17];
    let cases: &[(&[SequenceInput<'_>], &str)] = &[
        (&[], "at least one"),
        (&[sequence(0, 0, &[], Wanted::None)], "new tokens of slot 0"),
        (&[sequence(3, 0, &[1], Wanted::None)], "slot: expected under 3, got 3"),
        (&[sequence(1, 0, &[1], Wanted::None), sequence(1, 1, &[1], Wanted::None)], "once in a step"),
        (&[sequence(0, 0, &[1, 100], Wanted::None)], "token id: expected under 100, got 100"),
        (&[sequence(0, 62, &[1, 2, 3], Wanted::None)], "tokens of slot 0: expected at most 64, got 65"),
        (&[sequence(0, u32::MAX, &[1], Wanted::None)], "tokens of slot 0"),
        (&[sequence(0, 0, &long, Wanted::None)], "tokens of a step: expected at most 16, got 17"),
        (&[sequence(0, 0, &long[..5], Wanted::All)], "logit rows of a step: expected at most 4, got 5"),
    ];
    for (sequences, expected) in cases {
        let error = tables.fill(&input(sequences)).unwrap_err();
        assert!(matches!(error, RuntimeError::Input { .. }));
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(tables.words, before);
    }
    let wanted = [sequence(0, 0, &[1], Wanted::Last)];
    let unread = StepInput { sampling: Sampling::None, ..input(&wanted) };
    assert!(tables.fill(&unread).is_err());
    for (kind, slot, pages) in [(2, 0, &[0u32][..]), (0, 3, &[0]), (0, 0, &[0, 1, 2]), (0, 0, &[6])] {
        assert!(matches!(tables.set_block_table(kind, slot, pages), Err(RuntimeError::Input { .. })));
    }
    assert_eq!(tables.words, before);
}
