//! Stop strings over text that arrives in pieces.
//!
//! The text is looked at as if it came byte by byte: the first stop string to be complete ends it, and of two that
//! are complete at once the longer. So the answer does not depend on how tokens cut the text. What might still
//! become a stop string is held back; the rest is passed on at once.

/// What one piece of text led to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Text that can be shown.
    pub text: String,
    /// Index of the stop string that ended the text.
    pub stopped: Option<usize>,
}

/// Watches a text for stop strings.
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    /// A proper prefix of some stop string: the end of the text so far.
    held: String,
    done: bool,
}

impl StopStrings {
    /// A watch for these strings. Empty ones are ignored.
    pub fn new(stops: &[String]) -> Self {
        Self { stops: stops.to_vec(), held: String::new(), done: false }
    }

    /// Takes the next piece of text and says what may be shown. After a stop nothing more passes.
    pub fn push(&mut self, piece: &str) -> Passed {
        if self.done {
            return Passed::default();
        }
        let old = self.held.len();
        let mut text = std::mem::take(&mut self.held);
        text.push_str(piece);
        if let Some((start, index)) = self.first_match(&text, old) {
            self.done = true;
            text.truncate(start);
            return Passed { text, stopped: Some(index) };
        }
        let keep = self.unfinished(&text);
        self.held = text.split_off(text.len() - keep);
        Passed { text, stopped: None }
    }

    /// The text that was held back, when no more will come.
    pub fn finish(&mut self) -> String {
        self.done = true;
        std::mem::take(&mut self.held)
    }

    /// Start of the first match to end after byte `old`, and which string it is.
    fn first_match(&self, text: &str, old: usize) -> Option<(usize, usize)> {
        let ends = (old + 1)..=text.len();
        ends.filter(|&end| text.is_char_boundary(end)).find_map(|end| {
            let head = &text[..end];
            let matches = self.stops.iter().enumerate();
            let longest = matches
                .filter(|(_, stop)| !stop.is_empty() && head.ends_with(stop.as_str()))
                .max_by_key(|(index, stop)| (stop.len(), std::cmp::Reverse(*index)))?;
            Some((end - longest.1.len(), longest.0))
        })
    }

    /// Length of the longest end of `text` that a stop string begins with.
    fn unfinished(&self, text: &str) -> usize {
        let prefixes = self.stops.iter().flat_map(|stop| {
            let lengths = stop.char_indices().map(|(at, _)| at);
            lengths.filter(|&at| text.ends_with(&stop[..at]))
        });
        prefixes.max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn watch(stops: &[&str]) -> StopStrings {
        StopStrings::new(&stops.iter().map(|&s| s.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_stop_string_split_over_pieces_never_shows() {
        let mut stops = watch(&["<|end|>"]);
        assert_eq!(stops.push("Paris <"), Passed { text: "Paris ".into(), stopped: None });
        assert_eq!(stops.push("|en"), Passed::default());
        assert_eq!(stops.push("d|> and more"), Passed { text: String::new(), stopped: Some(0) });
        assert_eq!(stops.push("more"), Passed::default());
        assert_eq!(stops.finish(), "");
    }

    #[test]
    fn what_turns_out_to_be_no_stop_string_is_passed_on() {
        let mut stops = watch(&["aab"]);
        assert_eq!(stops.push("aa").text, "");
        assert_eq!(stops.push("a").text, "a");
        assert_eq!(stops.push("c").text, "aac");
        assert_eq!(stops.push("xa").text, "x");
        assert_eq!(stops.finish(), "a");
    }

    #[test]
    fn the_first_to_be_complete_wins_and_the_longer_of_two() {
        let mut stops = watch(&["cd", "bcde", "abcd"]);
        assert_eq!(stops.push("xabcdef"), Passed { text: "x".into(), stopped: Some(2) });
        let mut none = watch(&[""]);
        assert_eq!(none.push("text"), Passed { text: "text".into(), stopped: None });
    }

    #[test]
    fn characters_of_several_bytes_are_kept_whole() {
        let mut stops = watch(&["é😊"]);
        assert_eq!(stops.push("caf").text, "caf");
        assert_eq!(stops.push("é").text, "");
        assert_eq!(stops.push("ô").text, "éô");
        assert_eq!(stops.push("é😊!"), Passed { text: String::new(), stopped: Some(0) });
    }

    proptest! {
        #[test]
        fn the_cut_does_not_matter(
            text in "[abé]{0,24}",
            stops in prop::collection::vec("[abé]{0,4}", 0..4),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let run = |cuts: &[usize]| {
                let mut watch = StopStrings::new(&stops);
                let (mut shown, mut stopped, mut from) = (String::new(), None, 0);
                for &cut in cuts.iter().chain([&text.len()]) {
                    let passed = watch.push(&text[from..cut]);
                    shown.push_str(&passed.text);
                    stopped = stopped.or(passed.stopped);
                    from = cut;
                }
                shown.push_str(&watch.finish());
                (shown, stopped)
            };
            let whole = run(&[]);
            let bounds: Vec<usize> = (0..=text.len()).filter(|&i| text.is_char_boundary(i)).collect();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| bounds[cut.index(bounds.len())]).collect();
            cuts.sort_unstable();
            prop_assert_eq!(&run(&cuts), &whole);
            prop_assert!(text.starts_with(&whole.0));
            match whole.1 {
                Some(index) => prop_assert!(text[whole.0.len()..].starts_with(stops[index].as_str())),
                None => {
                    prop_assert_eq!(&whole.0, &text);
                    prop_assert!(stops.iter().all(|stop| stop.is_empty() || !text.contains(stop.as_str())));
                }
            }
        }
    }
}
