//! Writing a graph op by op.

use super::{
    Activation, Attention, ClampedGate, Conv, Delta, GatedNorm, Graph, MatrixId, Multiply, Op, Router, Rows,
    Ssd, Tensor, TensorId, VectorId,
};

/// Builds a [`Graph`]. Labels take the current scope: `layers.3.mlp.gate_up`.
#[derive(Debug, Default)]
pub struct GraphBuilder {
    tensors: Vec<Tensor>,
    ops: Vec<(String, Op)>,
    scope: String,
}

impl GraphBuilder {
    /// An empty graph.
    pub fn new() -> Self {
        Self::default()
    }

    /// Names the part of the model that follows.
    pub fn scope(&mut self, name: impl Into<String>) {
        self.scope = name.into();
    }

    /// A new activation.
    pub fn tensor(&mut self, name: &str, width: u32, rows: Rows) -> TensorId {
        let id = TensorId(self.tensors.len() as u32);
        self.tensors.push(Tensor { name: self.label(name), width, rows });
        id
    }

    /// Appends an op.
    pub fn push(&mut self, name: &str, op: Op) {
        let label = self.label(name);
        self.ops.push((label, op));
    }

    /// The width of an activation.
    pub fn width(&self, id: TensorId) -> u32 {
        self.tensors.get(id.0 as usize).map_or(0, |t| t.width)
    }

    fn rows(&self, id: TensorId) -> Rows {
        self.tensors.get(id.0 as usize).map_or(Rows::Tokens, |t| t.rows)
    }

    fn label(&self, name: &str) -> String {
        if self.scope.is_empty() { name.to_owned() } else { [&self.scope, ".", name].concat() }
    }

    /// `scale · table[ids]`, `[T, width]`.
    pub fn embed(&mut self, table: MatrixId, width: u32, scale: f32) -> TensorId {
        let out = self.tensor("embed", width, Rows::Tokens);
        self.push("embed", Op::Embed { table, scale, out });
        out
    }

    /// A norm into a new tensor.
    pub fn rms_norm(
        &mut self,
        name: &str,
        x: TensorId,
        weight: VectorId,
        plus_one: bool,
        eps: f32,
    ) -> TensorId {
        let (width, rows) = (self.width(x), self.rows(x));
        let out = self.tensor(name, width, rows);
        self.push(name, Op::RmsNorm { x, weight, plus_one, eps, out, accumulate: false });
        out
    }

    /// `to += norm(x)`.
    pub fn rms_norm_add(
        &mut self,
        name: &str,
        x: TensorId,
        weight: VectorId,
        plus_one: bool,
        eps: f32,
        to: TensorId,
    ) {
        self.push(name, Op::RmsNorm { x, weight, plus_one, eps, out: to, accumulate: true });
    }

    /// `x·Wᵀ` into a new tensor of `width` columns.
    pub fn linear(&mut self, name: &str, x: TensorId, parts: &[MatrixId], width: u32) -> TensorId {
        let rows = self.rows(x);
        let out = self.tensor(name, width, rows);
        self.push(name, Op::Linear { x, parts: parts.to_vec(), bias: vec![], out, accumulate: false });
        out
    }

    /// `to += x·Wᵀ`.
    pub fn linear_add(&mut self, name: &str, x: TensorId, parts: &[MatrixId], to: TensorId) {
        self.push(name, Op::Linear { x, parts: parts.to_vec(), bias: vec![], out: to, accumulate: true });
    }

    /// Attention into a new tensor.
    pub fn attention(&mut self, qkv: TensorId, attention: Attention) -> TensorId {
        let out = self.tensor("attention", attention.shape.heads * attention.shape.head_dim, Rows::Tokens);
        self.push("attention", Op::Attention { qkv, attention, out });
        out
    }

    /// A gated activation into a new tensor of half the width.
    pub fn gate(&mut self, x: TensorId, activation: Activation) -> TensorId {
        let (width, rows) = (self.width(x) / 2, self.rows(x));
        let out = self.tensor("gate", width, rows);
        self.push("gate", Op::Gate { x, activation, out });
        out
    }

    /// A gated activation with bounds into a new tensor of half the width.
    pub fn clamped_gate(&mut self, x: TensorId, gate: ClampedGate) -> TensorId {
        let (width, rows) = (self.width(x) / 2, self.rows(x));
        let out = self.tensor("gate", width, rows);
        self.push("gate", Op::ClampedGate { x, gate, out });
        out
    }

