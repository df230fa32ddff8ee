//! Requests to the hub: bounded in time and size, repeated where that may help, and with the token for one host only.

use super::options::HubOptions;
use crate::error::{HubReason, ModelError, shortened};
use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use ureq::http::{HeaderMap, Uri, header};
use ureq::{Agent, Timeout};

/// Redirects followed for one answer.
const REDIRECTS: u32 = 5;
/// Slower than this many bytes in a second, a body is not waited for.
const SLOWEST: u64 = 16 << 10;
/// How many timeouts all attempts at one answer may take together, beyond the time that its bytes are allowed.
const PATIENCE: u32 = 2;
/// What is skipped at most of an answer of a server that knows no ranges.
const SKIPPED: u64 = 64 << 20;

/// Sends requests and counts them.
pub(super) struct Client<'a> {
    agent: Agent,
    options: &'a HubOptions,
    requests: AtomicU64,
    bytes: AtomicU64,
}

/// Bytes of a file from a position on, and how many there are of it in all.
#[derive(Debug)]
pub(super) struct Piece {
    pub bytes: Vec<u8>,
    pub total: u64,
}

/// Which bytes are wanted.
#[derive(Clone, Copy)]
struct Range {
    start: u64,
    len: u64,
}

/// Why one attempt failed, and whether another may help.
struct Fault {
    reason: HubReason,
    detail: String,
    again: bool,
    /// What the server asks to wait.
    after: Option<Duration>,
}

impl Fault {
    fn last(reason: HubReason, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into(), again: false, after: None }
    }

    fn passing(reason: HubReason, detail: impl Into<String>) -> Self {
        Self { again: true, ..Self::last(reason, detail) }
    }

    fn malformed(detail: impl Into<String>) -> Self {
        Self::last(HubReason::Malformed, detail)
    }
}

