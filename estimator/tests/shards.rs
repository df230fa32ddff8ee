//! What the limits of an adapter cut, as reports say it, is what the plan has.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use plimsoll_estimator::{Geometry, Pricer};
use plimsoll_kernels::Profile;
use plimsoll_models::{Checkpoint, Registry};

fn profiles() -> [Profile; 3] {
    let [mut narrow, mut wide] = [Profile::webgpu_default(), Profile::webgpu_default()];
    narrow.limits.max_storage_buffer_binding_size = 32 << 20;
    narrow.limits.max_buffer_size = 64 << 20;
    wide.limits.max_buffer_size = 1 << 40;
    wide.limits.max_storage_buffer_binding_size = (1 << 32) - 4;
    [narrow, Profile::webgpu_default(), wide]
}

#[test]
fn shards_are_those_of_the_plan() {
    let mut most = Vec::new();
    for name in ["gemma-3-270m", "llama-3.1-8b", "nemotron-3-nano-30b-a3b", "smollm2-135m"] {
        let path = common::data("configs").join(format!("{name}.json"));
        let model = Registry::standard().build(&Checkpoint::open(&path).unwrap()).unwrap();
        for profile in profiles() {
            let pricer = Pricer::new(&model, &profile);
            let geometry =
                Geometry { context: 8192, slots: 4, prefill_chunk: 64, ..Geometry::default_for(8192) };
            // A row of logits or a state may be more than the narrow one binds.
            let (Ok(price), Ok(plan)) = (pricer.price(&geometry), pricer.plan(&geometry)) else { continue };
            let shards = pricer.shards(&price);
            assert_eq!(shards.buffers as usize, plan.buffers.len(), "{name}");
            let cut = |of: Vec<usize>| {
                let cut: Vec<usize> = of.into_iter().filter(|n| *n > 1).collect();
                (cut.len() as u32, cut.iter().sum::<usize>() as u32)
            };
            let weights = cut(plan.groups.iter().map(|g| g.shards.len()).collect());
            let kv = cut(plan.kv.layers.iter().map(|l| l.segments.len()).collect());
            assert_eq!((shards.weights.all.cut, shards.weights.all.shards), weights, "{name}");
            assert_eq!((shards.kv.cut, shards.kv.shards), kv, "{name}");
            let of_most = shards.weights.most.as_ref().map_or(1, |most| most.shards);
            assert_eq!(of_most as usize, plan.groups.iter().map(|g| g.shards.len()).max().unwrap(), "{name}");
            assert_eq!(shards.weights.most.is_some(), weights.0 > 0, "{name}");
            most.push((name, shards.weights.most.map(|most| (most.name, most.shards)), kv.0));
        }
    }
    let found = |wanted: (&str, Option<(&str, u32)>, u32)| {
        most.iter()
            .any(|(name, cut, kv)| (*name, cut.as_ref().map(|(name, n)| (name.as_str(), *n)), *kv) == wanted)
    };
    // 128,256 rows of 8,192 bytes, at most 16,384 of them in 128 MiB.
    assert!(found(("llama-3.1-8b", Some(("model.embed_tokens.weight", 8)), 0)), "{most:?}");
    assert!(found(("llama-3.1-8b", None, 0)), "nothing is cut where bindings are wide: {most:?}");
    assert!(most.iter().any(|(_, _, kv)| *kv > 0), "{most:?}");
}
