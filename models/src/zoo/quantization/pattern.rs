//! How the modules are written that a rule of packing speaks of.

use regex::Regex;

/// Modules a rule speaks of.
#[derive(Debug)]
pub(super) enum Pattern {
    /// Every linear layer.
    Linear,
    /// A path in which `*` stands for anything, or the beginning of one up to a dot.
    Glob(String),
    /// A regular expression that matches from the beginning.
    Regex(Regex),
}

impl Pattern {
    pub fn matches(&self, module: &str) -> bool {
        match self {
            Pattern::Linear => true,
            Pattern::Regex(regex) => regex.is_match(module),
            Pattern::Glob(glob) => match glob.split_once('*') {
                None => {
                    module.strip_prefix(glob.as_str()).is_some_and(|r| r.is_empty() || r.starts_with('.'))
                }
                // The ends of a glob tell most modules apart.
                Some((begin, rest)) => {
                    module.starts_with(begin)
                        && module.contains(rest.rsplit('*').next().unwrap_or(rest))
                        && (glob_matches(glob, module)
                            || module.match_indices('.').any(|(at, _)| glob_matches(glob, &module[..at])))
                }
            },
        }
    }
}

/// Whether `*` in `glob` can be filled so that it reads `text`. Takes time of the product of both lengths at most.
pub(super) fn glob_matches(glob: &str, text: &str) -> bool {
    let (glob, text) = (glob.as_bytes(), text.as_bytes());
    let (mut g, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if glob.get(g) == Some(&b'*') {
            star = Some((g, t));
            g += 1;
        } else if glob.get(g) == Some(&text[t]) {
            g += 1;
            t += 1;
        } else if let Some((at, from)) = star {
            star = Some((at, from + 1));
            g = at + 1;
            t = from + 1;
        } else {
            return false;
        }
    }
    glob[g..].iter().all(|&b| b == b'*')
}
