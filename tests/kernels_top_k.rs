//! The largest logits, on the device against the CPU twin, with subgroups and without.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rows;
mod steps;

use plimsoll_kernels::Profile;
use plimsoll_kernels::ops::top_k;
use plimsoll_runtime::lone::{Data, LoneKernel, POISON, words};
use rows::{devices, profiles, rows_step};
use steps::Noise;

/// The words of top-k on a device: both stages.
fn top_k_of(
    device: &LoneKernel,
    profile: &Profile,
    args: &top_k::Args,
    rows: u32,
    logits: &[f32],
) -> Vec<u32> {
    let (step, step_shape) = rows_step(1, rows);
    let [first, second] = top_k::plan(profile, args).unwrap();
    let scratch = Data::Poison(top_k::scratch_words(args.vocab, args.k, rows) as usize);
    let operands = [Data::F32(logits.to_vec()), scratch];
    let written = device.run(&first, &step, &operands, &step_shape, None).unwrap();
    let out = Data::Poison(rows as usize * top_k::out_words(args.k) as usize);
    let operands = [Data::Bytes(written[0].clone()), out];
    words(&device.run(&second, &step, &operands, &step_shape, None).unwrap()[0])
}

fn check_top_k(args: &top_k::Args, rows: u32, logits: &[f32]) {
    for device in devices().iter() {
        for profile in profiles(device) {
            let got = top_k_of(device, &profile, args, rows, logits);
            let expected = top_k::twin(args, rows as usize, logits);
            let each = top_k::out_words(args.k) as usize;
            for (row, (got, expected)) in got.chunks(each).zip(expected.chunks(each)).enumerate() {
                // Ids and logits bit for bit; the sum of exponentials up to rounding.
                assert_eq!(got[..each - 1], expected[..each - 1], "row {row} of {args:?}");
                let [got, expected] = [got, expected].map(|w| f32::from_bits(w[each - 1]));
                let slight = 4e-6 * expected.abs().max(1.0);
                let close = (got - expected).abs() <= slight || (got.is_nan() && expected.is_nan());
                assert!(close, "{args:?}: log-sum-exp {expected}, got {got}");
            }
        }
    }
}

#[test]
fn top_k_of_any_vocabulary() {
    let mut noise = Noise::new(9);
    for (vocab, k, rows) in
        [(1, 1, 1), (7, 3, 2), (2048, 64, 1), (2049, 64, 2), (6001, 40, 3), (262_144, 5, 1)]
    {
        let stride = vocab + 3;
        let mut logits = vec![f32::from_bits(POISON); (rows * stride) as usize];
        for row in logits.chunks_mut(stride as usize) {
            for v in &mut row[..vocab as usize] {
                // Few different values: ties within blocks and between them.
                *v = (noise.float() * 40.0).round() / 4.0;
            }
        }
        check_top_k(&top_k::Args { vocab, stride, k }, rows, &logits);
    }
}

#[test]
fn the_largest_stands_anywhere() {
    let args = top_k::Args { vocab: 5000, stride: 5000, k: 1 };
    let mut logits = Noise::new(4).floats(4 * 5000);
    for (row, id) in [(0, 0), (1, 4999), (2, 2047), (3, 2048)] {
        logits[row * 5000 + id] = 2.0;
    }
    check_top_k(&args, 4, &logits);
}

#[test]
fn nan_and_infinite_logits_are_never_silent() {
    let args = top_k::Args { vocab: 3000, stride: 3000, k: 4 };
    let mut logits = Noise::new(5).floats(3 * 3000);
    logits[10] = f32::NAN;
    logits[11] = -f32::NAN;
    logits[2999] = f32::NEG_INFINITY;
    logits[12] = -0.0;
    // A row with an infinity, and one with nothing but NaN.
    logits[3000 + 77] = f32::INFINITY;
    logits[6000..].fill(f32::NAN);
    check_top_k(&args, 3, &logits);
    let twin = top_k::twin(&args, 3, &logits);
    for row in 0..3 {
        assert!(f32::from_bits(twin[row * 10 + 9]).is_nan(), "row {row} says so by its log-sum-exp");
    }
    // One alone, wherever it stands and however far its block is below the others; −∞ is none.
    for (spoiler, spoils) in [(f32::NAN, true), (f32::INFINITY, true), (f32::NEG_INFINITY, false)] {
        for place in [0, 2047, 2048, 2999] {
            let mut logits = Noise::new(6).floats(9000);
            logits[2048..3000].fill(-1e30);
            logits[place] = spoiler;
            check_top_k(&args, 3, &logits);
            let twin = top_k::twin(&args, 3, &logits);
            assert_eq!(f32::from_bits(twin[9]).is_nan(), spoils, "{spoiler} at {place}");
        }
    }
    // Every logit masked.
    check_top_k(&args, 3, &vec![f32::NEG_INFINITY; 9000]);
}

#[test]
fn a_vocabulary_smaller_than_k_ends_in_nothing() {
    let args = top_k::Args { vocab: 3, stride: 3, k: 5 };
    check_top_k(&args, 1, &[0.5, -1.0, 0.5]);
    let twin = top_k::twin(&args, 1, &[0.5, -1.0, 0.5]);
    assert_eq!([twin[0], twin[2], twin[4], twin[6]], [0, 2, 1, top_k::NONE]);
    for k in [0, 65] {
        assert!(top_k::plan(&Profile::webgpu_default(), &top_k::Args { k, ..args.clone() }).is_none());
    }
}
