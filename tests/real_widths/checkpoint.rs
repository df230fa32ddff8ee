//! A checkpoint made on the spot: every tensor's bytes follow from its name and a seed, in the packed forms that people
//! use. Values of a matrix have a standard deviation of `gain / √columns`, so that activations stay near 1.

use plimsoll_kernels::Format;
use plimsoll_kernels::dequant::e4m3;
use plimsoll_kernels::format::ScaleType;
use plimsoll_models::Checkpoint;
use rayon::prelude::*;
use serde_json::{Map, Value, json};

/// How a matrix is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    Bf16,
    /// MLX's affine codes in groups of 64 with bf16 scales.
    Affine(u8),
    /// MLX's nvfp4, without a factor of the whole.
    Mlx,
    /// modelopt's NVFP4, with one.
    Modelopt,
}

impl Packing {
    pub fn format(self) -> Format {
        match self {
            Packing::Bf16 => Format::BF16,
            Packing::Affine(bits) => Format::Affine { bits, group: 64, scales: ScaleType::BF16 },
            Packing::Mlx => Format::Nvfp4,
            Packing::Modelopt => Format::Nvfp4Scaled,
        }
    }
}

/// What a tensor is filled with.
enum Fill {
    Bits,
    U8(Vec<u8>),
    U16(Vec<u16>),
    U32(Vec<u32>),
}

struct Tensor {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
    bytes: usize,
    /// Tensors of one stream and length draw the same places of their tables: scales and their offsets belong together.
    stream: String,
    fill: Fill,
}

/// The tensors of a checkpoint.
#[derive(Default)]
pub struct Tensors(Vec<Tensor>);

/// Scales are 0.5 to 1.5 times the usual one.
const SCALES: usize = 16;

fn spread(i: usize) -> f64 {
    0.5 + i as f64 / (SCALES - 1) as f64
}

fn bf16(value: f64) -> u16 {
    half::bf16::from_f64(value).to_bits()
}

impl Tensors {
    fn add(&mut self, name: String, dtype: &'static str, shape: Vec<usize>, stream: &str, fill: Fill) {
        let size = match dtype {
            "F32" | "U32" => 4,
            "BF16" => 2,
            _ => 1,
        };
        let bytes = shape.iter().product::<usize>() * size;
        self.0.push(Tensor { name, dtype, shape, bytes, stream: stream.to_owned(), fill });
    }

    /// The matrix `module.weight` `[rows, cols]`, or a stack of them.
    pub fn matrix(
        &mut self,
        module: &str,
        experts: Option<usize>,
        [rows, cols]: [usize; 2],
        packing: Packing,
        gain: f64,
    ) {
        let shape = |last: usize| experts.into_iter().chain([rows, last]).collect::<Vec<_>>();
        let name = |part: &str| format!("{module}.{part}");
        let deviation = gain / (cols as f64).sqrt();
        let stream = name("scales");
        match packing {
            Packing::Bf16 => {
                let most = deviation * 3f64.sqrt();
                self.bf16(&name("weight"), &shape(cols), -most, most);
            }
            Packing::Affine(bits) => {
                let codes = f64::from(1u32 << bits);
                let scale = deviation / ((codes * codes - 1.0) / 12.0).sqrt();
                // MLX's scales may be negative.
                let sign = |i: usize| if i.is_multiple_of(2) { scale } else { -scale };
                let scales: Vec<u16> = (0..SCALES).map(|i| bf16(sign(i) * spread(i))).collect();
                let middle = |s: &u16| bf16(half::bf16::from_bits(*s).to_f64() * (1.0 - codes) / 2.0);
                let offsets = scales.iter().map(middle).collect();
                self.add(name("weight"), "U32", shape(cols * bits as usize / 32), &name("w"), Fill::Bits);
                self.add(name("scales"), "BF16", shape(cols / 64), &stream, Fill::U16(scales));
                self.add(name("biases"), "BF16", shape(cols / 64), &stream, Fill::U16(offsets));
            }
            Packing::Mlx | Packing::Modelopt => {
                // Of 0, ½, 1, 1½, 2, 3, 4, 6, each as often as the others.
                let scale = deviation / (68.5f64 / 8.0).sqrt();
                // With a factor of the whole, scales may be in the middle of what they can be.
                let factor = if packing == Packing::Modelopt { scale / 64.0 } else { 1.0 };
                let nearest = |value: f64| {
                    let off = |code: &u8| (f64::from(e4m3(*code)) - value).abs();
                    (1..0x7Fu8).min_by(|a, b| off(a).total_cmp(&off(b))).unwrap()
                };
                let scales = (0..SCALES).map(|i| nearest(scale / factor * spread(i))).collect();
                if packing == Packing::Mlx {
                    self.add(name("weight"), "U32", shape(cols / 8), &name("w"), Fill::Bits);
                    self.add(name("scales"), "U8", shape(cols / 16), &stream, Fill::U8(scales));
                } else {
                    self.add(name("weight"), "U8", shape(cols / 2), &name("w"), Fill::Bits);
                    self.add(name("weight_scale"), "F8_E4M3", shape(cols / 16), &stream, Fill::U8(scales));
                    let factor = Fill::U32(vec![(factor as f32).to_bits()]);
                    self.add(name("weight_scale_2"), "F32", vec![], "", factor);
                }
            }
        }
    }

