//! `hf:owner/name[:file][@revision]`.

use super::HubReason;
use crate::error::ModelError;
use std::fmt;
use std::str::FromStr;

/// What a name begins with.
pub const PREFIX: &str = "hf:";
/// The hub's own bound for owners, names and revisions.
const LONGEST: usize = 96;

/// A checkpoint on the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubName {
    /// The account or organisation.
    pub owner: String,
    /// The repository.
    pub name: String,
    /// A file of it, or a word that only one GGUF's name has (`Q4_K_M`).
    pub file: Option<String>,
    /// A branch, a tag, a pull request's `refs/pr/N` or a commit; `main` when nothing is said.
    pub revision: Option<String>,
}

impl HubName {
    /// Owner and name as the hub writes them.
    pub fn repository(&self) -> String {
        format!("{}/{}", self.owner, self.name)
    }

    /// The revision to ask for.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }
}

impl fmt::Display for HubName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}/{}", self.owner, self.name)?;
        if let Some(file) = &self.file {
            write!(f, ":{file}")?;
        }
        match &self.revision {
            Some(revision) => write!(f, "@{revision}"),
            None => Ok(()),
        }
    }
}

impl FromStr for HubName {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        let wrong = |detail: &str| ModelError::hub(crate::error::shortened(text), HubReason::Name, detail);
        let rest = text.strip_prefix(PREFIX).ok_or_else(|| wrong("expected hf:owner/name"))?;
        let (rest, revision) = match rest.split_once('@') {
            Some((rest, revision)) => (rest, Some(revision)),
            None => (rest, None),
        };
        let (repository, file) = match rest.split_once(':') {
            Some((repository, file)) => (repository, Some(file)),
            None => (rest, None),
        };
        let (owner, name) = repository.split_once('/').ok_or_else(|| wrong("expected hf:owner/name"))?;
        if !is_part(owner) || !is_part(name) {
            return Err(wrong("owner and name have letters, digits, '-', '_' and '.' only"));
        }
        if file.is_some_and(|file| !is_file(file)) {
            return Err(wrong("after ':' comes a file of the repository, or a word of one GGUF's name"));
        }
        if revision.is_some_and(|r| r.len() > LONGEST || !r.split('/').all(is_part)) {
            return Err(wrong("after '@' comes a branch, a tag or a commit"));
        }
        Ok(Self {
            owner: owner.to_owned(),
            name: name.to_owned(),
            file: file.map(str::to_owned),
            revision: revision.map(str::to_owned),
        })
    }
}

/// One component of a URL and of a path of the cache: nothing in it needs quoting or leads elsewhere.
fn is_part(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    (1..=LONGEST).contains(&text.len()) && text.bytes().all(plain) && !text.bytes().all(|b| b == b'.')
}

/// A path in a repository that is safe as one in the cache, on every platform.
pub(super) fn is_file(path: &str) -> bool {
    let plain = |part: &str| {
        !part.is_empty()
            && !part.bytes().all(|b| b == b'.')
            && !part.contains(|c: char| {
                c.is_control() || matches!(c, '\\' | ':' | '*' | '?' | '"' | '<' | '>' | '|')
            })
    };
    path.len() <= 512 && path.split('/').all(plain)
}

/// A path as it stands in a URL; the separators stay.
pub(super) fn quoted_path(path: &str) -> String {
    let mut url = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                url.push(byte.into())
            }
            other => url.push_str(&format!("%{other:02X}")),
        }
    }
    url
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        for text in
            ["hf:a/b", "hf:a/b:c.gguf", "hf:a/b@v1", "hf:Qwen/Qwen3-8B-GGUF:sub/x-Q8_0.gguf@refs/pr/1"]
        {
            assert_eq!(text.parse::<HubName>().unwrap().to_string(), text);
        }
        let name: HubName = "hf:a/b:Q4_K_M@refs/pr/3".parse().unwrap();
        assert_eq!((name.repository().as_str(), name.revision()), ("a/b", "refs/pr/3"));
        assert_eq!(name.file.as_deref(), Some("Q4_K_M"));
    }

    #[test]
    fn what_leads_elsewhere_is_no_name() {
        let long = format!("hf:a/{}", "b".repeat(97));
        for text in [
            "a/b",
            "hf:",
            "hf:a",
            "hf:/b",
            "hf:a/",
            "hf:a/b/c",
            "hf:../b",
            "hf:a/..",
            "hf:a/b:",
            "hf:a/b:../c",
            "hf:a/b:/c",
            "hf:a/b:c//d",
            "hf:a/b:c\\d",
            "hf:a/b@",
            "hf:a/b@../main",
            "hf:a/b@x y",
            "hf:a b/c",
            "hf:a/b?c=d",
            "hf:a/b#c",
            "hf:ä/b",
            &long,
        ] {
            assert!(text.parse::<HubName>().is_err(), "{text}");
        }
    }

    #[test]
    fn urls_quote_what_they_must() {
        assert_eq!(quoted_path("a b/c%d?.gguf"), "a%20b/c%25d%3F.gguf");
    }
}
