//! What the norms share: `1 / sqrt(squares + eps)` that neither overflows nor divides nothing by nothing.

/// The least that stands in the root, `2^-61`: what is less counts as that, so that zeros stay zeros also without an
/// epsilon. (`2^-125`, nearly the least normal float, where the squares are of `x·2^-32`.)
const LEAST: f64 = 4.336808689942018e-19;

/// The WGSL of `SHRINK` and `inverse_root`.
pub(crate) const TEXT: &str = include_str!("norm.wgsl");

/// The WGSL of rows that are read one value or four at a time: the alias `Value`, `squares_of` such a one, and
/// [`TEXT`].
pub(crate) fn values(vec4: bool) -> String {
    let (value, squares) = if vec4 { ("vec4<f32>", "dot(s, s)") } else { ("f32", "s * s") };
    format!(
        "alias Value = {value};\n{TEXT}fn squares_of(v: Value) -> f32 {{ let s = v * SHRINK; return {squares}; }}\n"
    )
}

/// The CPU twin of `inverse_root`, of squares as they are.
pub(crate) fn inverse_root(squares: f64, eps: f32) -> f64 {
    1.0 / (squares + f64::from(eps)).max(LEAST).sqrt()
}
