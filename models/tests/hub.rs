//! Checkpoints on the hub are read by their headers, from servers that behave and from servers that do not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(unused)]
mod common;
#[path = "common/hub_server.rs"]
mod hub_server;

use common::{Gguf, Kv};
use hub_server::{COMMIT, Fault, Server};
use plimsoll_models::hub::{self, HubOptions, HubReason};
use plimsoll_models::{Checkpoint, ModelError, Registry};
use std::path::PathBuf;
use std::time::Duration;

fn options(server: &Server) -> HubOptions {
    HubOptions {
        endpoint: server.address.clone(),
        timeout: Duration::from_millis(400),
        pause: Duration::from_millis(5),
        retries: 2,
        ..HubOptions::default()
    }
}

fn open_at(server: &Server, name: &str) -> Result<Checkpoint, ModelError> {
    hub::open(&name.parse()?, &options(server))
}

fn reason(opened: Result<Checkpoint, ModelError>) -> HubReason {
    match opened {
        Err(ModelError::Hub { reason, .. }) => reason,
        Err(other) => panic!("expected an error of the hub, got {other}"),
        Ok(_) => panic!("expected an error of the hub"),
    }
}

/// A safetensors header that says of one tensor `w` that it is `rows` × 1024 bf16 values, and what the file weighs.
fn shard(tensor: &str, rows: u64) -> (Vec<u8>, u64) {
    let bytes = rows * 2048;
    let header =
        format!(r#"{{"{tensor}":{{"dtype":"BF16","shape":[{rows},1024],"data_offsets":[0,{bytes}]}}}}"#);
    let head = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    let total = head.len() as u64 + bytes;
    (head, total)
}

/// The golden llama as a repository.
fn golden(server: &Server) -> PathBuf {
    let folder = common::data("golden/llama");
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            server.file(path.file_name().unwrap().to_str().unwrap(), std::fs::read(&path).unwrap());
        }
    }
    folder
}

#[test]
fn a_repository_is_what_its_files_would_be() {
    let server = Server::new();
    let folder = golden(&server);
    let there = open_at(&server, "hf:owner/name").unwrap();
    let here = Checkpoint::open(&folder).unwrap();
    assert_eq!(there.name(), "name");
    assert_eq!(there.tensors().collect::<Vec<_>>(), here.tensors().collect::<Vec<_>>());
    let registry = Registry::standard();
    let (a, b) = (registry.build(&there).unwrap(), registry.build(&here).unwrap());
    assert_eq!((a.parameters(), &a.graph, &a.states), (b.parameters(), &b.graph, &b.states));
    let read = there.bytes_read();
    assert!(!there.has_data() && here.has_data());
    assert_eq!(read.requests, server.seen().len() as u64);
    assert!(read.network > 0 && (read.cache, read.local) == (0, 0), "{read:?}");
    assert!(here.bytes_read().local > 0 && here.bytes_read().requests == 0);
}

