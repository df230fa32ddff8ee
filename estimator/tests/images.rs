//! What images cost: patches and tokens by the grid's rule, the tower's arena, and plans that grow with both.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::Toy;
use plimsoll_estimator::geometry::Images;
use plimsoll_estimator::images::{self, Cut, Size};
use plimsoll_estimator::plan::Segment;
use plimsoll_estimator::report::Question;
use plimsoll_estimator::verdict::Suggestion;
use plimsoll_estimator::{
    Budget, Geometry, Overhead, Plan, PlanError, Priced, Pricer, Report, Solver, admit,
};
use plimsoll_kernels::{Format, Profile};
use plimsoll_models::Model;
use plimsoll_models::checkpoint::Checkpoint;
use plimsoll_models::model::{Beside, Grid, Part, Tower};
use proptest::prelude::*;

fn native() -> Tower {
    let grid = Grid::Native { merge: 2, min_pixels: 65_536, max_pixels: 1 << 20 };
    Tower { hidden: 64, ffn: 192, heads: 4, layers: 2, patch: 16, grid }
}

fn fixed() -> Tower {
    let grid = Grid::Fixed { side: 896, tokens: 256 };
    Tower { hidden: 64, ffn: 192, heads: 4, layers: 2, patch: 14, grid }
}

fn seeing(tower: Tower) -> Model {
    let mut model = Toy::small().build();
    model.extras.vision = Some(tower);
    let blocks = Beside {
        name: "blocks".into(),
        part: Part::Vision,
        count: 2,
        rows: 192,
        cols: 64,
        format: Format::BF16,
    };
    let other = Beside { name: "mtp".into(), part: Part::Draft, ..blocks.clone() };
    model.extras.tensors = vec![blocks, other];
    model
}

fn with(count: u32, width: u32, height: u32) -> Geometry {
    let priced = Priced { images: Images { count, width, height }, ..Priced::default() };
    Geometry { context: 4096, priced, ..Geometry::default_for(4096) }
}

fn plan(model: &Model, geometry: &Geometry) -> Plan {
    Plan::new(model, geometry, &Profile::webgpu_default()).unwrap()
}

#[test]
fn pixels_become_patches_and_tokens() {
    // (896 / 14)² patches, whatever the image.
    for (width, height) in [(1, 1), (896, 896), (9000, 20)] {
        assert_eq!(images::cut(&fixed(), width, height), Cut { patches: 4096, tokens: 256 });
    }
    // Sides of whole tokens, 32 pixels each.
    let cut = |width, height| images::cut(&native(), width, height);
    assert_eq!(cut(512, 512), Cut { patches: 1024, tokens: 256 });
    assert_eq!(cut(500, 330), Cut { patches: 16 * 10 * 4, tokens: 160 });
    // Scaled down below the most pixels, sides rounded down; scaled up above the fewest, rounded up.
    assert_eq!(cut(2048, 1024).tokens, 45 * 22);
    assert_eq!(cut(64, 64).tokens, 8 * 8);
    assert_eq!(cut(0, 0).tokens, 1024);
    assert_eq!(images::cap(&native()), Size { width: 1024, height: 1024 });
    assert_eq!(images::cap(&fixed()), Size { width: 896, height: 896 });
}

/// Gemma 4's processor scales every image to as many tokens as it may have, and rounds sides of 48 pixels down.
#[test]
fn images_that_are_always_scaled_fill_their_tokens() {
    let grid = Grid::Filled { merge: 3, tokens: 280 };
    let filled = Tower { patch: 16, grid, ..native() };
    let cut = |width, height| images::cut(&filled, width, height);
    // By hand: 280 is 20 × 14; a square becomes 16 × 16, twice as wide as tall 23 × 11; however small it is.
    assert_eq!(cut(960, 672), Cut { patches: 280 * 9, tokens: 280 });
    assert_eq!(cut(64, 64), Cut { patches: 256 * 9, tokens: 256 });
    assert_eq!(cut(4000, 2000).tokens, 23 * 11);
    // A side under a token is one, and the other is what proportions and tokens allow.
    assert_eq!((cut(1000, 1).tokens, cut(1, 290).tokens), (280, 280));
    // The largest is not a square, and it is what is priced where nobody says otherwise.
    assert_eq!(images::cap(&filled), Size { width: 960, height: 672 });
    assert_eq!(cut(0, 0).tokens, 280);
    assert_eq!(images::most(&filled, 0, 0), Cut { patches: 2520, tokens: 280 });
    // Nor is that of a tower that leaves small images alone.
    let grid = Grid::Native { merge: 2, min_pixels: 65_536, max_pixels: 980 * 1024 };
    let tower = Tower { grid, ..native() };
    assert_eq!(images::cap(&tower), Size { width: 35 * 32, height: 28 * 32 });
    assert_eq!((images::cut(&tower, 0, 0).tokens, images::most(&tower, 0, 0).tokens), (980, 980));
    for config in ["gemma-4-31b-it-nvfp4", "qwen3.5-27b", "gemma-3-12b-it"] {
        let model = common::open(&format!("configs/{config}.json")).1;
        let tower = model.extras.vision.unwrap();
        let largest = images::cut(&tower, 0, 0);
        assert_eq!(images::most(&tower, 0, 0), largest, "{config}");
        for (width, height) in [(64, 64), (640, 480), (1920, 1080), (672, 960), (5000, 5000), (9000, 60)] {
            assert!(
                images::cut(&tower, width, height).tokens <= largest.tokens,
                "{config}: {width} x {height}"
            );
        }
        if config.starts_with("gemma-4") {
            assert_eq!(largest, Cut { patches: 2520, tokens: 280 });
        }
    }
}

