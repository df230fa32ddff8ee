//! More of anything never costs less: chunk, slots, context, draft depth, of every published configuration.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use plimsoll_estimator::{Geometry, Pricer};
use plimsoll_kernels::Profile;
use plimsoll_models::checkpoint::Checkpoint;
use plimsoll_models::{Model, Registry};
use std::ops::RangeInclusive;

/// Every published configuration, by the name of its file.
fn published() -> Vec<(String, Model)> {
    let mut paths: Vec<_> =
        std::fs::read_dir(common::data("configs")).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "json"));
    paths.sort();
    assert!(paths.len() >= 23, "{paths:?}");
    let built = |path: &std::path::PathBuf| {
        let model = Registry::standard().build(&Checkpoint::open(path).unwrap()).unwrap();
        (path.file_stem().unwrap().to_string_lossy().into_owned(), model)
    };
    paths.iter().map(built).collect()
}

/// The limits of WebGPU, and an adapter's with one buffer for what there cuts into many.
fn profiles() -> [Profile; 2] {
    let mut wide = Profile::webgpu_default();
    wide.limits.max_buffer_size = 1 << 40;
    wide.limits.max_storage_buffer_binding_size = (1 << 32) - 4;
    [Profile::webgpu_default(), wide]
}

/// The pricers of a configuration, those limits that it cannot be planned within left out.
fn each_pricer(mut check: impl FnMut(&str, &Model, &Pricer<'_>)) {
    let mut priced = 0;
    for (name, model) in published() {
        for profile in profiles() {
            let pricer = Pricer::new(&model, &profile);
            if pricer.price(&Geometry::default_for(model.context_max)).is_ok() {
                check(&name, &model, &pricer);
                priced += 1;
            }
        }
    }
    assert!(priced > 30, "{priced}");
}

/// That prices of geometries, each with more than the one before, never fall; `strictly`: that they rise.
fn expect_rising(
    name: &str,
    pricer: &Pricer<'_>,
    strictly: bool,
    geometries: impl Iterator<Item = Geometry>,
) {
    let mut before: Option<(u64, Geometry)> = None;
    for geometry in geometries {
        let total = pricer.price(&geometry).unwrap_or_else(|e| panic!("{name}: {geometry:?}: {e}")).total();
        if let Some((less, smaller)) = before {
            let rises = if strictly { total > less } else { total >= less };
            let on = &pricer.profile().name;
            assert!(rises, "{name} on {on}: {total} with {geometry:?}, {less} with {smaller:?}");
        }
        before = Some((total, geometry));
    }
}

fn base(model: &Model, slots: u32) -> Geometry {
    Geometry { slots, logit_rows: slots, ..Geometry::default_for(model.context_max) }
}

/// Where programs and tiles change, and around them.
const CHUNKS: [RangeInclusive<u32>; 4] = [1..=40, 63..=66, 127..=130, 511..=514];

#[test]
fn a_larger_chunk_never_costs_less() {
    each_pricer(|name, model, pricer| {
        for slots in [1, 2, 4] {
            let of = |prefill_chunk| Geometry { prefill_chunk, ..base(model, slots) };
            expect_rising(name, pricer, false, CHUNKS.into_iter().flatten().map(of));
        }
    });
}

#[test]
fn another_slot_costs_more() {
    each_pricer(|name, model, pricer| {
        for prefill_chunk in [1, 4, 8, 9, 16, 64, 512] {
            let of = |slots| Geometry { prefill_chunk, ..base(model, slots) };
            expect_rising(name, pricer, true, [1, 2, 3, 4, 7, 8, 9, 10, 16, 17].into_iter().map(of));
        }
    });
}

#[test]
fn another_page_costs_more() {
    each_pricer(|name, model, pricer| {
        // Without attention every context costs the same.
        let grows = model.states.iter().any(|s| s.attention().is_some() || s.latent().is_some());
        for slots in [1, 2, 4] {
            for prefill_chunk in [1, 8, 9, 512] {
                let of = |context| Geometry { context, prefill_chunk, ..base(model, slots) };
                let pages = [1..=8, 15..=18, 127..=130, 255..=258].into_iter().flatten();
                expect_rising(name, pricer, grows, pages.clone().map(|page| of(page * 32)));
                // What is not a whole page costs as much as one.
                let steps = pages.flat_map(|page| [page * 32 - 31, page * 32]);
                expect_rising(name, pricer, false, steps.map(of));
            }
        }
    });
}

#[test]
fn a_deeper_draft_never_costs_less() {
    each_pricer(|name, model, pricer| {
        for slots in [1, 2, 4] {
            let of = |draft_depth| Geometry { draft_depth, ..base(model, slots) };
            // Recurrent states are kept once more for each token that is drafted.
            let grows = pricer.price(&base(model, 1)).unwrap().bytes.recurrent > 0;
            expect_rising(name, pricer, grows, (0..=4).map(of));
        }
    });
}
