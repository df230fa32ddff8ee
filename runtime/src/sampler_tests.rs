#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::*;
use proptest::prelude::*;

fn options() -> SamplerOptions {
    SamplerOptions { temperature: 1.0, ..Default::default() }
}

fn sampler(options: SamplerOptions) -> Sampler {
    Sampler::new(options, &[]).unwrap()
}

/// What the device returns of a row.
fn candidates(row: &[f32], k: usize) -> Candidates {
    let mut best: Vec<Candidate> = (0..).zip(row.iter().copied()).collect();
    best.sort_by(order);
    best.truncate(k);
    Candidates { best, log_sum_exp: log_sum_exp(row).unwrap() as f32 }
}

/// How often each id is drawn.
fn histogram(options: SamplerOptions, row: &[f32], draws: u32) -> Vec<u32> {
    let mut sampler = sampler(options);
    let mut counts = vec![0; row.len()];
    for _ in 0..draws {
        counts[sampler.choose(Row::Logits(row)).unwrap().id as usize] += 1;
    }
    counts
}

#[test]
fn greedy_takes_the_largest_and_of_equals_the_lower_id() {
    let row = [1.0, 3.0, -2.0, 3.0];
    let mut greedy = sampler(SamplerOptions::default());
    assert_eq!(greedy.needs(), Sampling::Greedy);
    let choice = greedy.choose(Row::Logits(&row)).unwrap();
    assert_eq!(choice.id, 1);
    let sum: f64 = row.iter().map(|&l| f64::from(l).exp()).sum();
    assert!((f64::from(choice.logprob) - (3.0 - sum.ln())).abs() < 1e-6);
    // The device's sum is an f32: the log-probability may differ by its rounding, the id may not.
    let read = greedy.choose(Row::Candidates(&candidates(&row, 1))).unwrap();
    assert!(read.id == 1 && (read.logprob - choice.logprob).abs() < 1e-6);
}

#[test]
fn nothing_is_chosen_from_candidates_that_are_not_numbers() {
    let row = |best: &[f32], log_sum_exp| Candidates {
        best: (0..).zip(best.iter().copied()).collect(),
        log_sum_exp,
    };
    for options in [SamplerOptions::default(), SamplerOptions { top_k: 2, ..options() }] {
        let mut sampler = sampler(options);
        for bad in [
            row(&[1.0, 0.5], f32::NAN),
            row(&[f32::INFINITY, 0.5], f32::MAX),
            row(&[f32::NEG_INFINITY, f32::NEG_INFINITY], f32::MIN),
            row(&[1.0, f32::NAN], 1.5),
        ] {
            let error = sampler.choose(Row::Candidates(&bad)).unwrap_err();
            assert!(matches!(error, RuntimeError::Logits { .. }), "{bad:?}: {error}");
        }
        assert_eq!(sampler.choose(Row::Candidates(&row(&[1.0, f32::NEG_INFINITY], 1.0))).unwrap().id, 0);
    }
}

#[test]
fn a_penalty_without_measure_still_chooses_a_token() {
    let row = [3.0, 2.0, -2.0, -3.0, 0.0];
    for repetition_penalty in [f32::MIN_POSITIVE, 1e-45, f32::MAX] {
        for temperature in [0.0, 1e-45, 1.0, f32::MAX] {
            for (top_p, min_p) in [(1.0, 0.0), (0.5, 0.0), (1.0, 0.5)] {
                let options =
                    SamplerOptions { temperature, top_p, min_p, repetition_penalty, ..Default::default() };
                let mut sampler = Sampler::new(options.clone(), &[0, 2]).unwrap();
                for _ in 0..8 {
                    sampler.choose(Row::Logits(&row)).unwrap_or_else(|e| panic!("{options:?}: {e}"));
                }
            }
        }
    }
}

#[test]
fn the_stage_is_the_cheapest_that_suffices() {
    let needs = |o: SamplerOptions| o.needs();
    assert_eq!(needs(SamplerOptions { top_k: 64, ..options() }), Sampling::TopK);
    assert_eq!(needs(SamplerOptions { top_k: 65, ..options() }), Sampling::Logits);
    assert_eq!(needs(SamplerOptions { top_k: 1, ..options() }), Sampling::Greedy);
    assert_eq!(needs(options()), Sampling::Logits);
    let penalty = SamplerOptions { repetition_penalty: 1.1, ..Default::default() };
    assert_eq!(penalty.needs(), Sampling::Logits);
    assert_eq!(SamplerOptions { repetition_window: 0, ..penalty }.needs(), Sampling::Greedy);
    let few = candidates(&[1.0, 2.0, 3.0], 2);
    assert!(sampler(options()).choose(Row::Candidates(&few)).is_err(), "less than it needs");
}

