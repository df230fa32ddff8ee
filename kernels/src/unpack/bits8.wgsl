// Two words an oct, signed bytes in order.
fn quants_of(row: u32, octs: u32, oct: u32) -> Oct {
    let at = row + 2u * oct;
    return Oct(from_signed(w[at]), from_signed(w[at + 1u]));
}