    /// A convolution of `channels` columns into a new tensor.
    pub fn conv(&mut self, x: TensorId, channels: u32, conv: Conv) -> TensorId {
        let out = self.tensor("conv", channels, Rows::Tokens);
        self.push("conv", Op::Conv { x, conv, out });
        out
    }

    /// A selective state space into a new tensor.
    pub fn ssd(&mut self, xbc: TensorId, dt: TensorId, ssd: Ssd) -> TensorId {
        let out = self.tensor("ssd", ssd.shape.heads * ssd.shape.head_dim, Rows::Tokens);
        self.push("ssd", Op::Ssd { xbc, dt, ssd, out });
        out
    }

    /// A gated delta rule into a new tensor.
    pub fn delta(&mut self, qkv: TensorId, ab: TensorId, delta: Delta) -> TensorId {
        let out = self.tensor("delta", delta.shape.inner(), Rows::Tokens);
        self.push("delta", Op::Delta { qkv, ab, delta, out });
        out
    }

    /// A product with another tensor, in place.
    pub fn multiply(&mut self, name: &str, x: TensorId, by: TensorId, multiply: Multiply) {
        self.push(name, Op::Multiply { x, by, multiply });
    }

    /// `x = factor·x`.
    pub fn scale(&mut self, name: &str, x: TensorId, factor: f32, vector: Option<VectorId>) {
        self.push(name, Op::Scale { x, factor, vector });
    }

    /// A gated norm, in place.
    pub fn gated_norm(&mut self, x: TensorId, gate: TensorId, norm: GatedNorm) {
        self.push("gated_norm", Op::GatedNorm { x, gate, norm });
    }

    /// `x = act(x)`.
    pub fn activate(&mut self, x: TensorId, activation: Activation) {
        self.push("activate", Op::Activate { x, activation });
    }

    /// The experts of each token.
    pub fn route(&mut self, logits: TensorId, router: Router) -> TensorId {
        let out = self.tensor("routing", 2 * router.top, Rows::Tokens);
        self.push("route", Op::Route { logits, router, out });
        out
    }

    /// Each chosen expert's product, of `width` columns, into a new tensor of a row a choice.
    pub fn experts(
        &mut self,
        name: &str,
        x: TensorId,
        routing: TensorId,
        experts: MatrixId,
        width: u32,
    ) -> TensorId {
        self.experts_biased(name, x, routing, experts, None, width)
    }

    /// The same with a bias for each row of the stack.
    pub fn experts_biased(
        &mut self,
        name: &str,
        x: TensorId,
        routing: TensorId,
        experts: MatrixId,
        bias: Option<VectorId>,
        width: u32,
    ) -> TensorId {
        let top = self.width(routing) / 2;
        let out = self.tensor(name, width, Rows::Choices(top));
        self.push(name, Op::Experts { x, routing, experts, bias, out });
        out
    }

    /// `to += Σ weight·x` over the choices of each token.
    pub fn combine_add(&mut self, x: TensorId, routing: TensorId, to: TensorId) {
        self.push("combine", Op::Combine { x, routing, out: to, accumulate: true });
    }

    /// `Σ weight·x` over the choices of each token, into a new tensor.
    pub fn combine(&mut self, x: TensorId, routing: TensorId) -> TensorId {
        let width = self.width(x);
        let out = self.tensor("combine", width, Rows::Tokens);
        self.push("combine", Op::Combine { x, routing, out, accumulate: false });
        out
    }

    /// The rows whose logits are wanted.
    pub fn select_rows(&mut self, x: TensorId) -> TensorId {
        let width = self.width(x);
        let out = self.tensor("select_rows", width, Rows::LogitRows);
        self.push("select_rows", Op::SelectRows { x, out });
        out
    }

    /// `x = cap·tanh(x/cap)`.
    pub fn softcap(&mut self, x: TensorId, cap: f32) {
        self.push("softcap", Op::Softcap { x, cap });
    }

    /// The graph whose result is `logits`.
    pub fn finish(self, logits: TensorId) -> Graph {
        Graph { tensors: self.tensors, ops: self.ops, logits }
    }
}