#[test]
fn options_out_of_range_are_refused_by_name() {
    let bad = [
        ("temperature", SamplerOptions { temperature: f32::NAN, ..options() }),
        ("temperature", SamplerOptions { temperature: -0.5, ..options() }),
        ("temperature", SamplerOptions { temperature: f32::INFINITY, ..options() }),
        ("top_p", SamplerOptions { top_p: 0.0, ..options() }),
        ("top_p", SamplerOptions { top_p: 1.5, ..options() }),
        ("top_p", SamplerOptions { top_p: f32::NAN, ..options() }),
        ("min_p", SamplerOptions { min_p: -0.1, ..options() }),
        ("min_p", SamplerOptions { min_p: f32::NAN, ..options() }),
        ("repetition_penalty", SamplerOptions { repetition_penalty: 0.0, ..options() }),
        ("repetition_penalty", SamplerOptions { repetition_penalty: f32::NAN, ..options() }),
    ];
    for (name, options) in bad {
        match Sampler::new(options, &[]) {
            Err(Refused::Option { option, .. }) => assert_eq!(option, name),
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn rows_that_are_not_numbers_are_errors_and_never_tokens() {
    let rows: [&[f32]; 5] =
        [&[1.0, f32::NAN], &[f32::INFINITY, 0.0], &[f32::NEG_INFINITY; 3], &[f32::NAN; 2], &[]];
    for row in rows {
        for options in [options(), SamplerOptions::default()] {
            assert!(sampler(options).choose(Row::Logits(row)).is_err(), "{row:?}");
        }
    }
    let spoilt = [
        Candidates { best: vec![(0, f32::NAN)], log_sum_exp: 1.0 },
        Candidates { best: vec![(0, 1.0)], log_sum_exp: f32::NAN },
        Candidates { best: vec![], log_sum_exp: 1.0 },
    ];
    for row in &spoilt {
        assert!(sampler(SamplerOptions::default()).choose(Row::Candidates(row)).is_err(), "{row:?}");
    }
    let masked = [f32::NEG_INFINITY, 2.0, f32::NEG_INFINITY];
    assert_eq!(sampler(options()).choose(Row::Logits(&masked)).unwrap(), Choice { id: 1, logprob: 0.0 });
}

#[test]
fn draws_follow_the_distribution() {
    let row: Vec<f32> = [0.5_f32, 0.3, 0.15, 0.05].iter().map(|p| p.ln()).collect();
    let counts = histogram(options(), &row, 20_000);
    for (count, share) in counts.iter().zip([0.5, 0.3, 0.15, 0.05]) {
        assert!((f64::from(*count) / 20_000.0 - share).abs() < 0.02, "{counts:?}");
    }
    // p^(1/2), normalised: 0.7071, 0.5477, 0.3873, 0.2236 over 1.8657.
    let counts = histogram(SamplerOptions { temperature: 2.0, ..options() }, &row, 20_000);
    for (count, share) in counts.iter().zip([0.379, 0.2936, 0.2076, 0.1199]) {
        assert!((f64::from(*count) / 20_000.0 - share).abs() < 0.02, "{counts:?}");
    }
}

#[test]
fn each_filter_keeps_what_it_says() {
    let row: Vec<f32> = [0.05_f32, 0.5, 0.15, 0.3].iter().map(|p| p.ln()).collect();
    let kept = |options| {
        let counts = histogram(options, &row, 2000);
        (0..4).filter(|&i| counts[i] > 0).collect::<Vec<_>>()
    };
    assert_eq!(kept(SamplerOptions { top_k: 2, ..options() }), [1, 3]);
    assert_eq!(kept(SamplerOptions { top_p: 0.49, ..options() }), [1]);
    assert_eq!(kept(SamplerOptions { top_p: 0.51, ..options() }), [1, 3]);
    assert_eq!(kept(SamplerOptions { top_p: 0.94, ..options() }), [1, 2, 3]);
    assert_eq!(kept(SamplerOptions { min_p: 0.2, ..options() }), [1, 2, 3]);
    assert_eq!(kept(SamplerOptions { min_p: 1.0, ..options() }), [1]);
    // top-p sees the distribution that top-k left: 0.5 of 0.8 is 0.625.
    assert_eq!(kept(SamplerOptions { top_k: 2, top_p: 0.6, ..options() }), [1]);
    // Filters come before the temperature: a hot sampler does not let more through.
    assert_eq!(kept(SamplerOptions { top_p: 0.51, temperature: 50.0, ..options() }), [1, 3]);
}

#[test]
fn the_penalty_looks_at_the_window_and_at_each_id_once() {
    let options =
        SamplerOptions { repetition_penalty: 2.0, repetition_window: 3, ..SamplerOptions::default() };
    // 0 has left the window; 1 halves to 1.5 whatever it is counted; 2 is negative and doubles.
    let mut sampler = Sampler::new(options.clone(), &[0, 1, 1, 2]).unwrap();
    let choice = sampler.choose(Row::Logits(&[1.6, 3.0, -1.0, 1.4])).unwrap();
    assert_eq!(choice.id, 0);
    // Now 0 is back in the window, which is [1, 2, 0].
    assert_eq!(sampler.choose(Row::Logits(&[1.6, 3.0, -1.0, 1.4])).unwrap().id, 1);
    let mut sampler = Sampler::new(options, &[0]).unwrap();
    assert_eq!(sampler.choose(Row::Logits(&[-1.0, -1.5])).unwrap().id, 1);
}

#[test]
fn a_cold_temperature_is_greedy_and_a_seed_repeats() {
    let row: Vec<f32> = (0..300).map(|i| ((i * 37) % 101) as f32 * 0.03).collect();
    let cold = SamplerOptions { temperature: 1e-30, ..options() };
    let top = sampler(SamplerOptions::default()).choose(Row::Logits(&row)).unwrap().id;
    let counts = histogram(cold, &row, 50);
    let best: u32 = (0..300).filter(|&i| row[i] == row[top as usize]).map(|i| counts[i]).sum();
    assert_eq!(best, 50, "only the largest are drawn");
    let ids = |seed| {
        let mut sampler = sampler(SamplerOptions { seed, top_p: 0.9, ..options() });
        (0..40).map(|_| sampler.choose(Row::Logits(&row)).unwrap().id).collect::<Vec<_>>()
    };
    assert_eq!(ids(7), ids(7));
    assert_ne!(ids(7), ids(8));
}

proptest! {
    /// Reading back 64 candidates or the whole row makes no difference to any token.
    #[test]
    fn candidates_and_whole_rows_choose_alike(
        row in prop::collection::vec(-40_i32..40, 1..400),
        top_k in 1_u32..=64,
        top_p in 0.05_f32..=1.0,
        min_p in 0.0_f32..0.5,
        temperature in 0.0_f32..3.0,
        seed: u64,
    ) {
        let row: Vec<f32> = row.iter().map(|&l| l as f32 * 0.25).collect();
        let options = SamplerOptions { temperature, top_k, top_p, min_p, seed, ..Default::default() };
        let (mut device, mut host) = (sampler(options.clone()), sampler(options));
        let read = candidates(&row, TOP_K as usize);
        for _ in 0..8 {
            let (a, b) = (device.choose(Row::Candidates(&read)).unwrap(), host.choose(Row::Logits(&row)).unwrap());
            prop_assert_eq!(a.id, b.id);
            prop_assert!((a.logprob - b.logprob).abs() < 1e-5);
        }
    }

    /// Sorting only as much as top-p needs keeps what sorting everything keeps.
    #[test]
    fn top_p_keeps_the_fewest_that_reach_it(
        row in prop::collection::vec(-12_i32..12, 1..1500),
        top_p in 0.01_f32..0.999,
    ) {
        let mut kept: Vec<Candidate> = (0..).zip(row.iter().map(|&l| l as f32 * 0.5)).collect();
        let mut sorted = kept.clone();
        sorted.sort_by(order);
        let sampler = sampler(SamplerOptions { top_p, ..options() });
        sampler.keep_top_p(&mut kept);
        prop_assert_eq!(&kept[..], &sorted[..kept.len()]);
        let sum = |list: &[Candidate]| list.iter().map(|c| f64::from(c.1).exp()).sum::<f64>();
        let share = |list: &[Candidate]| sum(list) / sum(&sorted);
        prop_assert!(share(&kept) >= f64::from(top_p) - 1e-9);
        prop_assert!(share(&kept[..kept.len() - 1]) < f64::from(top_p) + 1e-9);
    }
}
