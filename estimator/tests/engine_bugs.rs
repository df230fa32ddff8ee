//! Defects of other engines that a plan keeps out, by their numbers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::open;
use plimsoll_estimator::{Geometry, Plan};
use plimsoll_kernels::{Limits, Profile, StepShape};

/// A dispatch of minutes is a lost device where a watchdog guards the screen: 2,048 queries over 53,248 keys in one, a
/// block of the delta rule over 2,048 tokens, 65,536 keys. A submit holds as many dispatches as the budget has room for,
/// and is looked at between them for a cancellation; so no single dispatch may exceed it.
#[test]
fn bug_05_no_dispatch_exceeds_the_work_budget() {
    let limits = Limits {
        max_buffer_size: 1 << 40,
        max_storage_buffer_binding_size: 1 << 40,
        ..Limits::webgpu_default()
    };
    let profile = Profile::new("guarded", limits, None, false);
    let mut attention = 0;
    for (name, context) in [
        ("qwen3.5-27b", 53_248),
        ("qwen3.5-27b", 20_480),
        ("qwen3-8b", 65_537),
        ("mamba2-codestral-7b", 20_480),
    ] {
        let (_, model) = open(&format!("configs/{name}.json"));
        let geometry = Geometry { context, prefill_chunk: 2048, ..Geometry::default_for(context) };
        let plan = Plan::new(&model, &geometry, &profile).unwrap();
        let step = StepShape { tokens: 2048, logit_rows: 1, kv_max: context, ..Default::default() };
        let program = plan.program(step.tokens).unwrap();
        for dispatch in &program.dispatches {
            let flops = plan.flops(dispatch, &step);
            assert!(
                flops <= profile.work_budget,
                "{name} at {context}: {} does {flops} operations, {} are the most",
                dispatch.label,
                profile.work_budget
            );
            attention += u64::from(dispatch.ranged);
        }
        // The step as a whole is far beyond one submit.
        assert!(plan.work(&step, context).1 > 8 * profile.work_budget, "{name} at {context}");
    }
    assert!(attention > 0, "attention is among them");
}