    /// Even values from `low` to `high`.
    pub fn bf16(&mut self, name: &str, shape: &[usize], low: f64, high: f64) {
        let table = (0..4096).map(|i| bf16(low + (high - low) * (f64::from(i) + 0.5) / 4096.0)).collect();
        self.add(name.to_owned(), "BF16", shape.to_vec(), name, Fill::U16(table));
    }

    /// The same in f32.
    pub fn f32(&mut self, name: &str, shape: &[usize], low: f64, high: f64) {
        let value = |i: u32| (low + (high - low) * (f64::from(i) + 0.5) / 4096.0) as f32;
        let table = (0..4096).map(|i| value(i).to_bits()).collect();
        self.add(name.to_owned(), "F32", shape.to_vec(), name, Fill::U32(table));
    }

    /// The weight of a norm.
    pub fn norm(&mut self, module: &str, len: usize) {
        self.bf16(&format!("{module}.weight"), &[len], 0.5, 1.5);
    }

    /// One safetensors file in memory, and its configuration.
    pub fn checkpoint(self, config: &Value, seed: u64) -> Checkpoint {
        let (mut header, mut end) = (Map::new(), 0);
        for tensor in &self.0 {
            let entry = json!({
                "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [end, end + tensor.bytes],
            });
            assert!(header.insert(tensor.name.clone(), entry).is_none(), "{}", tensor.name);
            end += tensor.bytes;
        }
        let mut header = serde_json::to_vec(&header).unwrap();
        header.resize(header.len().next_multiple_of(8), b' ');
        let mut file = vec![0; 8 + header.len() + end];
        let (start, mut data) = file.split_at_mut(8 + header.len());
        start[..8].copy_from_slice(&(header.len() as u64).to_le_bytes());
        start[8..].copy_from_slice(&header);
        for tensor in &self.0 {
            let (own, rest) = data.split_at_mut(tensor.bytes);
            tensor.write(seed, own);
            data = rest;
        }
        let files = vec![("model.safetensors".to_owned(), file)];
        let config = config.to_string();
        Checkpoint::from_safetensors_bytes(None, files, Some(config.as_bytes()), "widths").unwrap()
    }
}

impl Tensor {
    fn write(&self, seed: u64, out: &mut [u8]) {
        // FNV-1a.
        let name = self.stream.bytes();
        let stream =
            name.fold(0xCBF2_9CE4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01B3));
        // Whole values of every type; pieces of as many values whatever the type's size.
        let values = 1 << 18;
        let size = match self.fill {
            Fill::Bits => 8,
            Fill::U8(_) => 1,
            Fill::U16(_) => 2,
            Fill::U32(_) => 4,
        };
        out.par_chunks_mut(values * size).enumerate().for_each(|(piece, out)| {
            let mut random = Random(mix(stream ^ seed).wrapping_add(mix(piece as u64)));
            let values = out.chunks_mut(size);
            match &self.fill {
                Fill::Bits => values.for_each(|v| v.copy_from_slice(&random.next().to_le_bytes()[..v.len()])),
                Fill::U8(table) => values.for_each(|v| v[0] = *random.of(table)),
                Fill::U16(table) => values.for_each(|v| v.copy_from_slice(&random.of(table).to_le_bytes())),
                Fill::U32(table) => values.for_each(|v| v.copy_from_slice(&random.of(table).to_le_bytes())),
            }
        });
    }
}

/// SplitMix64.
struct Random(u64);

fn mix(mut v: u64) -> u64 {
    v = (v ^ v >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    v = (v ^ v >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    v ^ v >> 31
}

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    fn of<'t, T>(&mut self, table: &'t [T]) -> &'t T {
        &table[(self.next() >> 32) as usize % table.len()]
    }
}