impl<'a> Client<'a> {
    pub(super) fn new(options: &'a HubOptions) -> Self {
        let timeout = Some(options.timeout);
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // A redirect leads to other hosts, which must not see the token: they are followed here.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("plimsoll/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .timeout_resolve(timeout)
            .timeout_connect(timeout)
            .timeout_send_request(timeout)
            .timeout_recv_response(timeout)
            .timeout_per_read(timeout);
        #[cfg(any(windows, target_vendor = "apple"))]
        let config = config.tls_config(
            ureq::tls::TlsConfig::builder()
                .provider(ureq::tls::TlsProvider::NativeTls)
                .root_certs(ureq::tls::RootCerts::PlatformVerifier)
                .build(),
        );
        let agent = Agent::new_with_config(config.build());
        Self { agent, options, requests: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }

    /// Requests sent, and bytes of bodies received.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.requests.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    /// A whole small file.
    pub(super) fn whole(&self, url: &str, subject: &str, limit: u64) -> Result<Vec<u8>, ModelError> {
        Ok(self.get(url, subject, None, limit)?.bytes)
    }

    /// `len` bytes at `start`, or those that there are.
    pub(super) fn range(&self, url: &str, subject: &str, start: u64, len: u64) -> Result<Piece, ModelError> {
        self.get(url, subject, Some(Range { start, len }), len)
    }

    fn get(&self, url: &str, subject: &str, range: Option<Range>, limit: u64) -> Result<Piece, ModelError> {
        let mut pause = self.options.pause;
        let mut left = self.options.retries;
        let (begun, all) = (Instant::now(), self.options.timeout.saturating_mul(PATIENCE));
        loop {
            let patience = all.saturating_sub(begun.elapsed()).min(self.options.timeout);
            let fault = match self.once(url, range, limit, patience) {
                Ok(piece) => return Ok(piece),
                Err(fault) => fault,
            };
            let wait = fault.after.unwrap_or(pause);
            let spent = begun.elapsed().saturating_add(wait) >= all;
            if !fault.again || left == 0 || spent || wait > self.options.pause.saturating_mul(30) {
                return Err(ModelError::hub(subject, fault.reason, fault.detail));
            }
            tracing::debug!(subject, reason = %fault.reason, detail = fault.detail, "asked again");
            std::thread::sleep(wait);
            pause = pause.saturating_mul(2);
            left -= 1;
        }
    }

    /// One attempt, redirects followed.
    fn once(&self, url: &str, range: Option<Range>, limit: u64, patience: Duration) -> Result<Piece, Fault> {
        let mut uri: Uri =
            url.parse().map_err(|_| Fault::malformed(format!("no address: {}", shortened(url))))?;
        let home = uri.clone();
        for _ in 0..=REDIRECTS {
            let mut request = self.agent.get(&uri);
            if let Some(Range { start, len }) = range {
                let last = start.saturating_add(len).saturating_sub(1);
                request = request.header(header::RANGE, format!("bytes={start}-{last}"));
            }
            let same_host = uri.scheme() == home.scheme() && uri.authority() == home.authority();
            if let (Some(token), true) = (&self.options.token, same_host) {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            self.requests.fetch_add(1, Ordering::Relaxed);
            let mut answer = request.call().map_err(broken)?;
            let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
            if matches!(status, 301 | 302 | 303 | 307 | 308) {
                uri = elsewhere(&uri, &headers)?;
                continue;
            }
            let reader = answer.body_mut().with_config().limit(u64::MAX).reader();
            return match (status, range) {
                (200, None) => {
                    let bytes = self.read(reader, limit.saturating_add(1), patience)?;
                    if bytes.len() as u64 > limit {
                        return Err(Fault::malformed(format!("more than {limit} bytes")));
                    }
                    Ok(Piece { total: bytes.len() as u64, bytes })
                }
                (200, Some(range)) => self.unranged(reader, &headers, range, patience),
                (206, Some(range)) => self.ranged(reader, &headers, range, patience),
                _ => Err(refused(status, &headers, same_host)),
            };
        }
        Err(Fault::malformed(format!("more than {REDIRECTS} redirects")))
    }

    /// The answer of a server that serves ranges.
    fn ranged(
        &self,
        reader: impl Read,
        headers: &HeaderMap,
        range: Range,
        patience: Duration,
    ) -> Result<Piece, Fault> {
        let stated = text(headers, header::CONTENT_RANGE.as_str()).unwrap_or_default();
        let wrong = || Fault::malformed(format!("content-range: {}", shortened(stated)));
        let (first, last, total) = content_range(stated).ok_or_else(wrong)?;
        let most = last.checked_sub(first).map(|n| n.saturating_add(1)).filter(|n| *n <= range.len);
        let (Some(most), true) = (most, first == range.start && last < total) else { return Err(wrong()) };
        let bytes = self.read(reader, most, patience)?;
        if (bytes.len() as u64) < most {
            let detail = format!("{} of {most} bytes came", bytes.len());
            return Err(Fault::passing(HubReason::Connection, detail));
        }
        Ok(Piece { bytes, total })
    }

    /// The same bytes from a server that sends the whole file: what comes before them is skipped, and the rest never
    /// read.
    fn unranged(
        &self,
        mut reader: impl Read,
        headers: &HeaderMap,
        range: Range,
        patience: Duration,
    ) -> Result<Piece, Fault> {
        let total =
            text(headers, header::CONTENT_LENGTH.as_str()).and_then(|text| text.trim().parse::<u64>().ok());
        let Some(total) = total else {
            return Err(Fault::malformed("it serves no ranges and states no length"));
        };
        if range.start > SKIPPED.min(total) {
            return Err(Fault::malformed(format!("it serves no ranges, and byte {} is far in", range.start)));
        }
        self.read(&mut reader, range.start, patience)?;
        let most = range.len.min(total - range.start);
        let bytes = self.read(reader, most, patience)?;
        if (bytes.len() as u64) < most {
            let detail = format!("{} of {most} bytes came", bytes.len());
            return Err(Fault::passing(HubReason::Connection, detail));
        }
        Ok(Piece { bytes, total })
    }

    /// At most `most` bytes of a body that does not come too slowly.
    fn read(&self, reader: impl Read, most: u64, patience: Duration) -> Result<Vec<u8>, Fault> {
        let (mut bytes, mut reader) = (Vec::new(), reader.take(most));
        let (begun, mut chunk) = (Instant::now(), vec![0; 64 << 10]);
        loop {
            let got = match reader.read(&mut chunk) {
                Ok(0) => return Ok(bytes),
                Ok(got) => got,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(broken(ureq::Error::from(error))),
            };
            bytes.extend_from_slice(chunk.get(..got).unwrap_or_default());
            self.bytes.fetch_add(got as u64, Ordering::Relaxed);
            // Each read has the timeout of its own; this is for those that always bring a byte.
            let allowed = patience.saturating_add(Duration::from_secs(bytes.len() as u64 / SLOWEST));
            if begun.elapsed() > allowed {
                let detail = format!("{} bytes in {:.1?}", bytes.len(), begun.elapsed());
                return Err(Fault::passing(HubReason::Timeout, detail));
            }
        }
    }
}

/// Why a connection gave no answer.
fn broken(error: ureq::Error) -> Fault {
    let detail = error.to_string();
    match error {
        ureq::Error::Timeout(Timeout::Resolve) | ureq::Error::HostNotFound => {
            Fault::last(HubReason::Connection, "no host of that name, or no network")
        }
        ureq::Error::Timeout(_) | ureq::Error::BodyStalled => Fault::passing(HubReason::Timeout, detail),
        // Nobody listens there.
        ureq::Error::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            Fault::last(HubReason::Connection, detail)
        }
        ureq::Error::Io(error) if error.kind() == std::io::ErrorKind::TimedOut => {
            Fault::passing(HubReason::Timeout, detail)
        }
        ureq::Error::Io(_) | ureq::Error::ConnectionFailed | ureq::Error::Protocol(_) => {
            Fault::passing(HubReason::Connection, detail)
        }
        _ => Fault::last(HubReason::Connection, detail),
    }
}

/// What an answer other than the file means.
fn refused(status: u16, headers: &HeaderMap, same_host: bool) -> Fault {
    let said =
        text(headers, "x-error-message").map(|said| format!(": {}", shortened(said))).unwrap_or_default();
    let detail = format!("status {status}{said}");
    match status {
        401 | 403 if same_host => Fault::last(HubReason::Denied, detail),
        404 => Fault::last(HubReason::NotFound, detail),
        416 => {
            let stated = text(headers, header::CONTENT_RANGE.as_str()).unwrap_or_default();
            Fault::malformed(format!("no such bytes in the file: {}", shortened(stated)))
        }
        408 | 500 | 502 | 503 | 504 => {
            Fault { after: after(headers), ..Fault::passing(HubReason::Connection, detail) }
        }
        429 => Fault { after: after(headers), ..Fault::passing(HubReason::RateLimited, detail) },
        _ => Fault::malformed(detail),
    }
}

fn after(headers: &HeaderMap) -> Option<Duration> {
    text(headers, "retry-after")?.trim().parse().ok().map(Duration::from_secs)
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// `bytes 0-99/1234`.
fn content_range(text: &str) -> Option<(u64, u64, u64)> {
    let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    Some((first.trim().parse().ok()?, last.trim().parse().ok()?, total.trim().parse().ok()?))
}

/// Where a redirect leads: an address, or a path on the same host. From https nothing leads to http.
fn elsewhere(from: &Uri, headers: &HeaderMap) -> Result<Uri, Fault> {
    let wrong = |what: &str| Fault::malformed(format!("a redirect to {}", shortened(what)));
    let location = text(headers, header::LOCATION.as_str()).ok_or_else(|| wrong("nowhere"))?;
    let whole = match (location.starts_with('/'), from.scheme_str(), from.authority()) {
        (true, Some(scheme), Some(host)) if !location.starts_with("//") => {
            format!("{scheme}://{host}{location}")
        }
        (true, Some(scheme), _) => format!("{scheme}:{location}"),
        _ => location.to_owned(),
    };
    let to: Uri = whole.parse().map_err(|_| wrong(location))?;
    match (from.scheme_str(), to.scheme_str()) {
        (_, Some("https")) | (Some("http"), Some("http")) if to.authority().is_some() => Ok(to),
        _ => Err(wrong(location)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn content_ranges_are_read_or_not_believed() {
        assert_eq!(content_range("bytes 0-99/1234"), Some((0, 99, 1234)));
        for text in
            ["", "bytes */12", "bytes 0-9/*", "bytes -1-9/12", "0-9/12", "bytes 0-99999999999999999999/9"]
        {
            assert_eq!(content_range(text), None, "{text}");
        }
    }

    #[test]
    fn redirects_lead_on_and_never_down() {
        let lead = |from: &str, to: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::LOCATION, to.parse().unwrap());
            elsewhere(&from.parse().unwrap(), &headers).ok().map(|uri| uri.to_string())
        };
        assert_eq!(lead("https://a/b", "/c?d=e").as_deref(), Some("https://a/c?d=e"));
        assert_eq!(lead("https://a/b", "https://x:1/c").as_deref(), Some("https://x:1/c"));
        assert_eq!(lead("http://a/b", "//x/c").as_deref(), Some("http://x/c"));
        for (from, to) in
            [("https://a/b", "http://a/b"), ("https://a/b", "file:///etc/passwd"), ("http://a/b", "c")]
        {
            assert_eq!(lead(from, to), None, "{from} {to}");
        }
    }
}
