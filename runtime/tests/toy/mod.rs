//! Models made by hand, without kernels, and plans that place their matrices one behind the other.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code)]

use plimsoll_estimator::plan::{
    ALIGN, Buffer, KvPlan, ModelFacts, Program, Ranges, RecurrentPlan, Role, Segment, Shard, VectorPlace,
    View, WeightGroup,
};
use plimsoll_estimator::{Admitted, Geometry, Plan};
use plimsoll_kernels::{Format, KvFormat, Profile, Record, StepLayout};
use plimsoll_models::Model;
use plimsoll_models::checkpoint::Checkpoint;
use plimsoll_models::graph::{Graph, MatrixId, TensorId};
use plimsoll_models::model::{Matrix, Piece, ScaleForm, Source, TensorScale, Transform, Vector};
use plimsoll_runtime::{
    Device, Runtime, RuntimeError, Sampling, SequenceInput, StepInput, StepOutput, Stepper, Wanted,
};
use std::path::Path;

/// A tensor of a safetensors file: name, type, shape, bytes.
pub type Stored = (String, &'static str, Vec<usize>, Vec<u8>);

pub fn stored(name: &str, dtype: &'static str, shape: &[usize], bytes: Vec<u8>) -> Stored {
    (name.to_owned(), dtype, shape.to_vec(), bytes)
}

fn file(tensors: &[&Stored]) -> Vec<u8> {
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
    file
}

/// The index, and the tensors in `files` files, dealt in turn.
fn shards(tensors: &[Stored], files: usize) -> (String, Vec<(String, Vec<u8>)>) {
    let name = |i: usize| format!("model-{i}.safetensors");
    let map: Vec<String> =
        (0..).zip(tensors).map(|(i, t): (usize, _)| format!("{:?}:{:?}", t.0, name(i % files))).collect();
    let index = format!("{{\"weight_map\":{{{}}}}}", map.join(","));
    let files = (0..files)
        .map(|f| (name(f), file(&tensors.iter().skip(f).step_by(files).collect::<Vec<_>>())))
        .collect();
    (index, files)
}

/// The tensors in `files` files in memory.
pub fn sharded(tensors: &[Stored], files: usize) -> Checkpoint {
    let (index, files) = shards(tensors, files);
    Checkpoint::from_safetensors_bytes(Some(index.as_bytes()), files, None, "toy").unwrap()
}

/// The tensors in `files` files of a directory of their own.
pub fn in_files(tensors: &[Stored], files: usize, directory: &Path) -> Checkpoint {
    let (index, files) = shards(tensors, files);
    std::fs::create_dir_all(directory).unwrap();
    std::fs::write(directory.join("config.json"), "{}").unwrap();
    std::fs::write(directory.join("model.safetensors.index.json"), index).unwrap();
    files.iter().for_each(|(name, bytes)| std::fs::write(directory.join(name), bytes).unwrap());
    Checkpoint::open(directory).unwrap()
}

pub fn checkpoint(tensors: &[Stored]) -> Checkpoint {
    sharded(tensors, 1)
}

/// The upper half of each float: bf16 of values that need no more.
pub fn bf16s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes()).collect()
}

pub fn f32s(values: &[f32]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

/// Quarters that bf16 holds exactly.
pub fn values(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7 + seed * 13) % 200) as f32 * 0.25 - 20.0).collect()
}

pub fn piece(planes: &[&str], first_row: u32, rows: u32) -> Piece {
    Piece::rows(planes.iter().map(|&p| p.to_owned()).collect(), first_row, rows)
}

pub fn scaled(piece: Piece, tensor: &str, index: Option<u32>, form: ScaleForm) -> Piece {
    Piece { scale: Some(TensorScale { tensor: tensor.into(), index, form }), ..piece }
}

pub fn matrix(format: Format, cols: u32, experts: u32, pieces: Vec<Piece>) -> Matrix {
    let rows = pieces.iter().map(|p| p.rows).sum();
    Matrix { source: Source { pieces }, rows, cols, format, experts }
}

pub fn vector(tensor: &str, len: u32, format: Format, transform: Transform) -> Vector {
    Vector { tensor: tensor.into(), len, format, transform, joined: None }
}

pub fn model(matrices: Vec<Matrix>, vectors: Vec<Vector>) -> Model {
    Model {
        name: "toy".into(),
        architecture: "toy".into(),
        vocab: 100,
        hidden: 6,
        context_max: 64,
        layers: 0,
        matrices,
        vectors,
        states: vec![],
        ropes: vec![],
        graph: Graph { tensors: vec![], ops: vec![], logits: TensorId(0) },
        notes: vec![],
        extras: Default::default(),
    }
}

