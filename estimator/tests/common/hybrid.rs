//! A hybrid built by hand: a Mamba2 layer, a mixture of experts and an attention layer.

use plimsoll_kernels::ops::route::{Groups, Scoring};
use plimsoll_kernels::{AttentionShape, Format, SsmShape};
use plimsoll_models::Model;
use plimsoll_models::graph::{
    Activation, Attention, Conv, GatedNorm, GraphBuilder, MatrixId, Router, Ssd, StateId, VectorId,
};
use plimsoll_models::model::{Matrix, Source, State, Transform, Vector};

/// Sizes.
#[derive(Clone, Debug)]
pub struct Hybrid {
    pub vocab: u32,
    pub hidden: u32,
    pub shape: AttentionShape,
    pub ssm: SsmShape,
    pub taps: u32,
    pub experts: u32,
    pub top: u32,
    pub groups: Option<Groups>,
    pub width: u32,
    pub format: Format,
}

impl Hybrid {
    pub fn small() -> Self {
        Self {
            vocab: 96,
            hidden: 32,
            shape: AttentionShape { heads: 4, kv_heads: 2, head_dim: 32 },
            ssm: SsmShape { heads: 4, head_dim: 8, state: 16, groups: 2 },
            taps: 4,
            experts: 8,
            top: 2,
            groups: None,
            width: 64,
            format: Format::F32,
        }
    }

    pub fn build(&self) -> Model {
        let (mut matrices, mut vectors) = (Vec::new(), Vec::new());
        let mut matrix = |experts: u32, n: u32, cols: u32| {
            let (rows, source) = (experts * n, Source::tensor(format!("m{}", matrices.len()), experts * n));
            matrices.push(Matrix { source, rows, cols, format: self.format, experts });
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
        let Self { hidden, ssm, shape, .. } = *self;
        let mut g = GraphBuilder::new();
        let table = matrix(1, self.vocab, hidden);
        let x = g.embed(table, hidden, 1.0);

        let (inner, channels) = (ssm.inner(), ssm.channels());
        let h = g.rms_norm("norm", x, vector(hidden), false, 1e-5);
        let projected = inner + channels + ssm.heads;
        let zxbcdt = g.linear("in_proj", h, &[matrix(1, projected, hidden)], projected);
        let state = StateId(0);
        let (weight, bias) = (vector(channels * self.taps), Some(vector(channels)));
        let xbc = g.conv(zxbcdt, channels, Conv { column: inner, weight, bias, state });
        let (a, d, dt_bias) = (vector(ssm.heads), vector(ssm.heads), vector(ssm.heads));
        let dt_column = inner + channels;
        let y = g.ssd(xbc, zxbcdt, Ssd { shape: ssm, dt_column, a, d, dt_bias, dt_limit: None, state });
        let weight = vector(inner);
        g.gated_norm(
            y,
            zxbcdt,
            GatedNorm { gate_column: 0, weight, groups: ssm.groups, eps: 1e-5, gate_first: true },
        );
        g.linear_add("out_proj", y, &[matrix(1, hidden, inner)], x);

        let h = g.rms_norm("norm", x, vector(hidden), false, 1e-5);
        let logits = g.linear("gate", h, &[matrix(1, self.experts, hidden)], self.experts);
        let router = Router {
            bias: Some(vector(self.experts)),
            groups: self.groups,
            scale: 2.5,
            ..Router::plain(self.top, Scoring::Sigmoid)
        };
        let routing = g.route(logits, router);
        let up = g.experts("up", h, routing, matrix(self.experts, self.width, hidden), self.width);
        g.activate(up, Activation::ReluSquared);
        let down = g.experts("down", up, routing, matrix(self.experts, hidden, self.width), hidden);
        g.combine_add(down, routing, x);

        let (q, k) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        let h = g.rms_norm("norm", x, vector(hidden), false, 1e-5);
        let parts = [matrix(1, q, hidden), matrix(1, k, hidden), matrix(1, k, hidden)];
        let qkv = g.linear("qkv", h, &parts, shape.qkv_width());
        let attention = Attention::plain(shape, StateId(1), 0.25);
        let h = g.attention(qkv, attention);
        g.linear_add("o", h, &[matrix(1, hidden, q)], x);

        let rows = g.select_rows(x);
        let logits = g.linear("logits", rows, &[table], self.vocab);
        Model {
            name: "hybrid".into(),
            architecture: "hybrid".into(),
            vocab: self.vocab,
            hidden,
            context_max: 4096,
            layers: 3,
            matrices,
            vectors,
            states: vec![State::Recurrent { shape: ssm.recurrent(self.taps) }, State::KvFull { shape }],
            ropes: vec![],
            graph: g.finish(logits),
            notes: vec![],
            extras: Default::default(),
        }
    }
}
