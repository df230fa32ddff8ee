//! Models for tests: published configurations and golden checkpoints under `tests/data`, and ones built by hand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code)]

pub mod check;
pub mod hybrid;

use plimsoll_kernels::{AttentionShape, Format};
use plimsoll_models::checkpoint::Checkpoint;
use plimsoll_models::graph::{Activation, Attention, GraphBuilder, MatrixId, StateId, VectorId};
use plimsoll_models::model::{Matrix, Source, State, Transform, Vector};
use plimsoll_models::{Model, Registry};
use std::path::PathBuf;

pub fn data(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/data").join(path)
}

pub fn open(path: &str) -> (Checkpoint, Model) {
    let checkpoint = Checkpoint::open(&data(path)).unwrap();
    let model = Registry::standard().build(&checkpoint).unwrap();
    (checkpoint, model)
}

/// Sizes of a model built by hand.
#[derive(Clone, Debug)]
pub struct Toy {
    pub vocab: u32,
    pub hidden: u32,
    pub ffn: u32,
    pub shape: AttentionShape,
    pub states: Vec<State>,
    pub format: Format,
    pub context_max: u32,
}

impl Toy {
    /// One full-attention layer of small sizes.
    pub fn small() -> Self {
        let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 16 };
        Self {
            vocab: 96,
            hidden: 64,
            ffn: 96,
            shape,
            states: vec![State::KvFull { shape }],
            format: Format::F32,
            context_max: 4096,
        }
    }

    pub fn build(&self) -> Model {
        let (mut matrices, mut vectors) = (Vec::new(), Vec::new());
        let mut matrix = |rows: u32, cols: u32| {
            let source = Source::tensor(format!("m{}", matrices.len()), rows);
            matrices.push(Matrix { source, rows, cols, format: self.format, experts: 1 });
            MatrixId(matrices.len() as u32 - 1)
        };
        let mut vector = |len: u32| {
            let tensor = format!("v{}", vectors.len());
            vectors.push(Vector {
                tensor,
                len,
                format: Format::F32,
                transform: Transform::None,
                joined: None,
            });
            VectorId(vectors.len() as u32 - 1)
        };
        let mut g = GraphBuilder::new();
        let table = matrix(self.vocab, self.hidden);
        let x = g.embed(table, self.hidden, 1.0);
        for (layer, state) in self.states.iter().enumerate() {
            g.scope(format!("layers.{layer}"));
            let shape = *state.attention().expect("attention");
            let (q, k) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
            let h = g.rms_norm("norm", x, vector(self.hidden), false, 1e-6);
            let parts = [matrix(q, self.hidden), matrix(k, self.hidden), matrix(k, self.hidden)];
            let qkv = g.linear("qkv", h, &parts, shape.qkv_width());
            let attention = Attention::plain(shape, StateId(layer as u32), 0.25);
            let h = g.attention(qkv, attention);
            g.linear_add("o", h, &[matrix(self.hidden, q)], x);
            let up = [matrix(self.ffn, self.hidden), matrix(self.ffn, self.hidden)];
            let h = g.linear("gate_up", x, &up, 2 * self.ffn);
            let h = g.gate(h, Activation::Silu);
            g.linear_add("down", h, &[matrix(self.hidden, self.ffn)], x);
        }
        g.scope("");
        let rows = g.select_rows(x);
        let logits = g.linear("logits", rows, &[table], self.vocab);
        Model {
            name: "toy".into(),
            architecture: "toy".into(),
            vocab: self.vocab,
            hidden: self.hidden,
            context_max: self.context_max,
            layers: self.states.len() as u32,
            matrices,
            vectors,
            states: self.states.clone(),
            ropes: vec![],
            graph: g.finish(logits),
            notes: vec![],
            extras: Default::default(),
        }
    }
}
