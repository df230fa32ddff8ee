//! Kernels that work row by row (norm, head norms with rope and KV write), on the device against the CPU twins, with
//! subgroups and without.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rows;
mod steps;

use plimsoll_kernels::ops::{rms_norm, rope_kv};
use plimsoll_kernels::step::PAGE;
use plimsoll_kernels::{KvFormat, KvLayout, Profile, StepLayout, Unit};
use plimsoll_runtime::lone::{Data, LoneKernel, POISON, floats, words};
use rows::{devices, profiles, rows_step};
use steps::{Noise, Run, assert_close, run, shape, step_words};

#[test]
fn rms_norms_of_any_width() {
    let devices = devices();
    let mut noise = Noise::new(1);
    for device in devices.iter() {
        for profile in profiles(device) {
            for (width, groups, slack, rows) in [
                (1, 1, 0, 3),
                (5, 1, 2, 1),
                (576, 1, 0, 4),
                (577, 1, 7, 2),
                (5120, 1, 4, 3),
                (64, 1, 8, 33),
                (16, 6, 4, 9),
                (3, 5, 1, 4),
            ] {
                let all = width * groups;
                for (plus_one, accumulate) in [(false, false), (true, true)] {
                    let unit = if accumulate { Unit::Tokens } else { Unit::LogitRows };
                    let args = rms_norm::Args {
                        width,
                        groups,
                        x_stride: all + slack,
                        out_stride: all + 2 * slack,
                        eps: 1e-5,
                        weight: 8,
                        plus_one,
                        accumulate,
                        unit,
                    };
                    // Fewer rows of the other unit, so that counting the wrong one shows.
                    let (step, step_shape) = match unit {
                        Unit::Tokens => rows_step(rows, rows + 1),
                        _ => rows_step(rows + 1, rows),
                    };
                    let count = rows as usize;
                    let x: Vec<f32> = noise.floats(count * args.x_stride as usize);
                    let x: Vec<f32> = x.into_iter().map(|v| v * 30.0).collect();
                    let vectors = noise.floats(8 + width as usize);
                    let mut out = vec![f32::from_bits(POISON); count * args.out_stride as usize];
                    if accumulate {
                        for row in out.chunks_mut(args.out_stride as usize) {
                            row[..all as usize].copy_from_slice(&noise.floats(all as usize));
                        }
                    }
                    let mut expected = out.clone();
                    rms_norm::twin(&args, count, &x, &vectors, &mut expected);
                    let call = rms_norm::plan(&profile, &args);
                    let operands = [Data::F32(x), Data::F32(out), Data::F32(vectors)];
                    let written = device.run(&call, &step, &operands, &step_shape, None).unwrap();
                    let what = format!("{} of {rows} x {groups} x {width}", call.kernel.name());
                    assert_close(&floats(&written[0]), &expected, 8e-6, &what);
                }
            }
        }
    }
}

#[test]
fn rows_past_one_dimension_of_workgroups_are_normed() {
    // 65,535 workgroups is the limit of a dimension: the grid folds, and the last row of it is not full.
    let devices = devices();
    let rows = 65_535 * 2 - 3;
    let args = rms_norm::Args {
        width: 3,
        groups: 1,
        x_stride: 3,
        out_stride: 3,
        eps: 1e-5,
        weight: 0,
        plus_one: false,
        accumulate: false,
        unit: Unit::Tokens,
    };
    let (step, step_shape) = rows_step(rows, 1);
    let x = Noise::new(2).floats(rows as usize * 3);
    let vectors = vec![1.0, 2.0, 3.0, 4.0];
    let mut expected = vec![0.0; x.len()];
    rms_norm::twin(&args, rows as usize, &x, &vectors, &mut expected);
    let call = rms_norm::plan(devices[0].profile(), &args);
    let operands = [Data::F32(x), Data::Poison(expected.len()), Data::F32(vectors)];
    let written = devices[0].run(&call, &step, &operands, &step_shape, None).unwrap();
    assert_close(&floats(&written[0]), &expected, 1e-5, "folded rows");
}

/// Everything `rope_kv` can be told.
struct RopeCase {
    shape: plimsoll_kernels::AttentionShape,
    format: KvFormat,
    runs: Vec<Run>,
    pages: u32,
    segments: u32,
    norms: Option<bool>,
    /// Rotated pairs, interleaved.
    rope: Option<(u32, bool)>,
    v_norm: Option<f32>,
    keys: rope_kv::Keys,
}

