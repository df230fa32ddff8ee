// Two words an oct, unsigned bytes in order.
fn quants_of(row: u32, octs: u32, oct: u32) -> Oct {
    let at = row + 2u * oct;
    return Oct(from_bytes(w[at]), from_bytes(w[at + 1u]));
}