#[test]
fn an_image_stands_in_one_sequence() {
    let model = seeing(native());
    let profile = Profile::webgpu_default();
    let asked = |count, context, slots| Geometry { context, slots, logit_rows: slots, ..with(count, 0, 0) };
    // 1,024 tokens each. Four slots of 512 have as many tokens as two images, and hold none.
    for (count, context, slots, holds) in
        [(1, 1023, 1, 0), (1, 512, 4, 0), (2, 1024, 1, 1), (4, 1536, 3, 3), (9, 2048, 4, 8)]
    {
        let geometry = asked(count, context, slots);
        let verdict = admit(&model, &geometry, &profile, None, Overhead::default()).unwrap();
        let refusal = verdict.admitted().unwrap_err();
        assert_eq!(refusal.broke.name(), "geometry");
        assert_eq!((refusal.name.as_str(), refusal.need, refusal.have), ("images", count.into(), holds));
        let said =
            format!("at most {holds}, of 1024 tokens each in {slots} × a context of {context}, got {count}");
        assert!(refusal.reason.contains(&said), "{}", refusal.reason);
        assert!(!refusal.nearest.is_empty());
        for near in &refusal.nearest {
            assert_eq!(near.images, Some(near.priced.images.count));
            assert_eq!(plan(&model, &near.geometry()).total(), near.total, "{near:?}");
        }
        // One of them keeps the images, in longer sequences; one keeps the sequences.
        let images = |n: u32| move |s: &&Suggestion| s.priced.images.count == n;
        let longer = refusal.nearest.iter().find(images(count)).unwrap();
        assert!(longer.context >= 1024 * count.div_ceil(slots), "{longer:?}");
        assert!(refusal.nearest.iter().any(|s| s.priced.images.count < count && s.context == context));
        assert!(holds == 0 || refusal.nearest.iter().any(|s| images(holds as u32)(&s)));
        assert!(Plan::new(&model, &asked(holds as u32, context, slots), &profile).is_ok());
    }
    // What is looked for begins where images have room.
    let budget = Budget::flag(plan(&model, &asked(3, 4096, 1)).total(), "test");
    let pricer = Pricer::new(&model, &profile);
    let solver =
        Solver { pricer: &pricer, budget: Some(&budget), overhead: Overhead::default(), company: None };
    assert_eq!(solver.largest_context(&asked(3, 4096, 1)).unwrap().context, 4096);
    assert!(solver.largest_slots(&asked(3, 1024, 3)).unwrap().slots >= 3);
    let out_of_range = admit(&model, &asked(0, 4096, 1 << 20), &profile, None, Overhead::default()).unwrap();
    let refusal = out_of_range.admitted().unwrap_err();
    assert_eq!((refusal.need, refusal.have), (1 << 20, 1 << 16));
}

#[test]
fn the_tower_and_the_text_share_an_arena() {
    let model = seeing(native());
    let text = plan(&model, &with(0, 0, 0));
    let (quiet, weights) = (text.segment_bytes(Segment::Activations), text.segment_bytes(Segment::Weights));
    let image = plan(&model, &with(1, 0, 0));
    let (patches, tokens) = (4096u64, 1024);
    // So narrow a tower holds most where it begins: the 3 x 16 x 16 values of a patch and its first row.
    let tower = 4 * patches * (64 + 768) + tokens * 64 * 4;
    assert_eq!(images::tower_peak(&native(), patches), 4 * patches * 832);
    assert_eq!(image.segment_bytes(Segment::Activations), quiet.max(tower));
    // Two matrices of 192 x 64 in bf16; the layers that draft are no part of it.
    assert_eq!(image.segment_bytes(Segment::Weights), weights + 2 * 192 * 64 * 2);
    assert!(image.estimate_only.is_some());
    assert_eq!(image.segment_bytes(Segment::Kv), text.segment_bytes(Segment::Kv));
    // Another image costs its rows.
    let two = plan(&model, &with(2, 0, 0));
    assert_eq!(two.total() - image.total(), tokens * 64 * 4);
    // No buffer is past the adapter's limit, however large the tower.
    let wide = Tower { hidden: 8192, ffn: 32_768, ..native() };
    let plan = plan(&seeing(wide), &with(1, 0, 0));
    assert!(plan.segment_bytes(Segment::Activations) > 1 << 30);
    assert!(plan.buffers.iter().all(|b| b.bytes <= 256 << 20));
}

