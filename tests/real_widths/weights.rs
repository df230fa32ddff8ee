//! What the checkpoint's tensors say, in f64: rows decoded by the formats' CPU twin, and products with them.

use plimsoll_kernels::Format;
use plimsoll_kernels::dequant::dequantize_rows;
use plimsoll_kernels::format::{ScaleType, gather};
use plimsoll_models::Checkpoint;
use rayon::prelude::*;
use std::ops::Range;

/// One row of values for each token.
pub type Rows = Vec<Vec<f64>>;

pub struct Weights<'a>(pub &'a Checkpoint);

/// A matrix, or a stack of them one below the other.
pub struct Matrix<'a> {
    format: Format,
    cols: usize,
    planes: Vec<&'a [u8]>,
    /// Bytes of a row in each plane.
    sizes: Vec<usize>,
    factor: f32,
}

impl<'a> Weights<'a> {
    fn bytes(&self, name: &str) -> Option<&'a [u8]> {
        let tensor = self.0.tensor(name)?;
        Some(self.0.data(tensor).unwrap())
    }

    /// All values of a tensor of floats.
    pub fn vector(&self, name: &str) -> Vec<f64> {
        let tensor = self.0.require(name).unwrap();
        let mut values = vec![0.0; tensor.elements() as usize];
        let format = tensor.dtype.format().unwrap();
        dequantize_rows(format, values.len() as u32, self.bytes(name).unwrap(), &mut values);
        values.into_iter().map(f64::from).collect()
    }

    /// `module.weight`, in whichever form it is.
    pub fn matrix(&self, module: &str, cols: usize) -> Matrix<'a> {
        let part = |name: &str| self.bytes(&format!("{module}.{name}"));
        let codes = part("weight").unwrap_or_else(|| panic!("{module}"));
        let planes = [Some(codes), part("scales"), part("biases"), part("weight_scale")];
        let planes: Vec<&[u8]> = planes.into_iter().flatten().collect();
        let factor = part("weight_scale_2").map(|b| f32::from_le_bytes(b.try_into().unwrap()));
        let format = match (&planes[..], factor) {
            ([_], None) => Format::BF16,
            ([codes, scales, _], None) => {
                let bits = codes.len() * 8 / (scales.len() / 2 * 64);
                Format::Affine { bits: bits as u8, group: 64, scales: ScaleType::BF16 }
            }
            ([_, _], None) => Format::Nvfp4,
            ([_, _], Some(_)) => Format::Nvfp4Scaled,
            _ => panic!("{module}"),
        };
        let sizes = format.planes(cols as u64).unwrap_or_else(|| vec![2 * cols as u64]);
        let sizes = sizes.into_iter().map(|bytes| bytes as usize).collect();
        Matrix { format, cols, planes, sizes, factor: factor.unwrap_or(1.0) }
    }
}

impl Matrix<'_> {
    pub fn rows(&self) -> usize {
        self.planes[0].len() / self.sizes[0]
    }

    pub fn row(&self, row: usize) -> Vec<f64> {
        let planes = self.planes.iter().zip(&self.sizes).map(|(plane, size)| &plane[row * size..][..*size]);
        let planes: Vec<&[u8]> = planes.collect();
        let mut values = vec![0f32; self.cols];
        if self.format == Format::BF16 {
            dequantize_rows(self.format, self.cols as u32, planes[0], &mut values);
        } else {
            let mut bytes = vec![0; self.format.row_bytes(self.cols as u64).unwrap() as usize];
            gather(self.format, &planes, self.factor, &mut bytes).unwrap();
            dequantize_rows(self.format, self.cols as u32, &bytes, &mut values);
        }
        values.into_iter().map(f64::from).collect()
    }

    /// `x·Wᵀ` with these rows of W; each row is decoded once for all tokens.
    pub fn times_rows(&self, rows: Range<usize>, x: &[Vec<f64>]) -> Rows {
        assert!(x.iter().all(|x| x.len() == self.cols));
        let first = rows.start;
        let columns: Rows = rows
            .clone()
            .into_par_iter()
            .map(|row| {
                let weights = self.row(row);
                x.iter().map(|x| dot(&weights, x)).collect()
            })
            .collect();
        (0..x.len()).map(|t| rows.clone().map(|row| columns[row - first][t]).collect()).collect()
    }

    pub fn times(&self, x: &[Vec<f64>]) -> Rows {
        self.times_rows(0..self.rows(), x)
    }
}

/// Four sums at a time.
pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    let (mut sums, rest) = ([0.0; 4], a.len() / 4 * 4);
    for (a, b) in a.chunks_exact(4).zip(b.chunks_exact(4)) {
        sums[0] += a[0] * b[0];
        sums[1] += a[1] * b[1];
        sums[2] += a[2] * b[2];
        sums[3] += a[3] * b[3];
    }
    let rest: f64 = a[rest..].iter().zip(&b[rest..]).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f64>() + rest
}
