//! A hub on this machine: files of one repository over HTTP/1.1, well served or badly.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The one commit.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A file: its first bytes, and how long it is; the rest is zeros.
#[derive(Clone)]
pub struct File {
    pub head: Vec<u8>,
    pub total: u64,
}

/// What a request came with.
#[derive(Clone, Debug)]
pub struct Seen {
    pub path: String,
    pub range: Option<(u64, u64)>,
    pub authorization: Option<String>,
}

/// How the next answer goes wrong.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It does not.
    None,
    /// This status, with these header lines.
    Status(u16, String),
    /// The body ends after so many bytes, whatever its header says.
    Cut(usize),
    /// A byte of the body every so often.
    Drip(Duration),
    /// Nothing at all for so long.
    Hang(Duration),
    /// These bytes instead of an answer.
    Raw(&'static str),
    /// Another range than the one asked for.
    OtherRange,
    /// A size that is larger by one.
    OtherTotal,
}

#[derive(Default)]
pub struct Behaviour {
    pub files: BTreeMap<String, File>,
    pub faults: VecDeque<Fault>,
    /// Files are answered with a redirect to the same path there.
    pub redirect: Option<String>,
    /// The whole file, whatever range is asked for.
    pub no_ranges: bool,
    /// And no length.
    pub no_length: bool,
    /// Only those who bring it are served.
    pub token: Option<String>,
    /// Instead of the list of files.
    pub list: Option<String>,
    pub seen: Vec<Seen>,
}

/// Listens until the process ends.
pub struct Server {
    pub address: String,
    pub behaviour: Arc<Mutex<Behaviour>>,
}

impl Server {
    pub fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let behaviour: Arc<Mutex<Behaviour>> = Arc::default();
        let shared = Arc::clone(&behaviour);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let behaviour = Arc::clone(&shared);
                std::thread::spawn(move || {
                    let _ = serve(stream, &behaviour);
                });
            }
        });
        Self { address, behaviour }
    }

    pub fn set(&self, change: impl FnOnce(&mut Behaviour)) -> &Self {
        change(&mut self.behaviour.lock().unwrap());
        self
    }

    pub fn file(&self, name: &str, bytes: Vec<u8>) -> &Self {
        let total = bytes.len() as u64;
        self.large(name, bytes, total)
    }

    pub fn large(&self, name: &str, head: Vec<u8>, total: u64) -> &Self {
        self.set(|b| drop(b.files.insert(name.to_owned(), File { head, total })))
    }

    /// The next answers.
    pub fn faults(&self, faults: &[Fault]) -> &Self {
        self.set(|b| b.faults = faults.iter().cloned().collect())
    }

    pub fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.behaviour.lock().unwrap().seen)
    }
}

fn serve(stream: TcpStream, behaviour: &Mutex<Behaviour>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut out = stream;
    loop {
        let Some(seen) = request(&mut reader)? else { return Ok(()) };
        let (fault, answer) = {
            let mut behaviour = behaviour.lock().unwrap();
            behaviour.seen.push(seen.clone());
            (behaviour.faults.pop_front(), answer(&behaviour, &seen))
        };
        let (status, mut headers, body) = answer;
        match fault {
            Some(Fault::Status(status, headers)) => {
                write!(out, "HTTP/1.1 {status} x\r\n{headers}content-length: 0\r\n\r\n")?;
                continue;
            }
            Some(Fault::Raw(text)) => {
                out.write_all(text.as_bytes())?;
                return Ok(());
            }
            Some(Fault::Hang(time)) => {
                std::thread::sleep(time);
                return Ok(());
            }
            Some(Fault::OtherRange) => {
                headers = headers.replace("content-range: bytes 0", "content-range: bytes 1")
            }
            Some(Fault::OtherTotal) => {
                let total = headers.split('/').nth(1).and_then(|t| t.split('\r').next()).unwrap_or_default();
                let other = (total.parse::<u64>().unwrap_or(0) + 1).to_string();
                headers = headers.replace(&format!("/{total}"), &format!("/{other}"));
            }
            Some(Fault::Cut(bytes)) => {
                write!(out, "HTTP/1.1 {status} x\r\n{headers}\r\n")?;
                out.write_all(body.get(..bytes).unwrap_or(&body))?;
                return Ok(());
            }
            Some(Fault::Drip(pause)) => {
                write!(out, "HTTP/1.1 {status} x\r\n{headers}\r\n")?;
                for byte in body {
                    out.write_all(&[byte])?;
                    std::thread::sleep(pause);
                }
                return Ok(());
            }
            Some(Fault::None) | None => {}
        }
        write!(out, "HTTP/1.1 {status} x\r\n{headers}\r\n")?;
        out.write_all(&body)?;
        if headers.contains("connection: close") {
            return Ok(());
        }
    }
}

