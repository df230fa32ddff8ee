//! Where the hub is, and how it is asked.

use super::HubReason;
use crate::error::ModelError;
use std::path::{Path, PathBuf};
use std::time::Duration;
use ureq::http::Uri;

/// The hub when nothing else is said.
const ENDPOINT: &str = "https://huggingface.co";
/// Tokens are some forty characters.
const LONGEST_TOKEN: u64 = 4096;

/// Where the hub is, and how it is asked.
#[derive(Clone)]
pub struct HubOptions {
    /// The hub or a mirror of it, without a slash at the end.
    pub endpoint: String,
    /// Sent to the endpoint, never to another host.
    pub token: Option<String>,
    /// Where what was read is kept; `None` keeps nothing.
    pub cache: Option<PathBuf>,
    /// Only what the cache has.
    pub offline: bool,
    /// For a connection, for an answer to begin, and for a body to end: each. All attempts at one answer together have two
    /// of these, however they fail; bodies have a second more for each 16 KiB that came.
    pub timeout: Duration,
    /// How often a request is made again that failed for a reason which may pass.
    pub retries: u32,
    /// The pause before the first of them; each next one is twice as long. What the server asks for is kept to where
    /// it is at most 30 of these.
    pub pause: Duration,
}

impl std::fmt::Debug for HubOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HubOptions")
            .field("endpoint", &self.endpoint)
            .field("token", &self.token.as_ref().map(|_| "…"))
            .field("cache", &self.cache)
            .field("offline", &self.offline)
            .finish_non_exhaustive()
    }
}

impl Default for HubOptions {
    fn default() -> Self {
        Self {
            endpoint: ENDPOINT.to_owned(),
            token: None,
            cache: None,
            offline: false,
            timeout: Duration::from_secs(20),
            retries: 3,
            pause: Duration::from_secs(1),
        }
    }
}

impl HubOptions {
    /// As the environment says, by the names that the hub's own tools read: `HF_ENDPOINT`, `HF_TOKEN` (else the file
    /// `HF_TOKEN_PATH`, else `token` in `HF_HOME` or `~/.cache/huggingface`; not with `HF_HUB_DISABLE_IMPLICIT_TOKEN`),
    /// `HF_HUB_OFFLINE`, `HF_HUB_DOWNLOAD_TIMEOUT` in seconds. What was read is kept under `PLIMSOLL_CACHE`, else
    /// `XDG_CACHE_HOME/plimsoll`, else `~/.cache/plimsoll`; an empty `PLIMSOLL_CACHE` keeps nothing.
    ///
    /// # Errors
    /// A variable that cannot be meant so; a token's file that is named and cannot be read.
    pub fn from_environment() -> Result<Self, ModelError> {
        Self::from_variables(|name| std::env::var(name).ok(), std::env::home_dir())
    }

    fn from_variables(
        variable: impl Fn(&str) -> Option<String>,
        home: Option<PathBuf>,
    ) -> Result<Self, ModelError> {
        let set = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let yes = |name: &str| {
            set(name).is_some_and(|v| {
                matches!(v.trim().to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on")
            })
        };
        let cache = |sub: &str| home.as_ref().map(|home| home.join(".cache").join(sub));
        let mut options = Self { offline: yes("HF_HUB_OFFLINE"), ..Self::default() };
        if let Some(endpoint) = set("HF_ENDPOINT") {
            options.endpoint = endpoint.trim().trim_end_matches('/').to_owned();
        }
        options.check()?;
        if let Some(seconds) = set("HF_HUB_DOWNLOAD_TIMEOUT") {
            let seconds: Option<u64> = seconds.trim().parse().ok().filter(|s| (1..=3600).contains(s));
            let wrong = || wrong("HF_HUB_DOWNLOAD_TIMEOUT", "expected 1 to 3600 seconds");
            options.timeout = Duration::from_secs(seconds.ok_or_else(wrong)?);
        }
        options.token = match set("HF_TOKEN") {
            Some(token) => Some(token),
            None if yes("HF_HUB_DISABLE_IMPLICIT_TOKEN") => None,
            None => {
                let named = set("HF_TOKEN_PATH").map(PathBuf::from);
                let beside = set("HF_HOME").map(PathBuf::from).or_else(|| cache("huggingface"));
                match (named, beside.map(|folder| folder.join("token"))) {
                    (Some(path), _) => Some(token_in(&path)?),
                    // A place that nobody named need not exist.
                    (None, Some(path)) if path.is_file() => Some(token_in(&path)?),
                    _ => None,
                }
            }
        };
        options.token = options.token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
        if options.token.as_ref().is_some_and(|token| !token.bytes().all(|b| b.is_ascii_graphic())) {
            return Err(wrong("HF_TOKEN", "expected visible ASCII characters"));
        }
        options.cache = cache_folder_of(&variable, home.as_deref());
        Ok(options)
    }

    /// Whether the endpoint is one.
    fn check(&self) -> Result<(), ModelError> {
        let rest = self.endpoint.strip_prefix("https://").or_else(|| self.endpoint.strip_prefix("http://"));
        let plain = |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, '@' | '?' | '#');
        match rest {
            Some(rest)
                if !rest.is_empty()
                    && rest.chars().all(plain)
                    && self.endpoint.parse().is_ok_and(|uri| has_port(&uri)) =>
            {
                Ok(())
            }
            _ => Err(wrong("HF_ENDPOINT", "expected http://host or https://host, without a user or a query")),
        }
    }
}

