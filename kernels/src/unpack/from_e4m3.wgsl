// Values of e4m3 codes, exactly: exponent and mantissa go where f32 has them, and those without an exponent, which are
// m·2⁻⁹, are converted as integers. Nothing on the way is smaller than f32 holds normally. The NaNs 0x7F and 0xFF, which
// no loaded matrix has, read as ±480.
fn from_e4m3(codes: vec4<u32>) -> vec4<f32> {
    let magnitude = codes & vec4<u32>(0x7Fu);
    let normal = bitcast<vec4<f32>>((magnitude << vec4<u32>(20u)) + vec4<u32>(0x3C000000u));
    let small = vec4<f32>(vec4<i32>(magnitude)) * 0.001953125;
    let value = bitcast<vec4<u32>>(select(normal, small, magnitude < vec4<u32>(8u)));
    return bitcast<vec4<f32>>(value | ((codes & vec4<u32>(0x80u)) << vec4<u32>(24u)));
}
