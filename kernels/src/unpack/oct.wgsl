// Eight consecutive values of a row.
struct Oct {
    lo: vec4<f32>,
    hi: vec4<f32>,
}

// Where a plane begins that stands after `quarters` quarter words an oct.
fn plane(row: u32, octs: u32, quarters: u32) -> u32 {
    return row + octs * quarters / 4u;
}

// One of the two halves of word `at`.
fn half_at(at: u32, which: u32) -> f32 {
    return unpack2x16float(word_at(at) >> (16u * which)).x;
}

// The values of an oct, for kernels that store them.
fn values_of(row: u32, octs: u32, oct: u32) -> Oct {
    let q = quants_of(row, octs, oct);
    let s = scale_of(row, octs, oct);
    return Oct(fma(q.lo * UNIT, vec4<f32>(s.x), vec4<f32>(s.y)), fma(q.hi * UNIT, vec4<f32>(s.x), vec4<f32>(s.y)));
}
