//! Loads and steps of plans made by hand, without kernels: what is created, uploaded, read back and freed, and
//! what happens when any of that fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use plimsoll_estimator::plan::{
    Buffer, KvKind, KvPlan, ModelFacts, Program, Ranges, RecurrentPlan, Role, Segment, Shard, VectorPlace,
    View, WeightGroup,
};
use plimsoll_estimator::{Admitted, Geometry, Plan};
use plimsoll_kernels::{Format, KvFormat, Profile, Record, StepLayout};
use plimsoll_models::checkpoint::Checkpoint;
use plimsoll_models::graph::{Graph, MatrixId, TensorId};
use plimsoll_models::model::{Matrix, Source, Transform, Vector};
use plimsoll_models::{Model, ModelError};
use plimsoll_runtime::{
    Cancel, Device, DeviceOptions, LoadProgress, Runtime, RuntimeError, Sampling, SequenceInput, StepInput,
    StepOutput, Stepper, Wanted,
};

/// A tensor of a safetensors file: name, type, shape, bytes.
type Stored = (&'static str, &'static str, Vec<usize>, Vec<u8>);

fn safetensors(tensors: &[Stored]) -> Checkpoint {
    let mut data = Vec::new();
    let entries: Vec<String> = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| {
            let start = data.len();
            data.extend_from_slice(bytes);
            let end = data.len();
            format!("{name:?}:{{\"dtype\":{dtype:?},\"shape\":{shape:?},\"data_offsets\":[{start},{end}]}}")
        })
        .collect();
    let mut header = format!("{{{}}}", entries.join(","));
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(&data);
    Checkpoint::from_safetensors_bytes(None, vec![("model.safetensors".into(), file)], None, "toy").unwrap()
}

fn values(count: usize, seed: u32) -> Vec<f32> {
    (0..count).map(|i| (i as f32 + 1.0) * 0.25 + seed as f32 * 1000.0).collect()
}

fn f32s(values: &[f32]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

/// The upper half of each float: bf16 of values that need no more.
fn bf16s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes()).collect()
}

struct Toy {
    model: Model,
    checkpoint: Checkpoint,
}

const A: usize = 40 * 6;
const B: usize = 24 * 6;
const C: usize = 16 * 10;

fn tensors() -> Vec<Stored> {
    vec![
        ("a", "F32", vec![40, 6], f32s(&values(A, 1))),
        ("b", "F32", vec![24, 6], f32s(&values(B, 2))),
        ("c", "BF16", vec![16, 10], bf16s(&values(C, 0))),
        ("v", "BF16", vec![5], bf16s(&values(5, 0))),
        ("w", "F32", vec![3], f32s(&values(3, 3))),
    ]
}

fn toy(tensors: &[Stored]) -> Toy {
    let matrix = |name: &str, rows, cols, format| Matrix {
        source: Source::tensor(name, rows),
        rows,
        cols,
        format,
        experts: 1,
    };
    let vector = |name: &str, len, format| Vector {
        tensor: name.into(),
        len,
        format,
        transform: Transform::None,
        joined: None,
    };
    let model = Model {
        name: "toy".into(),
        architecture: "toy".into(),
        vocab: 100,
        hidden: 6,
        context_max: 64,
        layers: 0,
        matrices: vec![
            matrix("a", 40, 6, Format::F32),
            matrix("b", 24, 6, Format::F32),
            matrix("c", 16, 10, Format::BF16),
        ],
        vectors: vec![vector("v", 5, Format::BF16), vector("w", 3, Format::F32)],
        states: vec![],
        ropes: vec![],
        graph: Graph { tensors: vec![], ops: vec![], logits: TensorId(0) },
        notes: vec![],
        extras: Default::default(),
    };
    Toy { model, checkpoint: safetensors(tensors) }
}

