//! Text of strangers: names, keys, values of files that came from elsewhere.

/// Whether a character may be shown as it is: it neither steers a terminal nor turns the direction of what follows it.
pub fn is_printable(c: char) -> bool {
    !c.is_control() && !matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The character, or the one that stands for what cannot be shown. Ends of lines and tabs are kept.
pub fn printable(c: char) -> char {
    if is_printable(c) || matches!(c, '\n' | '\t') { c } else { char::REPLACEMENT_CHARACTER }
}
