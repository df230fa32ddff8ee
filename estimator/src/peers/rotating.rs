//! mlx-lm's rotating caches: the last tokens of a window, in a buffer that is as long as what it has seen until then.
//!
//! * A step of several tokens makes a new buffer (`_update_concat`): what is held, cut to `window − 1`, and the step. Nothing
//!   is rounded up.
//! * One token is written in place (`_update_in_place`): a full buffer below the window grows by 256 cells or what is left
//!   of the window, and a buffer beyond the window is cut to it.

/// Cells that one token grows a buffer by.
const STEP: u64 = 256;

/// The most cells of a buffer of a rotating cache while `tokens` come: all but the last in steps of `step`, then one. More
/// tokens never need fewer.
pub(super) fn cells(tokens: u64, step: u64, window: u64) -> u64 {
    let (step, window) = (step.max(1), window.max(1));
    if tokens == 0 {
        return 0;
    }
    if step == 1 {
        return tokens.next_multiple_of(STEP).min(window);
    }
    let prompt = tokens - 1;
    let (steps, rest) = (prompt / step, prompt % step);
    let joined = |before: u64, step: u64| before.min(window - 1) + step;
    // Each whole step holds no less than the one before.
    let whole = if steps > 0 { joined((steps - 1) * step, step) } else { 0 };
    let part = if rest > 1 { joined(steps * step, rest) } else { 0 };
    // The first token that comes alone: the last one, or a step of one before it, for which there is room after that.
    let alone = if rest == 1 { prompt - 1 } else { prompt };
    let grown = alone.saturating_add(STEP).min(window);
    whole.max(part).max(grown)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against every push of the cache's own code: cells and tokens, one after another.
    #[test]
    fn every_push_is_what_the_closed_form_says() {
        let push = |held: &mut u64, seen: &mut u64, window: u64, tokens: u64, most: &mut u64| {
            if tokens > 1 {
                *held = (*held).min(window - 1).min(*seen) + tokens;
            } else {
                if *seen >= *held && *held < window {
                    *held += STEP.min(window - *seen);
                }
                *held = (*held).min(window);
            }
            *seen += tokens;
            *most = (*most).max(*held);
        };
        for window in [1u64, 2, 100, 256, 257, 512, 1000, 1024] {
            for step in [1u64, 2, 3, 100, 255, 256, 257, 300, 512, 1023, 1024, 1025, 2048] {
                let mut before = 0;
                for tokens in 1..=2600 {
                    let (mut held, mut seen, mut most) = (0, 0, 0);
                    let mut left = tokens - 1;
                    while left > 0 {
                        let now = step.min(left);
                        push(&mut held, &mut seen, window, now, &mut most);
                        left -= now;
                    }
                    push(&mut held, &mut seen, window, 1, &mut most);
                    let found = cells(tokens, step, window);
                    assert_eq!(found, most, "{tokens} tokens in steps of {step}, a window of {window}");
                    assert!(found >= before, "{tokens} {step} {window}");
                    assert!(found >= tokens.min(window));
                    before = found;
                }
            }
        }
    }
}