#[test]
fn of_a_hundred_gigabytes_headers_are_read() {
    let server = Server::new();
    let config = std::fs::read(common::data("configs/smollm2-135m.json")).unwrap();
    server.file("config.json", config);
    let mut map = Vec::new();
    for n in 0..30 {
        let file = format!("model-{n:05}.safetensors");
        let (head, total) = shard(&format!("t{n}"), 1 << 21);
        server.large(&file, head, total);
        map.push(format!(r#""t{n}":"{file}""#));
    }
    let index = format!(r#"{{"metadata":{{"total_size":1}},"weight_map":{{{}}}}}"#, map.join(","));
    server.file("model.safetensors.index.json", index.into_bytes());
    let opened = open_at(&server, "hf:owner/name").unwrap();
    assert_eq!(opened.checkpoint_bytes(), 30 << 32);
    let read = opened.bytes_read();
    assert_eq!(read.requests, 1 + 1 + 1 + 30, "list, index, configuration, shards");
    assert!(read.network < 31 * 65_536, "{read:?}");
    for seen in server.seen().iter().filter(|seen| seen.path.contains("model-0")) {
        assert_eq!(seen.range, Some((0, 65_535)), "{seen:?}");
    }
    let tensor = opened.tensor("t7").unwrap();
    assert!(matches!(opened.data(tensor), Err(ModelError::NotDownloaded { .. })));
}

/// A llama whose vocabulary makes its header larger than the first pieces.
fn gguf(words: usize) -> Gguf {
    Gguf::default()
        .key("general.architecture", Kv::Str("llama"))
        .key("general.name", Kv::Str("large"))
        .key("tokenizer.ggml.tokens", Kv::Strs((0..words).map(|n| format!("word number {n}")).collect()))
        .tensor("token_embd.weight", &[64, 64], 0, 64 * 64 * 4)
        .tensor("rope_freqs.weight", &[16], 0, 64)
}

#[test]
fn a_ggufs_header_is_read_to_its_end() {
    let server = Server::new();
    let bytes = gguf(60_000).bytes();
    let header = bytes.len() as u64 - 64 * 64 * 4 - 64;
    server.file("model-Q8_0.gguf", bytes.clone());
    let opened = open_at(&server, "hf:owner/name").unwrap();
    assert_eq!(opened.name(), "large");
    let spoken = opened.tensor("rope_freqs.weight").unwrap();
    let here = Checkpoint::from_gguf_bytes(bytes, "m").unwrap();
    assert_eq!(opened.data(spoken).unwrap(), here.data(spoken).unwrap());
    let ranges: Vec<_> = server.seen().iter().filter_map(|seen| seen.range).collect();
    assert_eq!(ranges[..2], [(0, 524_287), (524_288, 1_048_575)]);
    assert!(header > 1 << 20, "{header}");
    assert!(ranges.len() >= 3);

    // The same from a file that goes on for a terabyte: the spoken tensor is one request of its own.
    let mut far = gguf(10);
    far.tensors[1].3 = 1 << 39;
    far.tensors[1].4 = 0;
    let head = far.bytes();
    let start = head.len() as u64 - 64 * 64 * 4;
    server.large("far.gguf", head, start + (1 << 39) + 64);
    let opened = open_at(&server, "hf:owner/name:far.gguf").unwrap();
    assert_eq!(opened.data(opened.tensor("rope_freqs.weight").unwrap()).unwrap(), [0; 64]);
    assert!(opened.data(opened.tensor("token_embd.weight").unwrap()).is_ok(), "what was read along is here");
    let last = server.seen().into_iter().rev().find_map(|seen| seen.range).unwrap();
    assert_eq!(last, (start + (1 << 39), start + (1 << 39) + 63));
}

#[test]
fn the_parts_of_a_split_gguf_are_found() {
    let server = Server::new();
    for no in 0..2u32 {
        let mut part = Gguf::default().key("split.no", Kv::U32(no)).key("split.count", Kv::U32(2));
        if no == 0 {
            part = part.key("general.name", Kv::Str("whole"));
        }
        let bytes = part.tensor(&format!("t{no}"), &[4], 0, 16).bytes();
        server.file(&format!("sub/m-{:05}-of-00002.gguf", no + 1), bytes);
    }
    for name in ["hf:o/n", "hf:o/n:sub/m-00001-of-00002.gguf", "hf:o/n:sub/m-00002-of-00002.gguf", "hf:o/n:m"]
    {
        let opened = open_at(&server, name).unwrap();
        assert_eq!((opened.name(), opened.tensors().len()), ("whole", 2), "{name}");
    }
    server.set(|b| drop(b.files.remove("sub/m-00002-of-00002.gguf")));
    assert_eq!(reason(open_at(&server, "hf:o/n")), HubReason::NotFound);
}

#[test]
fn what_a_name_leaves_open_is_asked_for() {
    let server = Server::new();
    let file = Gguf::default().key("general.name", Kv::Str("x")).bytes();
    for name in ["m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-Q8_0.gguf", "mmproj-f16.gguf", "README.md"] {
        server.file(name, file.clone());
    }
    let error = open_at(&server, "hf:o/n").unwrap_err().to_string();
    assert!(
        error.contains("m-Q4_K_M.gguf, m-Q4_K_S.gguf, m-Q8_0.gguf") && !error.contains("mmproj"),
        "{error}"
    );
    assert!(open_at(&server, "hf:o/n:q4_k_m").is_ok());
    assert!(open_at(&server, "hf:o/n:mmproj-f16.gguf").is_ok());
    for (name, wanted) in [
        ("hf:o/n:m", HubReason::Name),
        ("hf:o/n:Q4", HubReason::NotFound),
        ("hf:o/n:README.md", HubReason::Name),
    ] {
        assert_eq!(reason(open_at(&server, name)), wanted, "{name}");
    }
    server.set(|b| b.files.retain(|name, _| name == "README.md"));
    assert_eq!(reason(open_at(&server, "hf:o/n")), HubReason::NotFound);
}

#[test]
fn what_was_read_is_kept_by_commit() {
    let server = Server::new();
    golden(&server);
    let cache = common::scratch("hub_cache");
    let _ = std::fs::remove_dir_all(&cache);
    let online = HubOptions { cache: Some(cache.clone()), ..options(&server) };
    let offline = HubOptions { offline: true, ..online.clone() };
    let open = |name: &str, options: &HubOptions| hub::open(&name.parse().unwrap(), options);
    assert_eq!(reason(open("hf:o/n", &offline)), HubReason::Offline);
    let first = open("hf:o/n", &online).unwrap().bytes_read();
    let again = open("hf:o/n", &online).unwrap().bytes_read();
    assert_eq!((again.requests, first.cache), (1, 0), "only the commit is asked for");
    assert!(again.cache > 0 && again.network < first.network);
    let by_commit = format!("hf:o/n@{COMMIT}");
    assert_eq!(open(&by_commit, &online).unwrap().bytes_read().requests, 0);
    let away = open("hf:o/n", &offline).unwrap();
    assert_eq!((away.bytes_read().requests, away.bytes_read().network), (0, 0));
    assert_eq!(reason(open("hf:o/n@other", &offline)), HubReason::Offline);
    assert!(server.seen().iter().all(|seen| !seen.path.contains("other")), "offline asks nobody");

    // Damage is read anew, or said where nobody may be asked.
    let damaged = cache.join("hub");
    let files =
        |folder: PathBuf| walk(&folder).into_iter().filter(|p| p.to_str().unwrap().contains("/heads/"));
    for file in files(damaged) {
        std::fs::write(&file, [&300_000u64.to_le_bytes()[..], &[9; 70_000]].concat()).unwrap();
    }
    let error = open("hf:o/n", &offline).unwrap_err();
    assert!(error.to_string().contains(cache.to_str().unwrap()), "the folder is named: {error}");
    assert_eq!(reason(Err(error)), HubReason::Cache);
    assert!(open("hf:o/n", &online).unwrap().bytes_read().network > 0);
    assert!(open("hf:o/n", &offline).is_ok(), "and what was read anew was kept");
    for bytes in [&b""[..], &[0x93; 5000]] {
        for file in walk(&cache.join("hub")) {
            std::fs::write(&file, bytes).unwrap();
        }
        assert!(open("hf:o/n", &online).unwrap().bytes_read().network > 0, "{} bytes", bytes.len());
        assert!(open("hf:o/n", &offline).is_ok());
        for file in walk(&cache.join("hub")).into_iter().filter(|p| p.ends_with("config.json")) {
            std::fs::write(&file, bytes).unwrap();
        }
        let error = open("hf:o/n", &offline).unwrap_err().to_string();
        assert!(error.contains("hf:o/n/config.json") && error.contains("damaged"), "{error}");
        assert!(open("hf:o/n", &online).is_ok());
    }
    // A place that cannot be written is no cache, and no error.
    let nowhere = HubOptions { cache: Some(PathBuf::from("/proc/nowhere")), ..options(&server) };
    assert!(open("hf:o/n", &nowhere).is_ok());
}

fn walk(folder: &std::path::Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(walk(&path)) } else { found.push(path) }
    }
    found
}

#[test]
fn the_token_stays_with_its_host() {
    let (server, store) = (Server::new(), Server::new());
    golden(&server);
    golden(&store);
    server.set(|b| {
        b.token = Some("secret".to_owned());
        b.redirect = Some(store.address.clone());
    });
    let error = open_at(&server, "hf:o/n").unwrap_err();
    assert!(error.to_string().contains("restricted") && error.to_string().contains("HF_TOKEN"), "{error}");
    assert_eq!(reason(Err(error)), HubReason::Denied);
    let with = HubOptions { token: Some("secret".to_owned()), ..options(&server) };
    hub::open(&"hf:o/n".parse().unwrap(), &with).unwrap();
    let seen = store.seen();
    assert!(!seen.is_empty() && seen.iter().all(|seen| seen.authorization.is_none()), "{seen:?}");
    assert!(server.seen().iter().any(|seen| seen.authorization.as_deref() == Some("Bearer secret")));
    // Round and round is an error.
    server.set(|b| b.redirect = Some(String::new()));
    assert_eq!(reason(hub::open(&"hf:o/n".parse().unwrap(), &with)), HubReason::Malformed);
}

#[test]
fn what_passes_is_asked_again() {
    let server = Server::new();
    golden(&server);
    let wait = Fault::Status(429, "retry-after: 0\r\n".to_owned());
    let passing = [
        wait.clone(),
        Fault::Status(500, String::new()),
        Fault::Status(503, String::new()),
        Fault::Cut(3),
        Fault::Raw(""),
        Fault::Raw("not http\r\n\r\n"),
        Fault::Hang(Duration::from_millis(900)),
    ];
    for fault in &passing {
        server.faults(std::slice::from_ref(fault));
        let opened = open_at(&server, "hf:o/n").unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        assert_eq!(opened.bytes_read().requests, server.seen().len() as u64);
    }
    let forever = |fault: &Fault| {
        server.faults(&[fault.clone(), fault.clone(), fault.clone()]);
        reason(open_at(&server, "hf:o/n"))
    };
    assert_eq!(forever(&wait), HubReason::RateLimited);
    assert_eq!(forever(&passing[1]), HubReason::Connection);
    assert_eq!(forever(&passing[3]), HubReason::Connection);
    assert_eq!(forever(&passing[6]), HubReason::Timeout);
    assert_eq!(forever(&Fault::Drip(Duration::from_millis(40))), HubReason::Timeout);
    // However often a request may be made again, all attempts have twice the time of one.
    let patient = HubOptions { retries: 50, ..options(&server) };
    for fault in [Fault::Drip(Duration::from_millis(40)), passing[6].clone()] {
        server.faults(&vec![fault.clone(); 60]);
        let begun = std::time::Instant::now();
        let opened = hub::open(&"hf:o/n".parse().unwrap(), &patient);
        assert_eq!(reason(opened), HubReason::Timeout, "{fault:?}");
        let took = begun.elapsed();
        // Two timeouts of 400 ms and what one attempt may overrun them by; 51 attempts would take 20 s.
        assert!(took < Duration::from_secs(10), "{fault:?}: {took:?}");
    }
    // A server that wants more patience than there is.
    server.seen();
    server.faults(&[Fault::Status(429, "retry-after: 3600\r\n".to_owned())]);
    assert_eq!(reason(open_at(&server, "hf:o/n")), HubReason::RateLimited);
    assert_eq!(server.seen().len(), 1);
}

#[test]
fn what_contradicts_itself_is_not_believed() {
    let server = Server::new();
    golden(&server);
    let lists = [
        "",
        "[]",
        "{}",
        r#"{"sha":"../../etc"}"#,
        r#"{"sha":"0123456789ABCDEF0123456789abcdef01234567"}"#,
        r#"{"sha":5}"#,
        "\u{0}",
    ];
    for list in lists {
        server.set(|b| b.list = Some(list.to_owned()));
        assert_eq!(reason(open_at(&server, "hf:o/n")), HubReason::Malformed, "{list}");
    }
    let deep = "[".repeat(100_000);
    server.set(|b| b.list = Some(deep));
    assert_eq!(reason(open_at(&server, "hf:o/n")), HubReason::Malformed);
    // Names that lead elsewhere are not files.
    let list = format!(
        r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":"../config.json"}},{{"rfilename":"/etc/x.gguf"}}]}}"#
    );
    server.set(|b| b.list = Some(list));
    assert_eq!(reason(open_at(&server, "hf:o/n")), HubReason::NotFound);
    server.set(|b| b.list = None);
    for status in [403, 404, 410, 418, 302] {
        server.faults(&[Fault::Status(status, String::new())]);
        assert!(matches!(open_at(&server, "hf:o/n"), Err(ModelError::Hub { .. })), "{status}");
    }
    // Two pieces of a header, after the list.
    server.set(|b| b.files.clear()).file("m.gguf", gguf(60_000).bytes());
    let none = Fault::None;
    for faults in [
        [none.clone(), Fault::OtherRange, none.clone()],
        [none.clone(), Fault::OtherTotal, none.clone()],
        [none.clone(), none.clone(), Fault::OtherTotal],
        [none.clone(), none.clone(), Fault::Status(416, String::new())],
    ] {
        server.faults(&faults);
        assert_eq!(reason(open_at(&server, "hf:o/n")), HubReason::Malformed, "{faults:?}");
    }
    server.faults(&[]);
    assert!(open_at(&server, "hf:o/n").is_ok());
    server.file("empty.gguf", Vec::new());
    assert_eq!(reason(open_at(&server, "hf:o/n:empty.gguf")), HubReason::Malformed);
}

#[test]
fn servers_without_ranges_serve_too() {
    let server = Server::new();
    server.set(|b| b.no_ranges = true);
    let (head, total) = shard("w", 1 << 21);
    server.large("model.safetensors", head, total);
    server.file("config.json", b"{}".to_vec());
    let opened = open_at(&server, "hf:o/n").unwrap();
    assert_eq!(opened.checkpoint_bytes(), 1 << 32);
    assert!(opened.bytes_read().network < 100_000, "the rest is left unread");
    server.set(|b| b.no_length = true);
    assert_eq!(reason(open_at(&server, "hf:o/n")), HubReason::Malformed);
}

#[test]
fn no_server_is_an_error_soon() {
    let gone = HubOptions { endpoint: "http://127.0.0.1:1".to_owned(), ..options(&Server::new()) };
    assert_eq!(reason(hub::open(&"hf:o/n".parse().unwrap(), &gone)), HubReason::Connection);
}