fn check_rope(device: &LoneKernel, profile: &Profile, case: &RopeCase) {
    let mut noise = Noise::new(u64::from(case.shape.head_dim) + 3);
    let kv = KvLayout::new(case.format, &case.shape).unwrap();
    let tokens: u32 = case.runs.iter().map(|r| r.tokens).sum();
    let slots = case.runs.iter().map(|r| r.slot).max().unwrap() + 1;
    let pairs = case.rope.map_or(1, |r| r.0);
    let layout = StepLayout::new(tokens, 1, slots, &[1], &[case.pages], &[pairs]).unwrap();
    let (mut step, step_shape) = step_words(&layout, &case.runs, 1);
    let owned = slots * case.pages;
    let table = layout.tables[0].offset;
    for i in 0..owned {
        // Another order than that of the slots: 7 and the number of pages have no common divisor here.
        step[(table + i) as usize] = i * 7 % owned;
    }
    for i in 0..tokens * pairs {
        let angle = noise.float() * 3.0;
        let at = (layout.ropes[0].offset + i * 2) as usize;
        step[at..at + 2].copy_from_slice(&[angle.cos().to_bits(), angle.sin().to_bits()]);
    }
    let stride = case.keys.width(&case.shape) + 5;
    let qkv: Vec<f32> = noise.floats((tokens * stride) as usize).iter().map(|v| v * 3.0).collect();
    let vectors = noise.floats(3 + 2 * case.shape.head_dim as usize);
    let norm = |weight| case.norms.map(|plus_one| rope_kv::HeadNorm { weight, plus_one, eps: 1e-6 });
    let per_segment = owned.div_ceil(case.segments);
    let mut got_qkv = qkv.clone();
    // Nobody writes shared keys again: one dispatch for the queries.
    let dispatches = if case.keys == rope_kv::Keys::Shared { 1 } else { case.segments };
    for segment in 0..dispatches {
        let first_page = segment * per_segment;
        let segment_pages = per_segment.min(owned - first_page);
        let args = rope_kv::Args {
            shape: case.shape,
            kv,
            place: rope_kv::KvPlace { table, pages: case.pages, first_page, segment_pages },
            q_norm: norm(3),
            k_norm: norm(3 + case.shape.head_dim),
            v_norm: case.v_norm,
            keys: case.keys,
            rope: case.rope.map(|(pairs, interleaved)| rope_kv::Rope {
                table: layout.ropes[0].offset,
                pairs,
                interleaved,
            }),
            rotate_queries: segment == 0,
            positions: layout.positions,
            token_slots: layout.token_slots,
            qkv_stride: stride,
        };
        let call = rope_kv::plan(profile, &args);
        let what = format!("{} segment {segment}", call.kernel.name());
        let size = (segment_pages * kv.page_words()) as usize;
        let operands = [Data::F32(got_qkv.clone()), Data::Poison(size), Data::F32(vectors.clone())];
        let written = device.run(&call, &step, &operands, &step_shape, None).unwrap();

        let mut expected = got_qkv.clone();
        let mut pages = vec![POISON; size];
        rope_kv::twin(&args, &step, &vectors, &mut expected, &mut pages);
        got_qkv = floats(&written[0]);
        assert_close(&got_qkv, &expected, 2e-5, &what);
        if case.keys == rope_kv::Keys::Shared {
            assert!(words(&written[1]).iter().all(|w| *w == POISON), "{what}: pages are another's");
        } else {
            check_pages(&args, &step, case, &words(&written[1]), &pages, &what);
        }
    }
}

