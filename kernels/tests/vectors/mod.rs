//! Matrices packed by MLX, modelopt and compressed-tensors, with what these decode them to and multiply them to.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code)]

use half::bf16;
use plimsoll_kernels::Format;
use plimsoll_kernels::format::{ScaleType, gather};
use safetensors::{Dtype, SafeTensors};

const MLX: &[u8] = include_bytes!("../../../tests/data/golden/mlx_quant_vectors.safetensors");
const NVIDIA: &[u8] = include_bytes!("../../../tests/data/golden/nvidia_quant_vectors.safetensors");

/// How near the reference's values are to the format's formula.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Near {
    /// Bit for bit.
    Exact,
    /// MLX decodes affine weights with bf16 scales in bf16, rounding after each operation; its products do not round.
    Bf16,
    /// compressed-tensors rounds what it decoded to bf16.
    ToBf16,
}

/// One packed matrix.
pub struct Matrix {
    pub name: String,
    pub format: Format,
    pub rows: usize,
    pub cols: usize,
    /// All rows of each plane.
    pub planes: Vec<Vec<u8>>,
    /// Factor of every row.
    pub factor: f32,
    /// `[rows, cols]`, as the reference decodes it.
    pub values: Vec<f32>,
    pub near: Near,
    /// `x·Wᵀ` of [`x`] as the reference multiplies it.
    pub y: Option<Vec<f32>>,
}

impl Matrix {
    /// The rows as rows of blocks.
    pub fn gathered(&self) -> Vec<u8> {
        let bytes = self.format.row_bytes(self.cols as u64).unwrap() as usize;
        let mut rows = vec![0xA5; bytes * self.rows];
        for (i, row) in rows.chunks_exact_mut(bytes).enumerate() {
            let planes: Vec<&[u8]> = self
                .planes
                .iter()
                .map(|p| &p[i * p.len() / self.rows..(i + 1) * p.len() / self.rows])
                .collect();
            gather(self.format, &planes, self.factor, row).unwrap();
        }
        rows
    }
}

fn floats(tensors: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let tensor = tensors.tensor(name).unwrap();
    match tensor.dtype() {
        Dtype::F32 => {
            tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
        }
        Dtype::BF16 => {
            tensor.data().chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
        }
        other => panic!("{name}: {other:?}"),
    }
}

/// `[3, 256]`, what the products of MLX are of.
pub fn x() -> Vec<f32> {
    floats(&SafeTensors::deserialize(MLX).unwrap(), "x")
}

/// All e4m3 codes and their values.
pub fn e4m3_values() -> Vec<(u8, f32)> {
    let tensors = SafeTensors::deserialize(MLX).unwrap();
    let codes = tensors.tensor("e4m3.codes").unwrap().data().to_vec();
    codes.into_iter().zip(floats(&tensors, "e4m3.values")).collect()
}

/// What MLX decodes the 256 codes of mxfp8 to, with a scale of 1.
pub fn mxfp8_values() -> Vec<f32> {
    floats(&SafeTensors::deserialize(MLX).unwrap(), "mxfp8.all_codes.values")
}

/// Every packed matrix but the stacks of experts.
pub fn matrices() -> Vec<Matrix> {
    let mut all = mlx();
    all.extend(nvidia());
    all
}

fn mlx() -> Vec<Matrix> {
    let tensors = SafeTensors::deserialize(MLX).unwrap();
    let bytes = |name: String| tensors.tensor(&name).map(|t| t.data().to_vec());
    let mut names: Vec<_> = tensors.names().into_iter().filter_map(|n| n.strip_suffix(".packed")).collect();
    names.sort_unstable();
    let mut all = Vec::new();
    for name in names.into_iter().filter(|n| !n.starts_with("switch.")) {
        let part = |of: &str| format!("{name}.{of}");
        let packed = tensors.tensor(&part("packed")).unwrap();
        let parts: Vec<&str> = name.trim_start_matches("bf16.").split('.').collect();
        let number = |i: usize| parts[i][1..].parse::<u8>().unwrap();
        let mut planes = vec![packed.data().to_vec()];
        planes.extend(bytes(part("scales")));
        planes.extend(bytes(part("biases")));
        let mut factor = 1.0;
        let format = match parts[0] {
            "affine" => {
                let bf16 = tensors.tensor(&part("scales")).unwrap().dtype() == Dtype::BF16;
                let scales = if bf16 { ScaleType::BF16 } else { ScaleType::F32 };
                Format::Affine { bits: number(1), group: number(2), scales }
            }
            "mxfp4" => Format::Mxfp4,
            "mxfp8" => Format::Mxfp8,
            "nvfp4" => Format::Nvfp4,
            "nvfp4_global" => {
                factor = floats(&tensors, &part("global_scale"))[0] / 2688.0;
                Format::Nvfp4Scaled
            }
            // All codes with a scale of one.
            "fp4" => {
                planes.push(vec![127]);
                Format::Mxfp4
            }
            other => panic!("{other}"),
        };
        let bits = if let Format::Affine { bits, .. } = format {
            bits
        } else {
            [4, 8][usize::from(format == Format::Mxfp8)]
        };
        let (values, near) = match () {
            () if parts[0] == "fp4" => ("values", Near::Exact),
            () if name.starts_with("bf16.") => ("dequant_bf16", Near::Bf16),
            () => ("dequant", Near::Exact),
        };
        all.push(Matrix {
            name: format!("mlx {name}"),
            format,
            rows: packed.shape()[0],
            cols: packed.shape()[1] * 32 / usize::from(bits),
            planes,
            factor,
            values: floats(&tensors, &part(values)),
            near,
            y: tensors.tensor(&part("y")).is_ok().then(|| floats(&tensors, &part("y"))),
        });
    }
    all
}

fn nvidia() -> Vec<Matrix> {
    let tensors = SafeTensors::deserialize(NVIDIA).unwrap();
    let bytes = |name: &str| tensors.tensor(name).unwrap().data().to_vec();
    let matrix = |name: &str, format, weight: &str, factor, near| {
        let shape = tensors.tensor(&format!("{name}.{weight}")).unwrap().shape().to_vec();
        let mut planes = vec![bytes(&format!("{name}.{weight}"))];
        if format == Format::Nvfp4Scaled {
            planes.push(bytes(&format!("{name}.weight_scale")));
        }
        Matrix {
            name: name.to_owned(),
            format,
            rows: shape[0],
            cols: if format == Format::Fp8 { shape[1] } else { 2 * shape[1] },
            planes,
            factor,
            values: floats(&tensors, &format!("{name}.dequant")),
            near,
            y: None,
        }
    };
    let mut all = Vec::new();
    for kind in ["plain", "awkward"] {
        let name = format!("modelopt.{kind}");
        let factor = floats(&tensors, &format!("{name}.weight_scale_2"))[0];
        all.push(matrix(&name, Format::Nvfp4Scaled, "weight", factor, Near::Exact));
        let name = format!("compressed_tensors.{kind}");
        let factor = 1.0 / floats(&tensors, &format!("{name}.weight_global_scale"))[0];
        all.push(matrix(&name, Format::Nvfp4Scaled, "weight_packed", factor, Near::ToBf16));
    }
    let factor = floats(&tensors, "fp8.weight_scale")[0];
    all.push(matrix("fp8", Format::Fp8, "weight", factor, Near::Exact));
    all
}