/// The folder under which this program keeps what it can make or fetch again: `PLIMSOLL_CACHE`, else
/// `XDG_CACHE_HOME/plimsoll`, else `~/.cache/plimsoll`. `None` where `PLIMSOLL_CACHE` is empty, which keeps nothing, or
/// where there is no home.
pub fn cache_folder() -> Option<PathBuf> {
    cache_folder_of(|name| std::env::var(name).ok(), std::env::home_dir().as_deref())
}

fn cache_folder_of(variable: impl Fn(&str) -> Option<String>, home: Option<&Path>) -> Option<PathBuf> {
    match variable("PLIMSOLL_CACHE") {
        Some(folder) if folder.is_empty() => None,
        Some(folder) => Some(PathBuf::from(folder)),
        None => match variable("XDG_CACHE_HOME").filter(|value| !value.trim().is_empty()) {
            Some(folder) => Some(PathBuf::from(folder).join("plimsoll")),
            None => home.map(|home| home.join(".cache").join("plimsoll")),
        },
    }
}

/// Whether the port is one, where one is named.
fn has_port(uri: &Uri) -> bool {
    let Some(authority) = uri.authority() else { return false };
    let after = authority.as_str().rsplit(']').next().unwrap_or_default();
    authority.port_u16().is_some() || !after.contains(':')
}

fn wrong(variable: &str, detail: &str) -> ModelError {
    ModelError::hub(variable, HubReason::Name, detail)
}

fn token_in(path: &std::path::Path) -> Result<String, ModelError> {
    let bytes = crate::checkpoint::json::read_bytes(path, LONGEST_TOKEN)?;
    String::from_utf8(bytes).map_err(|_| wrong("the token's file", "expected text"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn with(pairs: &[(&str, &str)]) -> Result<HubOptions, ModelError> {
        let find = |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        HubOptions::from_variables(find, Some(PathBuf::from("/nowhere")))
    }

    #[test]
    fn the_environment_is_read_as_the_hubs_tools_do() {
        let plain = with(&[]).unwrap();
        assert_eq!((plain.endpoint.as_str(), plain.token, plain.offline), (ENDPOINT, None, false));
        assert_eq!(plain.cache, Some(PathBuf::from("/nowhere/.cache/plimsoll")));
        let set = with(&[
            ("HF_ENDPOINT", "http://mirror:8080/hub/"),
            ("HF_TOKEN", " hf_abc\n"),
            ("HF_HUB_OFFLINE", "True"),
            ("HF_HUB_DOWNLOAD_TIMEOUT", "3"),
            ("PLIMSOLL_CACHE", ""),
        ])
        .unwrap();
        assert_eq!(set.endpoint, "http://mirror:8080/hub");
        assert_eq!(set.token.as_deref(), Some("hf_abc"));
        assert!(set.offline && set.cache.is_none() && set.timeout == Duration::from_secs(3));
        assert!(!format!("{set:?}").contains("hf_abc"), "a token is never printed");
    }

    #[test]
    fn what_cannot_be_meant_is_an_error_by_its_name() {
        for (name, value) in [
            ("HF_ENDPOINT", "ftp://x"),
            ("HF_ENDPOINT", "https://"),
            ("HF_ENDPOINT", "https://user@host"),
            ("HF_ENDPOINT", "http://host:99999"),
            ("HF_ENDPOINT", "http://[::1"),
            ("HF_HUB_DOWNLOAD_TIMEOUT", "0"),
            ("HF_HUB_DOWNLOAD_TIMEOUT", "soon"),
            ("HF_TOKEN", "a\r\nHost: b"),
        ] {
            assert!(with(&[(name, value)]).unwrap_err().to_string().contains(name), "{name} {value}");
        }
        assert!(with(&[("HF_TOKEN_PATH", "/nowhere/at/all")]).is_err());
    }
}
