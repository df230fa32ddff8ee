//! Rows of every format for tests.

use plimsoll_kernels::Format;

/// Pseudo-random checkpoint rows with finite, moderate scales of both signs: values of about 1 and less.
pub fn random_rows(format: Format, rows: usize, cols: u32, seed: u64) -> Vec<u8> {
    let bytes = format.row_bytes(u64::from(cols)).unwrap() as usize * rows;
    let mut state = seed | 1;
    let mut out: Vec<u8> = (0..bytes)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as u8
        })
        .collect();
    if format == Format::F32 {
        out.iter_mut().skip(3).step_by(4).for_each(|b| *b = *b & 0x83 | 0x3C);
    }
    for block in out.chunks_exact_mut(format.block_bytes()) {
        let halves: &[usize] = match format {
            Format::F32 | Format::Mxfp4 => &[],
            Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K => &[0, 2],
            Format::Q2K => &[80, 82],
            Format::Q3K => &[108],
            Format::Q6K => &[208],
            _ => &[0],
        };
        for &at in halves {
            block[at + 1] = block[at + 1] & 0x83 | if format == Format::BF16 { 0x3C } else { 0x20 };
        }
        if format == Format::Mxfp4 {
            block[0] = 118 + block[0] % 16;
        }
    }
    out
}
