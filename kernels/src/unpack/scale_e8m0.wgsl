// A byte for 32 values: half of 2^(e − 127). The two smallest are below what f32 holds normally, and are built as
// such; hardware may flush them to zero.
fn scale_of(row: u32, octs: u32, oct: u32) -> vec2<f32> {
    let block = oct / 4u;
    let e = (word_at(plane(row, octs, SCALES) + block / 4u) >> (8u * (block % 4u))) & 0xFFu;
    let d = bitcast<f32>(select((e - 1u) << 23u, 0x00200000u << e, e < 2u));
    return vec2<f32>(d, 0.0);
}
