//! What must hold of any plan.

use plimsoll_estimator::Plan;
use plimsoll_estimator::plan::{ALIGN, Role, Segment};
use plimsoll_kernels::{Count, StepShape};
use plimsoll_models::Model;

/// Everything that must hold of any plan.
pub fn check_plan(model: &Model, plan: &Plan) {
    let limits = &plan.profile.limits;
    for buffer in &plan.buffers {
        assert!(buffer.bytes.is_multiple_of(ALIGN) && buffer.bytes > 0, "{buffer:?}");
        assert!(buffer.bytes <= limits.max_buffer_size, "{buffer:?}");
    }
    let names: std::collections::HashSet<&str> = plan.buffers.iter().map(|b| b.name.as_str()).collect();
    assert_eq!(names.len(), plan.buffers.len());
    assert_eq!(plan.total(), Segment::ALL.iter().map(|&s| plan.segment_bytes(s)).sum::<u64>());

    let largest = plan.buffers.iter().map(|b| b.bytes).chain([plan.staging_bytes]).max().unwrap();
    assert!(largest <= plan.profile.limits.max_buffer_size, "{largest}");

    // Resident views never overlap and stay in buffers of their role.
    let mut resident: Vec<(u32, u64, u64)> = Vec::new();
    for (view, role) in plan
        .groups
        .iter()
        .flat_map(|g| g.shards.iter().map(|s| (s.view, Role::Matrices)))
        .chain(plan.kv.layers.iter().flat_map(|l| l.segments.iter().map(|s| (s.view, Role::Kv))))
        .chain(plan.recurrent.layers.iter().flat_map(|l| {
            l.segments.iter().flat_map(|s| [(s.states, Role::Recurrent), (s.tails, Role::Recurrent)])
        }))
        .chain(plan.vectors.iter().map(|&window| (window, Role::Vectors)))
    {
        let buffer = &plan.buffers[view.buffer as usize];
        assert_eq!(buffer.role, role);
        assert!(view.offset + view.bytes <= buffer.bytes);
        resident.push((view.buffer, view.offset, view.offset + view.bytes));
    }
    resident.sort_unstable();
    for pair in resident.windows(2) {
        assert!(pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1, "{pair:?}");
    }
    // Every vector has values of a window for itself, and those of an op stand in one.
    let mut places: Vec<(u32, u32, u32)> = plan
        .vector_places
        .iter()
        .zip(&model.vectors)
        .map(|(place, vector)| (place.window, place.word, place.word + vector.len))
        .collect();
    assert_eq!(places.len(), model.vectors.len());
    for (_, op) in &model.graph.ops {
        let windows = op.vectors().into_iter().map(|id| places[id.0 as usize].0);
        assert!(windows.collect::<std::collections::HashSet<_>>().len() <= 1, "{op:?}");
    }
    places.sort_unstable();
    for pair in places.windows(2) {
        assert!(pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1, "{pair:?}");
    }
    for (window, _, end) in places {
        assert!(u64::from(end) * 4 <= plan.vectors[window as usize].bytes);
    }
    // Groups hold every row of every matrix once; segments every page.
    let grouped: usize = plan.groups.iter().map(|g| g.matrices.len()).sum();
    assert_eq!(grouped, model.matrices.len());
    for group in &plan.groups {
        let mut row = 0;
        for shard in &group.shards {
            assert_eq!(shard.first_row, row);
            assert_eq!(shard.view.bytes, u64::from(shard.rows) * group.record.stride());
            row += shard.rows;
            if let [one] = group.matrices[..] {
                let matrix = &model.matrices[one.0 as usize];
                assert!(
                    matrix.experts == 1 || shard.rows.is_multiple_of(matrix.rows / matrix.experts),
                    "an expert is cut"
                );
            }
        }
        assert_eq!(row, group.rows);
    }
    for layer in &plan.kv.layers {
        let mut page = 0;
        for segment in &layer.segments {
            assert_eq!(segment.first_page, page);
            assert_eq!(segment.view.bytes, u64::from(segment.pages) * layer.layout.page_bytes());
            page += segment.pages;
        }
        assert_eq!(page, plan.kv.kinds[layer.kind as usize].pages);
    }

    for layer in &plan.recurrent.layers {
        let mut place = 0;
        for segment in &layer.segments {
            assert_eq!(segment.first, place);
            assert_eq!(segment.states.bytes, u64::from(segment.places) * layer.shape.state_bytes());
            assert!(segment.tails.bytes >= u64::from(segment.places) * layer.shape.tail_bytes());
            place += segment.places;
        }
        assert_eq!(place, plan.geometry.slots * (plan.geometry.draft_depth + 1));
    }

    for program in &plan.programs {
        let shape = StepShape {
            tokens: program.max_tokens,
            logit_rows: program.max_tokens.min(plan.geometry.logit_rows),
            tiles: plan.step.tiles.iter().map(|t| t.capacity).collect(),
            kv_max: plan.geometry.context,
        };
        for dispatch in &program.dispatches {
            let kernel = &plan.kernels[dispatch.kernel as usize];
            let accesses = kernel.operands();
            assert!(accesses.len() < limits.max_storage_buffers_per_shader_stage as usize);
            assert!(plan.params[dispatch.params as usize].len() * 4 <= ALIGN as usize);
            let count = dispatch.workgroups.of(&shape);
            assert!(count > 0, "{}", dispatch.label);
            assert!(
                Count::fold(count, limits.max_compute_workgroups_per_dimension).is_some(),
                "{}",
                dispatch.label
            );
            for view in &dispatch.views {
                assert!(view.offset.is_multiple_of(ALIGN), "{}", dispatch.label);
                assert!(view.bytes <= limits.max_storage_buffer_binding_size, "{}", dispatch.label);
                assert!(view.offset + view.bytes <= plan.buffers[view.buffer as usize].bytes);
            }
        }
    }
    assert!(plan.programs.windows(2).all(|p| p[0].max_tokens < p[1].max_tokens));
    let most = plan.geometry.prefill_chunk.max(plan.geometry.slots);
    assert_eq!(plan.programs.last().unwrap().max_tokens, most);
    assert!(plan.staging_bytes <= limits.max_buffer_size);
    for (i, range) in (0..plan.ranges.count).enumerate() {
        let words = &plan.params[(plan.ranges.first + range) as usize];
        assert_eq!(words[..2], [i as u32 * plan.ranges.tokens, plan.ranges.tokens]);
    }
    assert!(plan.ranges.count * plan.ranges.tokens >= plan.geometry.context);
}