fn request(reader: &mut impl BufRead) -> std::io::Result<Option<Seen>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut seen = Seen { path, range: None, authorization: None };
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim().split_once(':') else { return Ok(Some(seen)) };
        match name.to_ascii_lowercase().as_str() {
            "authorization" => seen.authorization = Some(value.trim().to_owned()),
            "range" => {
                let range = value.trim().strip_prefix("bytes=").and_then(|r| r.split_once('-'));
                seen.range = range.map(|(a, b)| (a.parse().unwrap(), b.parse().unwrap()));
            }
            _ => {}
        }
    }
}

/// Status, header lines, body.
fn answer(behaviour: &Behaviour, seen: &Seen) -> (u16, String, Vec<u8>) {
    let plain = |status: u16, body: Vec<u8>| (status, format!("content-length: {}\r\n", body.len()), body);
    if behaviour.token.as_ref().is_some_and(|t| seen.authorization.as_deref() != Some(&format!("Bearer {t}")))
    {
        let headers = "x-error-message: Access to this one is restricted.\r\ncontent-length: 0\r\n";
        return (401, headers.to_owned(), Vec::new());
    }
    if seen.path.starts_with("/api/models/") {
        let names: Vec<String> =
            behaviour.files.keys().map(|name| format!(r#"{{"rfilename":"{name}"}}"#)).collect();
        let list = format!(r#"{{"sha":"{COMMIT}","siblings":[{}]}}"#, names.join(","));
        return plain(200, behaviour.list.clone().unwrap_or(list).into_bytes());
    }
    let marker = format!("/resolve/{COMMIT}/");
    let name = seen.path.split_once(&marker).map(|(_, name)| name).unwrap_or_default();
    let Some(file) = behaviour.files.get(name) else { return plain(404, Vec::new()) };
    if let Some(there) = &behaviour.redirect {
        let headers = format!("location: {there}{}\r\ncontent-length: 0\r\n", seen.path);
        return (302, headers, Vec::new());
    }
    let part = |from: u64, to: u64| -> Vec<u8> {
        (from..to).map(|at| file.head.get(at as usize).copied().unwrap_or(0)).collect()
    };
    match seen.range {
        Some((first, _)) if !behaviour.no_ranges && first >= file.total => {
            (416, format!("content-range: bytes */{}\r\ncontent-length: 0\r\n", file.total), Vec::new())
        }
        Some((first, last)) if !behaviour.no_ranges => {
            let end = (last + 1).min(file.total);
            let headers = format!(
                "content-length: {}\r\ncontent-range: bytes {first}-{}/{}\r\n",
                end - first,
                end - 1,
                file.total
            );
            (206, headers, part(first, end))
        }
        _ => {
            // Of a large file nobody should wait for the end.
            let length = format!("content-length: {}\r\n", file.total);
            let length = if behaviour.no_length { String::new() } else { length };
            (200, format!("{length}connection: close\r\n"), part(0, file.total.min(8 << 20)))
        }
    }
}
