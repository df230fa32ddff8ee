//! Checkpoints of the golden models, to be changed tensor by tensor.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::data;
use plimsoll_kernels::Format;
use plimsoll_models::checkpoint::Checkpoint;
use plimsoll_models::graph::{MatrixId, Op};
use plimsoll_models::model::{Matrix, State};
use plimsoll_models::{Model, ModelError, Registry};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A configuration as text, with the bare infinities that published files have.
pub fn config_text(path: &str) -> String {
    std::fs::read_to_string(data(path)).unwrap()
}

/// A configuration.
pub fn config(path: &str) -> Value {
    serde_json::from_str(&config_text(path).replace("Infinity", "\"Infinity\"").replace("\"\"", "\""))
        .unwrap()
}

/// The model of a configuration alone.
pub fn bare(config: &Value) -> Result<Model, ModelError> {
    let checkpoint = Checkpoint::from_config_bytes(config.to_string().as_bytes(), "test")?;
    Registry::standard().build(&checkpoint)
}

/// The tensors of a safetensors file, to be changed one by one.
#[derive(Clone)]
pub struct Tensors(pub BTreeMap<String, (String, Vec<u64>, Vec<u8>)>);

impl Tensors {
    pub fn of(family: &str) -> Self {
        let file = std::fs::read(data(&format!("golden/{family}/model.safetensors"))).unwrap();
        let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
        let mut all = BTreeMap::new();
        for (name, info) in header.as_object().unwrap() {
            if name == "__metadata__" {
                continue;
            }
            let at = |i: usize| 8 + length + info["data_offsets"][i].as_u64().unwrap() as usize;
            let shape = info["shape"].as_array().unwrap().iter().map(|d| d.as_u64().unwrap()).collect();
            let entry = (info["dtype"].as_str().unwrap().to_owned(), shape, file[at(0)..at(1)].to_vec());
            all.insert(name.clone(), entry);
        }
        Self(all)
    }

    pub fn bytes(&self) -> Vec<u8> {
        let (mut header, mut body) = (serde_json::Map::new(), Vec::<u8>::new());
        for (name, (dtype, shape, bytes)) in &self.0 {
            let end = body.len() + bytes.len();
            let info = json!({"dtype": dtype, "shape": shape, "data_offsets": [body.len(), end]});
            header.insert(name.clone(), info);
            body.extend(bytes);
        }
        let header = Value::Object(header).to_string();
        let mut out = (header.len() as u64).to_le_bytes().to_vec();
        out.extend(header.as_bytes());
        out.extend(body);
        out
    }

    pub fn set(&mut self, name: &str, dtype: &str, shape: &[u64]) {
        let size = match dtype {
            "F32" | "U32" | "I32" => 4,
            "BF16" | "F16" => 2,
            _ => 1,
        };
        let bytes = vec![0; shape.iter().product::<u64>() as usize * size];
        self.0.insert(name.to_owned(), (dtype.to_owned(), shape.to_vec(), bytes));
    }

    pub fn rename(&mut self, from: &str, to: &str) {
        let entry = self.0.remove(from).expect(from);
        self.0.insert(to.to_owned(), entry);
    }

    pub fn build(&self, config: &Value) -> Result<Model, ModelError> {
        let files = vec![("model.safetensors".to_owned(), self.bytes())];
        let config = config.to_string();
        let checkpoint = Checkpoint::from_safetensors_bytes(None, files, Some(config.as_bytes()), "test")?;
        Registry::standard().build(&checkpoint)
    }
}

/// The model of a golden checkpoint, by its published configuration.
pub fn golden(family: &str) -> Model {
    Tensors::of(family).build(&config(&format!("golden/{family}/config.json"))).expect(family)
}

/// The model of a golden checkpoint whose published configuration was changed.
pub fn golden_with(family: &str, change: impl FnOnce(&mut Value)) -> Result<Model, ModelError> {
    let mut config = config(&format!("golden/{family}/config.json"));
    change(&mut config);
    Tensors::of(family).build(&config)
}

/// Puts every entry of `change` in the place of the configuration's own.
pub fn merge(config: &mut Value, change: &Value) {
    for (key, value) in change.as_object().unwrap() {
        config[key] = value.clone();
    }
}

/// Format, rows and columns of every matrix.
pub fn formats(model: &Model) -> Vec<(Format, u32, u32)> {
    model.matrices.iter().map(|m| (m.format, m.rows, m.cols)).collect()
}

/// Bytes of the recurrent states of one sequence.
pub fn state_bytes(model: &Model) -> u64 {
    let shapes = model.states.iter().filter_map(State::recurrent);
    shapes.map(|s| 4 * (u64::from(s.values) + u64::from(s.channels) * u64::from(s.taps - 1))).sum()
}

/// The model of a checkpoint among the test data.
pub fn open(path: &str) -> Model {
    let checkpoint = Checkpoint::open(&data(path)).expect(path);
    Registry::standard().build(&checkpoint).expect(path)
}

/// The matrices of the op whose label ends so.
pub fn matrices<'m>(model: &'m Model, label: &str) -> Vec<&'m Matrix> {
    let (_, op) = model.graph.ops.iter().find(|(l, _)| l.ends_with(label)).expect(label);
    let ids: Vec<MatrixId> = match op {
        Op::Linear { parts, .. } => parts.clone(),
        Op::Experts { experts, .. } => vec![*experts],
        other => panic!("{other:?}"),
    };
    ids.iter().map(|id| model.matrix(*id).unwrap()).collect()
}

/// First rows and numbers of rows of a matrix's pieces.
pub fn runs(matrix: &Matrix) -> Vec<(u32, u32)> {
    matrix.source.pieces.iter().map(|p| (p.first_row, p.rows)).collect()
}
