//! Modules that stay plain. Lists of them have an entry for each of ten thousand modules, and strangers' have a million: names
//! are looked up, and only what has a `*` or is a regular expression is tried one after the other.

use super::Pattern;
use std::collections::BTreeSet;

/// What modules stay plain.
#[derive(Debug, Default)]
pub(super) struct Ignored {
    /// Paths of modules, and beginnings of paths up to a dot.
    names: BTreeSet<String>,
    patterns: Vec<Pattern>,
}

impl FromIterator<Pattern> for Ignored {
    fn from_iter<I: IntoIterator<Item = Pattern>>(all: I) -> Self {
        let (mut names, mut patterns) = (Vec::new(), Vec::new());
        for pattern in all {
            match pattern {
                Pattern::Glob(name) if !name.contains('*') => names.push(name),
                other => patterns.push(other),
            }
        }
        Self { names: names.into_iter().collect(), patterns }
    }
}

impl Ignored {
    /// Whether a module is among them.
    pub(super) fn matches(&self, module: &str) -> bool {
        let mut parents = module.match_indices('.').map(|(at, _)| &module[..at]).chain([module]);
        (!self.names.is_empty() && parents.any(|name| self.names.contains(name)))
            || self.patterns.iter().any(|pattern| pattern.matches(module))
    }

    /// Names from one up to another.
    pub(super) fn has_between(&self, from: &str, to: &str) -> bool {
        self.names
            .range::<str, _>((std::ops::Bound::Included(from), std::ops::Bound::Excluded(to)))
            .next()
            .is_some()
    }

    /// Those that are no names.
    pub(super) fn patterns(&self) -> impl Iterator<Item = &Pattern> {
        self.patterns.iter()
    }
}
