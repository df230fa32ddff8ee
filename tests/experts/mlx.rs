//! The experts' products against MLX's own: stacks of four experts in its packed formats, the experts that each token
//! takes, and the answers. Each stack runs packed, and as the f32 that its codes are decoded to here, by MLX's rules.

use super::{devices, step_of};
use plimsoll_kernels::format::{ScaleType, gather};
use plimsoll_kernels::ops::{expert_sort, experts};
use plimsoll_kernels::{Format, Record};
use plimsoll_runtime::lone::{Data, floats, words};
use safetensors::SafeTensors;

const EXPERTS: u32 = 4;
const N: u32 = 24;
const K: u32 = 64;

fn f32s(file: &SafeTensors, name: &str) -> Vec<f32> {
    floats(file.tensor(name).unwrap().data())
}

/// The value of an e2m1 code: one bit of mantissa, bias 1.
fn e2m1(code: u32) -> f32 {
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][code as usize % 8] * if code & 8 == 0 { 1.0 } else { -1.0 }
}

/// The value of an e4m3 code: three bits of mantissa, bias 7, subnormals.
fn e4m3(code: u32) -> f32 {
    let (exponent, mantissa) = (code >> 3 & 15, (code & 7) as f32);
    let size = match exponent {
        0 => mantissa / 8.0 * 2f32.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent as i32 - 7),
    };
    if code & 0x80 == 0 { size } else { -size }
}

/// The stack's values, `[EXPERTS, N, K]`: codes are a little-endian bit stream in each row, with a scale a group.
fn decoded(file: &SafeTensors, name: &str, bits: u32, group: u32) -> Vec<f32> {
    let packed = words(file.tensor(&format!("{name}.packed")).unwrap().data());
    let scales = file.tensor(&format!("{name}.scales")).unwrap();
    let mode = name.split('.').nth(1).unwrap();
    let row_words = (K * bits / 32) as usize;
    (0..EXPERTS * N * K)
        .map(|i| {
            let (row, column) = ((i / K) as usize, i % K);
            // None of these formats' codes lie across words.
            let word = packed[row * row_words + (column * bits / 32) as usize];
            let code = word >> (column * bits % 32) & ((1u64 << bits) - 1) as u32;
            let at = row * (K / group) as usize + (column / group) as usize;
            let power = |byte: u8| 2f32.powi(i32::from(byte) - 127);
            match mode {
                "affine" => {
                    let bias = f32s(file, &format!("{name}.biases"))[at];
                    floats(scales.data())[at] * code as f32 + bias
                }
                "mxfp4" => e2m1(code) * power(scales.data()[at]),
                "mxfp8" => e4m3(code) * power(scales.data()[at]),
                "nvfp4" => e2m1(code) * e4m3(scales.data()[at].into()),
                _ => panic!("no such mode: {name}"),
            }
        })
        .collect()
}

/// The stack's rows as rows of blocks.
fn gathered(file: &SafeTensors, name: &str, format: Format) -> Vec<u8> {
    let planes: Vec<&[u8]> = ["packed", "scales", "biases"]
        .into_iter()
        .filter_map(|of| file.tensor(&format!("{name}.{of}")).ok().map(|t| t.data()))
        .collect();
    let mut rows = vec![0; format.row_bytes(K.into()).unwrap() as usize * (EXPERTS * N) as usize];
    let count = (EXPERTS * N) as usize;
    for (i, row) in rows.chunks_exact_mut(format.row_bytes(K.into()).unwrap() as usize).enumerate() {
        let part = |plane: &&'_ [u8]| i * plane.len() / count..(i + 1) * plane.len() / count;
        let planes: Vec<&[u8]> = planes.iter().map(|plane| &plane[part(plane)]).collect();
        gather(format, &planes, 1.0, row).unwrap();
    }
    rows
}

/// Answers of a stack of checkpoint rows, by each of the ways that experts are found.
fn check(name: &str, format: Format, rows: &[u8], file: &SafeTensors) {
    let x = f32s(file, "switch.x");
    let expected = f32s(file, &format!("{name}.y"));
    let indices = words(file.tensor("switch.indices").unwrap().data());
    let top = 2;
    let tokens = indices.len() as u32 / top;
    let routing: Vec<u32> = indices
        .chunks(top as usize)
        .flat_map(|ids| [ids[0], ids[1], 1f32.to_bits(), 1f32.to_bits()])
        .collect();
    let (step, shape) = step_of(tokens);
    let record = Record::new(format, K).unwrap();
    let lone = &devices()[0];
    let mut weights = vec![0; record.stride() as usize * (EXPERTS * N) as usize];
    record.repack(rows, &mut weights).unwrap();
    for tile in [None, Some(2), Some(experts::tile(lone.profile(), 1, top, 512))] {
        let args = experts::Args {
            format,
            experts: EXPERTS,
            first_expert: 0,
            shard_experts: EXPERTS,
            n: N,
            k: K,
            first_row: 0,
            rows: N,
            x_stride: K,
            x_choices: false,
            out_stride: N,
            top,
            routing_stride: 2 * top,
            bias: None,
            tile,
            max_tokens: tokens,
        };
        let who = tile.map_or(routing.clone(), |tile| {
            let args = expert_sort::Args {
                experts: EXPERTS,
                top,
                tile,
                routing_stride: 2 * top,
                max_tokens: tokens,
            };
            expert_sort::twin(&args, tokens as usize, &routing)
        });
        let operands = [
            Data::Bytes(weights.clone()),
            Data::F32(x.clone()),
            Data::Poison(expected.len()),
            Data::Poison(1),
            Data::U32(who),
        ];
        let call = experts::plan(lone.profile(), &args);
        let got = floats(&lone.run(&call, &step, &operands, &shape, None).unwrap()[0]);
        let most = expected.iter().fold(0f32, |m, v| m.max(v.abs()));
        for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
            let close = (got - expected).abs() <= 2e-6 * most;
            assert!(close, "{name} as {format}, tile {tile:?}, value {i}: {got} is not {expected}");
        }
    }
}

#[test]
fn stacks_answer_as_mlx_does() {
    let bytes = include_bytes!("../data/golden/mlx_quant_vectors.safetensors");
    let file = SafeTensors::deserialize(bytes).unwrap();
    let affine = |bits, group| Format::Affine { bits, group, scales: ScaleType::F32 };
    for (mode, bits, group, format) in [
        ("affine", 2, 64, affine(2, 64)),
        ("affine", 4, 32, affine(4, 32)),
        ("mxfp4", 4, 32, Format::Mxfp4),
        ("mxfp8", 8, 32, Format::Mxfp8),
        ("nvfp4", 4, 16, Format::Nvfp4),
    ] {
        let name = format!("switch.{mode}.b{bits}.g{group}");
        check(&name, format, &gathered(&file, &name, format), &file);
        check(&name, Format::F32, bytemuck::cast_slice(&decoded(&file, &name, bits, group)), &file);
    }
}