#[test]
fn images_that_cannot_be_are_refused_by_name() {
    let refused = |model: &Model, geometry: &Geometry| {
        let error = Plan::new(model, geometry, &Profile::webgpu_default()).unwrap_err();
        assert!(matches!(error, PlanError::Geometry { field: "images", .. }), "{error}");
        error.to_string()
    };
    assert!(refused(&Toy::small().build(), &with(1, 512, 512)).contains("reads no images"));
    // Four of 1,024 tokens are all that a context of 4,096 holds.
    assert!(refused(&seeing(native()), &with(5, 0, 0)).contains("at most 4"));
    refused(&seeing(native()), &with(u32::MAX, u32::MAX, u32::MAX));
    // Sizes that nobody has.
    let grid = Grid::Native { merge: u32::MAX, min_pixels: u64::MAX, max_pixels: u64::MAX };
    let absurd = Tower { hidden: u32::MAX, ffn: u32::MAX, heads: u32::MAX, layers: 1, patch: u32::MAX, grid };
    refused(&seeing(absurd), &with(1, 0, 0));
    let none = Grid::Native { merge: 0, min_pixels: 0, max_pixels: 0 };
    let _ = Plan::new(
        &seeing(Tower { patch: 0, grid: none, ..native() }),
        &with(1, 1, 1),
        &Profile::webgpu_default(),
    );
}

#[test]
fn the_report_says_what_an_image_costs_and_how_many_fit() {
    let model = seeing(native());
    let config = br#"{"model_type": "toy"}"#;
    let checkpoint = Checkpoint::from_config_bytes(config, "toy").unwrap();
    let profile = Profile::webgpu_default();
    let geometry = with(1, 512, 512);
    let most = plan(&model, &with(7, 512, 512)).total();
    let budget = Budget::flag(most, "test");
    let ask = |budget| {
        let question = Question {
            checkpoint: &checkpoint,
            model: &model,
            geometry: &geometry,
            profile: &profile,
            budget,
            overhead: Overhead::default(),
            company: None,
        };
        Report::new(&question).unwrap().0
    };
    let free = ask(None).images.unwrap();
    assert_eq!((free.tokens_per_image, free.patches), (256, 1024));
    assert_eq!(free.tower_peak, 4 * 1024 * 832);
    assert_eq!(free.unfused_scores, 1024 * 1024 * 4 * 4);
    // The context holds sixteen of 256 tokens.
    assert_eq!(free.largest_count, 16);
    let report = ask(Some(&budget));
    let count = report.images.as_ref().unwrap().largest_count;
    let pricer = Pricer::new(&model, &profile);
    let solver =
        Solver { pricer: &pricer, budget: Some(&budget), overhead: Overhead::default(), company: None };
    assert!((7..=16).contains(&count));
    assert!(solver.fits(&with(count, 512, 512)).is_some());
    assert!(count == 16 || solver.fits(&with(count + 1, 512, 512)).is_none());
    assert_eq!(report.geometry.images, 1);
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// What is priced of an image is never less than what it becomes, and never falls as it grows.
    #[test]
    fn prices_of_images_are_bounds_that_rise(
        width in 1u32..6000, height in 1u32..6000, wider in 0u32..3000, taller in 0u32..3000,
        patch in 8u32..33, merge in 1u32..4, min in 0u64..200_000, more in 0u64..20_000_000,
    ) {
        // Processors refuse images of which one side is two hundred times the other.
        prop_assume!(u64::from(width.max(height)) <= 200 * u64::from(width.min(height)));
        let unit = u64::from(patch * merge);
        let grid = Grid::Native { merge, min_pixels: min, max_pixels: min + more + 220 * unit * unit };
        let tower = Tower { patch, grid, ..native() };
        let priced = images::most(&tower, width, height);
        prop_assert!(priced.patches >= images::cut(&tower, width, height).patches);
        let larger = images::most(&tower, width + wider, height + taller);
        prop_assert!(larger.patches >= priced.patches);
    }

    /// Plans rise with the count and the size of images.
    #[test]
    fn plans_rise_with_images(count in 0u32..4, width in 1u32..1200, height in 1u32..1200, wider in 0u32..600) {
        let model = seeing(native());
        let at = |count, width| plan(&model, &with(count, width, height)).total();
        prop_assert!(at(count, width) <= at(count, width + wider));
        prop_assert!(at(count, width) <= at(count + 1, width));
    }
}