/// A plan without kernels. `weights` is the role of the weight buffers: an arena can be read back.
fn plan(profile: &Profile, weights: Role) -> Plan {
    let buffer = |name: &str, segment, role, bytes| Buffer { name: name.into(), segment, role, bytes };
    let [f32_record, bf16_record] =
        [Record::new(Format::F32, 6).unwrap(), Record::new(Format::BF16, 10).unwrap()];
    let step = StepLayout::new(8, 4, 2, &[4], &[2], &[]).unwrap();
    let step_bytes = step.words * 4;
    let buffers = vec![
        buffer("weights.0", Segment::Weights, weights, 2304),
        buffer("weights.1", Segment::Weights, weights, 768),
        buffer("vectors", Segment::Weights, weights, 256),
        buffer("kv.0", Segment::Kv, Role::Kv, 1 << 20),
        buffer("arena.0", Segment::Activations, Role::Arena, 1 << 16),
        buffer("step", Segment::Io, Role::Step, step_bytes),
        buffer("params", Segment::Io, Role::Params, 512),
        buffer("upload.0", Segment::Io, Role::Upload, step_bytes),
        buffer("upload.1", Segment::Io, Role::Upload, step_bytes),
        buffer("readback", Segment::Io, Role::Readback, 4096),
    ];
    let stride = f32_record.stride();
    assert_eq!(stride * 24 % 256, 0);
    let shard = |buffer, first_row: u32, rows: u32, offset, stride: u64| Shard {
        first_row,
        rows,
        view: View { buffer, offset, bytes: u64::from(rows) * stride },
    };
    let group = |matrices: &[u32], record, rows, shards| WeightGroup {
        matrices: matrices.iter().copied().map(MatrixId).collect(),
        record,
        rows,
        shards,
    };
    let arena = View { buffer: 4, offset: 0, bytes: 4096 };
    Plan {
        schema: 1,
        model: ModelFacts {
            name: "toy".into(),
            architecture: "toy".into(),
            parameters: 0,
            vocab: 100,
            context_max: 64,
            attention_full: 0,
            attention_sliding: 0,
            recurrent: 0,
            stateless: 0,
        },
        geometry: Geometry {
            context: 64,
            slots: 2,
            prefill_chunk: 8,
            kv: KvFormat::F32,
            logit_rows: 4,
            draft_depth: 0,
            priced: Default::default(),
        },
        profile: profile.clone(),
        estimate_only: None,
        buffers,
        staging_bytes: 512,
        groups: vec![
            // The second matrix begins inside the second shard.
            group(
                &[0, 1],
                f32_record,
                64,
                vec![shard(0, 0, 24, 0, stride), shard(0, 24, 40, 24 * stride, stride)],
            ),
            group(&[2], bf16_record, 16, vec![shard(1, 0, 16, 256, bf16_record.stride())]),
        ],
        vectors: vec![View { buffer: 2, offset: 0, bytes: 32 }],
        vector_places: [0, 5].map(|word| VectorPlace { window: 0, word }).to_vec(),
        kv: KvPlan { kinds: vec![KvKind { window: None, pages_per_slot: 2, pages: 4 }], layers: vec![] },
        recurrent: RecurrentPlan::default(),
        snapshots: vec![],
        step,
        step_buffer: 5,
        params_buffer: 6,
        upload_buffers: vec![7, 8],
        readback_buffer: 9,
        params: vec![vec![1, 2, 3], vec![0, 1 << 31, 0, 0]],
        ranges: Ranges { tokens: 64, count: 1, first: 1, whole: 1 },
        kernels: vec![],
        programs: vec![Program {
            name: "nothing".into(),
            max_tokens: 8,
            dispatches: vec![],
            logits: arena,
            greedy: arena,
            top_k: arena,
        }],
    }
}

fn device() -> Device {
    Device::open(&DeviceOptions::default()).unwrap()
}

fn load(device: &Device, toy: &Toy, plan: Plan) -> Result<Runtime, RuntimeError> {
    Runtime::load(device.clone(), &toy.model, &toy.checkpoint, Admitted::insist(plan, None), &mut |_| ())
}

fn step(
    runtime: &mut Runtime,
    sampling: Sampling,
    cancel: Option<&Cancel>,
) -> Result<StepOutput, RuntimeError> {
    let wanted = if sampling == Sampling::None { Wanted::None } else { Wanted::Last };
    let sequences = [SequenceInput { slot: 1, position: 0, ids: &[7, 8, 9], wanted }];
    runtime.step(&StepInput { sequences: &sequences, sampling, cancel })
}