/// A plan without kernels. Each matrix is a group of its own, cut into shards after `cut` rows, if it has more; all
/// stand in buffer 0, the vectors in buffer 1. `weights` is the role of both: an arena can be read back.
pub fn plan(profile: &Profile, model: &Model, cut: u32, staging_bytes: u64, weights: Role) -> Plan {
    let mut at = 0;
    let mut groups = Vec::new();
    for (id, matrix) in (0..).zip(&model.matrices) {
        let record = Record::new(matrix.format, matrix.cols).unwrap();
        let mut shards = Vec::new();
        let first = cut.min(matrix.rows);
        for (first_row, rows) in [(0, first), (first, matrix.rows - first)] {
            let bytes = u64::from(rows) * record.stride();
            if bytes > 0 {
                shards.push(Shard { first_row, rows, view: View { buffer: 0, offset: at, bytes } });
            }
            at = (at + bytes).next_multiple_of(ALIGN);
        }
        groups.push(WeightGroup { matrices: vec![MatrixId(id)], record, rows: matrix.rows, shards });
    }
    let mut words = 0;
    let vector_places: Vec<VectorPlace> = model
        .vectors
        .iter()
        .map(|v| {
            words += v.len;
            VectorPlace { window: 0, word: words - v.len }
        })
        .collect();
    let buffer = |name: &str, segment, role, bytes: u64| Buffer {
        name: name.into(),
        segment,
        role,
        bytes: bytes.max(1).next_multiple_of(ALIGN),
    };
    let step = StepLayout::new(8, 4, 2, &[4], &[], &[]).unwrap();
    let step_bytes = step.words * 4;
    let buffers = vec![
        buffer("weights.0", Segment::Weights, weights, at),
        buffer("vectors", Segment::Weights, weights, u64::from(words) * 4),
        buffer("arena.0", Segment::Activations, Role::Arena, 1 << 12),
        buffer("step", Segment::Io, Role::Step, step_bytes),
        buffer("params", Segment::Io, Role::Params, 256),
        buffer("upload.0", Segment::Io, Role::Upload, step_bytes),
        buffer("readback", Segment::Io, Role::Readback, at.max(u64::from(words) * 4).max(1 << 12)),
    ];
    let arena = View { buffer: 2, offset: 0, bytes: 1 << 12 };
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
        staging_bytes,
        groups,
        vectors: vec![View { buffer: 1, offset: 0, bytes: u64::from(words.max(1)) * 4 }],
        vector_places,
        kv: KvPlan { kinds: vec![], layers: vec![] },
        recurrent: RecurrentPlan::default(),
        snapshots: vec![],
        step,
        step_buffer: 3,
        params_buffer: 4,
        upload_buffers: vec![5],
        readback_buffer: 6,
        params: vec![vec![0, 1 << 31, 0, 0]],
        ranges: Ranges { tokens: 64, count: 1, first: 0, whole: 0 },
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

pub fn load(
    device: &Device,
    model: &Model,
    checkpoint: &Checkpoint,
    plan: Plan,
) -> Result<Runtime, RuntimeError> {
    Runtime::load(device.clone(), model, checkpoint, Admitted::insist(plan, None), &mut |_| ())
}

/// One step of one sequence that wants the logits after it.
pub fn step(runtime: &mut Runtime, slot: u32, position: u32, ids: &[u32]) -> Result<Vec<f32>, RuntimeError> {
    let sequences = [SequenceInput { slot, position, ids, wanted: Wanted::Last }];
    let input = StepInput { sequences: &sequences, sampling: Sampling::Logits, cancel: None };
    match runtime.step(&input)? {
        StepOutput::Logits { values, .. } => Ok(values),
        other => panic!("{other:?}"),
    }
}

/// What stands in a buffer after a load, as the one row of logits of a step.
pub fn read(device: &Device, model: &Model, checkpoint: &Checkpoint, plan: Plan, buffer: usize) -> Vec<u8> {
    let mut plan = plan;
    let bytes = plan.buffers[buffer].bytes;
    plan.buffers[buffer].role = Role::Arena;
    plan.buffers[plan.readback_buffer as usize].bytes = bytes.max(1 << 12);
    plan.model.vocab = (bytes / 4) as u32;
    plan.programs[0].logits = View { buffer: buffer as u32, offset: 0, bytes };
    let mut runtime = load(device, model, checkpoint, plan).unwrap();
    f32s(&step(&mut runtime, 1, 0, &[7, 8, 9]).unwrap())
}

/// The decoded rows of matrix `index` of a loaded plan.
pub fn decoded(
    device: &Device,
    model: &Model,
    checkpoint: &Checkpoint,
    plan: &Plan,
    index: usize,
) -> Vec<f32> {
    let bytes = read(device, model, checkpoint, plan.clone(), 0);
    let group = &plan.groups[index];
    let mut values = Vec::new();
    for shard in &group.shards {
        let at = shard.view.offset as usize..(shard.view.offset + shard.view.bytes) as usize;
        for record in bytes[at].chunks_exact(group.record.stride() as usize) {
            let mut row = vec![f32::NAN; group.record.cols() as usize];
            group.record.decode(record, &mut row);
            values.extend(row);
        }
    }
    values
}