/// Cells that were written hold what the twin's hold, up to the rounding of the format; all others are untouched.
fn check_pages(args: &rope_kv::Args, step: &[u32], case: &RopeCase, got: &[u32], twin: &[u32], what: &str) {
    let kv = args.kv;
    let page_words = kv.page_words() as usize;
    let mut written = 0;
    let mut off_by_one = 0;
    for run in &case.runs {
        for position in run.first..run.first + run.tokens {
            let Some(page) = args.place.page(step, run.slot, position / PAGE) else { continue };
            let at = page as usize * page_words;
            let (got, twin) = (&got[at..][..page_words], &twin[at..][..page_words]);
            for head in 0..kv.kv_heads {
                for value in [false, true] {
                    let got = kv.load(got, head, position % PAGE, value);
                    let twin = kv.load(twin, head, position % PAGE, value);
                    for block in 0..got.len().div_ceil(32) {
                        let cells = block * 32..got.len().min(block * 32 + 32);
                        let largest = twin[cells.clone()].iter().fold(0f32, |a, v| a.max(v.abs()));
                        for (g, t) in got[cells.clone()].iter().zip(&twin[cells]) {
                            let (slight, code) = match kv.format {
                                KvFormat::F32 => (2e-5, 0.0),
                                // A unit in the last place of 11 bits, where the f32 before it differed.
                                KvFormat::F16 => (t.abs() / 1024.0 + 2e-5, 0.0),
                                // A scale one such unit off; a code one off where it was near a half.
                                KvFormat::Q8_0 => (largest / 1024.0, largest / 127.0),
                            };
                            assert!((g - t).abs() <= slight + code * 1.01, "{what}: expected {t}, got {g}");
                            off_by_one += u32::from((g - t).abs() > slight);
                            written += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(off_by_one * 500 <= written, "{what}: {off_by_one} of {written} codes are off by one");
    // Untouched words, zeros of the gap, and nothing else, agree exactly wherever the twin left poison.
    for (i, (g, t)) in got.iter().zip(twin).enumerate() {
        assert_eq!(*g == POISON, *t == POISON, "{what}: word {i}");
        if *t == 0 && !kv.head_dim.is_multiple_of(8) {
            assert_eq!(*g, 0, "{what}: word {i} of the gap");
        }
    }
}

#[test]
fn ropes_norms_and_pages() {
    let devices = devices();
    let runs = vec![run(1, 30, 5), run(0, 0, 1), run(2, 64, 1)];
    for device in devices.iter() {
        for format in KvFormat::ALL {
            for (norms, rope, segments) in [
                (None, Some((32, false)), 1),
                (Some(true), Some((12, true)), 2),
                (Some(false), None, 1),
                (Some(false), Some((8, false)), 3),
            ] {
                let case = RopeCase {
                    shape: shape(6, 2, 64),
                    format,
                    runs: runs.clone(),
                    pages: 3,
                    segments,
                    norms,
                    rope,
                    v_norm: None,
                    keys: rope_kv::Keys::Own,
                };
                check_rope(device, device.profile(), &case);
                if segments == 2 {
                    check_rope(device, &profiles(device)[1], &case);
                }
            }
        }
        // A head size that is no multiple of anything; a ring that has been gone round.
        let odd = RopeCase {
            shape: shape(2, 1, 5),
            format: KvFormat::F16,
            runs: vec![run(0, 100, 40)],
            pages: 2,
            segments: 1,
            norms: Some(true),
            rope: Some((2, false)),
            v_norm: None,
            keys: rope_kv::Keys::Own,
        };
        check_rope(device, device.profile(), &odd);
        check_rope(device, device.profile(), &RopeCase { format: KvFormat::F32, ..odd });
    }
}

#[test]
fn values_normed_or_taken_from_keys_and_keys_of_others() {
    use rope_kv::Keys;
    let devices = devices();
    for device in devices.iter() {
        for (format, head_dim) in
            [(KvFormat::F32, 5), (KvFormat::F16, 13), (KvFormat::F16, 64), (KvFormat::Q8_0, 96)]
        {
            for (keys, v_norm, segments) in [
                (Keys::Own, Some(1e-6), 1),
                (Keys::Values, None, 1),
                (Keys::Values, Some(1e-2), 2),
                (Keys::Shared, None, 2),
            ] {
                let case = RopeCase {
                    shape: shape(6, 2, head_dim),
                    format,
                    runs: vec![run(1, 30, 5), run(0, 0, 1), run(2, 64, 1)],
                    pages: 3,
                    segments,
                    norms: Some(false),
                    rope: Some((head_dim / 2, false)),
                    v_norm,
                    keys,
                };
                check_rope(device, device.profile(), &case);
                if segments == 2 {
                    check_rope(device, &profiles(device)[1], &case);
                }
            }
        }
    }
}

/// Of keys (3, −3, 3, …) the norm is 1, whatever their own norm and rotation do to them.
#[test]
fn values_are_the_keys_as_they_came() {
    let devices = devices();
    let device = &devices[0];
    let shape = shape(1, 1, 64);
    let kv = KvLayout::new(KvFormat::F32, &shape).unwrap();
    let layout = StepLayout::new(1, 1, 1, &[1], &[1], &[32]).unwrap();
    let (mut step, step_shape) = step_words(&layout, &[run(0, 0, 1)], 1);
    step[layout.tables[0].offset as usize] = 0;
    for i in 0..32 {
        // Each pair (a, b) becomes (−b, a).
        let at = (layout.ropes[0].offset + 2 * i) as usize;
        step[at..at + 2].copy_from_slice(&[0f32.to_bits(), 1f32.to_bits()]);
    }
    let keys: Vec<f32> = (0..64).map(|i| if i % 2 == 0 { 3.0 } else { -3.0 }).collect();
    for (v_norm, expected) in [(Some(0.0), 1.0), (Some(7.0), 0.75), (None, 3.0)] {
        let args = rope_kv::Args {
            shape,
            kv,
            place: rope_kv::KvPlace {
                table: layout.tables[0].offset,
                pages: 1,
                first_page: 0,
                segment_pages: 1,
            },
            q_norm: None,
            k_norm: Some(rope_kv::HeadNorm { weight: 0, plus_one: false, eps: 0.0 }),
            v_norm,
            keys: rope_kv::Keys::Values,
            rope: Some(rope_kv::Rope { table: layout.ropes[0].offset, pairs: 32, interleaved: false }),
            rotate_queries: true,
            positions: layout.positions,
            token_slots: layout.token_slots,
            qkv_stride: 128,
        };
        let qkv = [vec![2.0; 64], keys.clone()].concat();
        let call = rope_kv::plan(device.profile(), &args);
        let operands = [Data::F32(qkv), Data::Poison(kv.page_words() as usize), Data::F32(vec![5.0; 64])];
        let written = device.run(&call, &step, &operands, &step_shape, None).unwrap();
        let (queries, page) = (floats(&written[0]), words(&written[1]));
        assert_eq!(queries[64..], keys, "keys stay as they are where they stand");
        for (i, (key, value)) in
            kv.load(&page, 0, 0, false).iter().zip(kv.load(&page, 0, 0, true)).enumerate()
        {
            let sign = if i % 2 == 0 { 1.0 } else { -1.0 };
            assert!((value - sign * expected).abs() < 1e-5, "value {i} is {value}, norm {v_norm:?}");
            let turned = if i < 32 { -sign } else { sign };
            assert!((key - turned * 5.0).abs() < 1e-4, "key {i} is {key}");
        }
    }
}

#[test]
fn f16_pages_clamp_instead_of_overflowing() {
    let devices = devices();
    let device = &devices[0];
    let shape = shape(1, 1, 64);
    let kv = KvLayout::new(KvFormat::F16, &shape).unwrap();
    let layout = StepLayout::new(1, 1, 1, &[1], &[1], &[1]).unwrap();
    let (mut step, step_shape) = step_words(&layout, &[run(0, 0, 1)], 1);
    step[layout.tables[0].offset as usize] = 0;
    let args = rope_kv::Args {
        shape,
        kv,
        place: rope_kv::KvPlace { table: layout.tables[0].offset, pages: 1, first_page: 0, segment_pages: 1 },
        q_norm: None,
        k_norm: None,
        v_norm: None,
        keys: rope_kv::Keys::Own,
        rope: None,
        rotate_queries: false,
        positions: layout.positions,
        token_slots: layout.token_slots,
        qkv_stride: shape.qkv_width(),
    };
    let mut qkv = vec![1.0; 3 * 64];
    qkv[64..128].fill(1e6);
    qkv[128..].fill(-70_000.0);
    let call = rope_kv::plan(device.profile(), &args);
    let operands = [Data::F32(qkv), Data::Poison(kv.page_words() as usize), Data::F32(vec![0.0; 4])];
    let written = device.run(&call, &step, &operands, &step_shape, None).unwrap();
    let page = words(&written[1]);
    assert!(kv.load(&page, 0, 0, false).iter().all(|v| *v == 65_504.0));
    assert!(kv.load(&page, 0, 0, true).iter().all(|v| *v == -65_504.0));
}
