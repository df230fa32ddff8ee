// A byte for 32 values: 2^(e − 127). The smallest is below what f32 holds normally, and is built as such; hardware may
// flush it to zero.
fn scale_of(row: u32, octs: u32, oct: u32) -> vec2<f32> {
    let block = oct / 4u;
    let e = (word_at(plane(row, octs, SCALES) + block / 4u) >> (8u * (block % 4u))) & 0xFFu;
    return vec2<f32>(bitcast<f32>(select(e << 23u, 0x00400000u, e == 0u)), 0.0);
}