/// Reads a view of a buffer as the one row of logits of a step.
fn read(device: &Device, toy: &Toy, buffer: u32, bytes: u64) -> Vec<u32> {
    let mut plan = plan(device.profile(), Role::Arena);
    plan.model.vocab = (bytes / 4) as u32;
    plan.programs[0].logits = View { buffer, offset: 0, bytes };
    match step(&mut load(device, toy, plan).unwrap(), Sampling::Logits, None).unwrap() {
        StepOutput::Logits { values, .. } => values.into_iter().map(f32::to_bits).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_byte_of_the_weights_arrives() {
    let (device, toy) = (device(), toy(&tensors()));
    let words = |bytes: &[u8]| bytemuck::pod_collect_to_vec::<u8, u32>(bytes);

    // Rows of 6 values fill octs of 8; what is left of the buffer is zero.
    let record = Record::new(Format::F32, 6).unwrap();
    let mut rows = f32s(&values(A, 1));
    rows.extend(f32s(&values(B, 2)));
    let mut expected = vec![0; 2304];
    record.repack(&rows, &mut expected[..64 * record.stride() as usize]).unwrap();
    assert_eq!(read(&device, &toy, 0, 2304), words(&expected));

    let record = Record::new(Format::BF16, 10).unwrap();
    let mut expected = vec![0; 768];
    record.repack(&bf16s(&values(C, 0)), &mut expected[256..256 + 16 * record.stride() as usize]).unwrap();
    assert_eq!(read(&device, &toy, 1, 768), words(&expected));

    // bf16 is widened; 0.25 to 1.25 need no more bits.
    let mut expected = values(5, 0);
    expected.extend(values(3, 3));
    expected.resize(64, 0.0);
    assert_eq!(read(&device, &toy, 2, 256), words(&f32s(&expected)));
}

#[test]
fn the_books_and_the_counters_agree_with_the_plan() {
    let (device, toy) = (device(), toy(&tensors()));
    let base = device.counters();
    let plan = plan(device.profile(), Role::Matrices);
    let mut seen = Vec::new();
    let admitted = Admitted::insist(plan.clone(), None);
    let mut runtime = Runtime::load(device.clone(), &toy.model, &toy.checkpoint, admitted, &mut |p| {
        if let LoadProgress::Weights { tensor, tensor_done, tensor_total, done, total } = p {
            seen.push((tensor.to_owned(), tensor_done, tensor_total, done, total));
        }
    })
    .unwrap();
    let planned: Vec<(String, u64)> = plan.buffers.iter().map(|b| (b.name.clone(), b.bytes)).collect();
    let held: Vec<(String, u64)> = device.buffers().into_iter().map(|e| (e.name, e.bytes)).collect();
    assert_eq!(held, planned);
    assert_eq!(device.totals().peak_bytes, plan.load_peak());
    let loaded = device.counters();
    assert_eq!(loaded.buffers - base.buffers, planned.len() as i64);
    assert_eq!(loaded.buffer_memory - base.buffer_memory, plan.total() as i64);
    // Every tensor is told of until it is whole, and their bytes are those of everything.
    let all = 2048 + 512 + 32 + 512;
    let last = seen.last().unwrap();
    assert_eq!((last.3, last.4), (all, all));
    let mut whole = std::collections::BTreeMap::new();
    let mut before = 0;
    for (tensor, tensor_done, tensor_total, done, total) in &seen {
        let had = whole.insert(tensor.as_str(), (*tensor_done, *tensor_total)).map_or(0, |(done, _)| done);
        assert_eq!((tensor_done - had, *total), (done - before, all), "{tensor}");
        before = *done;
    }
    assert_eq!(whole.keys().copied().collect::<Vec<_>>(), ["a", "b", "c", "parameters", "v", "w"]);
    assert!(whole.values().all(|(done, total)| done == total), "{whole:?}");
    assert_eq!(whole["c"], (512, 512));
    assert!(
        seen.iter().filter(|s| s.0 == "a").count() > 1,
        "a tensor larger than the staging comes in parts"
    );

    let created = device.totals().created;
    for i in 0..200 {
        let sampling = [Sampling::None, Sampling::Logits, Sampling::Greedy, Sampling::TopK][i % 4];
        runtime.set_block_table(0, 1, &[i as u32 % 4, 1]).unwrap();
        step(&mut runtime, sampling, None).unwrap();
        assert_eq!(device.counters(), loaded, "step {i}");
    }
    assert_eq!(device.totals().created, created);
    assert_eq!(runtime.unload().counters(), base);
    assert_eq!(device.totals().live, 0);
}

#[test]
fn engine_bug_18_a_failed_allocation_frees_everything_and_the_next_load_works() {
    let (device, toy) = (device(), toy(&tensors()));
    let base = device.counters();
    let plan = plan(device.profile(), Role::Matrices);
    let creations = plan.buffers.len() as u64 + 2;
    for n in 1..=creations {
        device.faults().fail_buffer(n);
        let error = load(&device, &toy, plan.clone()).unwrap_err();
        let RuntimeError::OutOfMemory { buffer, bytes, .. } = &error else { panic!("{n}: {error}") };
        let expected = match plan.buffers.get(n as usize - 1) {
            Some(b) => (b.name.clone(), b.bytes),
            None => (format!("staging.{}", n as usize - plan.buffers.len() - 1), 256),
        };
        assert_eq!((buffer, bytes), (&expected.0, &expected.1));
        assert_eq!(device.totals().live, 0, "after failure {n}");
        assert_eq!(device.counters(), base, "after failure {n}");
        let mut runtime = load(&device, &toy, plan.clone()).unwrap();
        step(&mut runtime, Sampling::Logits, None).unwrap();
    }
    // The one after the last does not happen during a load.
    device.faults().fail_buffer(creations + 1);
    drop(load(&device, &toy, plan).unwrap());
    assert!(device.faults().armed());
}

#[test]
fn engine_bug_18_a_failed_submit_or_map_is_an_error_and_the_next_request_works() {
    let (device, toy) = (device(), toy(&tensors()));
    let plan = plan(device.profile(), Role::Matrices);
    let before = device.submits();
    let mut runtime = load(&device, &toy, plan.clone()).unwrap();
    let of_load = device.submits() - before;
    assert!(of_load > 10, "a small staging buffer needs many submits: {of_load}");
    for n in 1..=3 {
        device.faults().fail_submit(n);
        let failed = (0..3).map(|_| step(&mut runtime, Sampling::Logits, None)).filter_map(Result::err);
        assert!(matches!(failed.collect::<Vec<_>>()[..], [RuntimeError::Submit { .. }]));
        step(&mut runtime, Sampling::Logits, None).unwrap();
    }
    // A step maps twice: the upload and the readback.
    for n in 1..=4 {
        device.faults().fail_map(n);
        let failed = (0..2).map(|_| step(&mut runtime, Sampling::Logits, None)).filter_map(Result::err);
        let [RuntimeError::Map { buffer, .. }] = &failed.collect::<Vec<_>>()[..] else { panic!("{n}") };
        assert!(buffer.starts_with(if n % 2 == 1 { "upload" } else { "readback" }), "{n}: {buffer}");
        step(&mut runtime, Sampling::Logits, None).unwrap();
    }
    drop(runtime);
    for n in 1..=of_load {
        device.faults().fail_submit(n);
        assert!(matches!(load(&device, &toy, plan.clone()), Err(RuntimeError::Submit { .. })), "{n}");
        assert_eq!(device.totals().live, 0);
    }
    drop(load(&device, &toy, plan).unwrap());
}

#[test]
fn a_lost_device_is_an_error_on_every_call_after() {
    let (device, toy) = (device(), toy(&tensors()));
    let plan = plan(device.profile(), Role::Matrices);
    let mut runtime = load(&device, &toy, plan.clone()).unwrap();
    device.faults().lose_device(1);
    for _ in 0..3 {
        let error = step(&mut runtime, Sampling::Logits, None).unwrap_err();
        assert!(matches!(error, RuntimeError::DeviceLost { .. }), "{error}");
        assert!(!error.device_is_usable());
    }
    drop(runtime);
    assert!(matches!(load(&device, &toy, plan.clone()), Err(RuntimeError::DeviceLost { .. })));
    let device = self::device();
    step(&mut load(&device, &toy, plan).unwrap(), Sampling::Logits, None).unwrap();
}

#[test]
fn a_raised_flag_cancels_before_anything_is_submitted() {
    let (device, toy) = (device(), toy(&tensors()));
    let mut runtime = load(&device, &toy, plan(device.profile(), Role::Matrices)).unwrap();
    let (before, cancel) = (device.submits(), Cancel::new());
    cancel.clone().cancel();
    let error = step(&mut runtime, Sampling::Logits, Some(&cancel)).unwrap_err();
    assert!(matches!(error, RuntimeError::Cancelled));
    assert_eq!(device.submits(), before);
    step(&mut runtime, Sampling::Logits, Some(&Cancel::new())).unwrap();
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_created() {
    let device = device();
    let good = plan(device.profile(), Role::Matrices);
    let refused = |toy: &Toy, plan: &Plan| {
        let before = device.totals();
        let error = load(&device, toy, plan.clone()).unwrap_err();
        assert_eq!(device.totals(), before, "{error}");
        error
    };
    let mut stored = tensors();
    stored.remove(1);
    let error = refused(&toy(&stored), &good);
    assert!(matches!(&error, RuntimeError::Model(ModelError::MissingTensor { name, .. }) if name == "b"));
    let mut stored = tensors();
    stored[0].2 = vec![6, 40];
    let error = refused(&toy(&stored), &good).to_string();
    assert!(error.contains("tensor a") && error.contains("[40, 6]") && error.contains("[6, 40]"), "{error}");
    let mut stored = tensors();
    stored[4] = ("w", "BF16", vec![3], bf16s(&values(3, 0)));
    let error = refused(&toy(&stored), &good).to_string();
    assert!(error.contains("tensor w") && error.contains("f32") && error.contains("bf16"), "{error}");

    let toy = toy(&tensors());
    let changed = |change: fn(&mut Plan)| {
        let mut plan = good.clone();
        change(&mut plan);
        refused(&toy, &plan)
    };
    assert!(matches!(
        changed(|p| p.profile.limits.max_buffer_size = u64::MAX),
        RuntimeError::Limit { limit: "maxBufferSize", .. }
    ));
    let edits: [fn(&mut Plan); 8] = [
        |p| p.buffers[3].bytes = 100,
        |p| p.step_buffer = 99,
        |p| p.readback_buffer = 0,
        |p| p.upload_buffers.clear(),
        |p| p.groups[0].shards[1].view.offset = 2048,
        |p| p.groups[0].shards[1].rows = 41,
        |p| p.step.ids = u32::MAX,
        |p| p.ranges.whole = 2,
    ];
    for edit in edits {
        let error = changed(edit);
        assert!(matches!(error, RuntimeError::Plan { .. }), "{error}");
    }
}

#[test]
fn large_buffers_are_reserved_to_the_byte_but_for_a_constant() {
    let (device, toy) = (device(), toy(&tensors()));
    let Some(base) = device.reservation() else { return };
    let mut plan = plan(device.profile(), Role::Matrices);
    plan.buffers[3].bytes = 12 << 20;
    plan.buffers[4].bytes = 7 << 20;
    let runtime = load(&device, &toy, plan.clone()).unwrap();
    let held = device.reservation().unwrap();
    // The allocator rounds sizes up to the alignment of their memory.
    assert!((plan.total()..plan.total() + 4096).contains(&(held.allocated - base.allocated)), "{held:?}");
    let extra = held.reserved - plan.total();
    assert!(extra <= plimsoll_runtime::device::RESERVATION_SLACK, "{extra} bytes beyond the plan");
    drop(runtime);
}
