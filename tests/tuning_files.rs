//! Files of kernel variants: found again by the same adapter alone, and strangers until they are checked.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use plimsoll::tuning::{Identity, Measured, Reason, Store};
use plimsoll_kernels::{Delta, Limits, Ssd, Tuning};
use plimsoll_runtime::{AdapterInfo, AdapterKind, DeviceOptions, MemoryReading, MemorySource};
use serde_json::{Value, json};
use std::path::PathBuf;

fn adapter(name: &str) -> AdapterInfo {
    AdapterInfo {
        name: name.to_owned(),
        backend: "vulkan".to_owned(),
        driver: "soft".to_owned(),
        driver_info: "Mesa 22.3.6 (LLVM 15.0.6)".to_owned(),
        kind: AdapterKind::Cpu,
        limits: Limits::webgpu_default(),
        subgroup_size: Some((8, 8)),
        features: Vec::new(),
        memory: MemoryReading::new(None, MemorySource::Unknown),
    }
}

fn measured() -> Measured {
    Measured {
        model: "a model".to_owned(),
        prompt_tokens: 512,
        new_tokens: 64,
        rounds: 5,
        unix_seconds: 1_800_000_000,
        against: "table row cpu-subgroup-8".to_owned(),
        prefill_ratio: 1.25,
        decode_ratio: 1.0,
    }
}

/// A cache folder of a test's own.
fn cache(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("tuning-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

#[test]
fn what_was_saved_is_found_again_by_the_same_adapter_alone() {
    let folder = cache("round");
    let (store, info) = (Store::new(&folder), adapter("llvmpipe (LLVM 15.0.6, 256 bits)"));
    let profile = info.profile(&DeviceOptions::default());
    let identity = Identity::of(&info, &profile);
    assert_eq!(store.load(&info, &profile).unwrap(), None, "nothing is there, and that is no error");
    let tuning = Tuning { mat_vec_rows: 64, ssd: Ssd::Streaming { block: 16 }, ..profile.tuning.clone() };
    let path = store.save(&identity, &tuning, &measured()).unwrap();
    assert_eq!(path, folder.join("tuning/llvmpipe-llvm-15-0-6-256-bits-vulkan-subgroups-8-8.json"));
    let tuned = store.load(&info, &profile).unwrap().unwrap();
    assert_eq!((&tuned.tuning, &tuned.source), (&tuning, &format!("file {}", path.display())));
    assert_eq!(profile.clone().tuned(&tuned).unwrap().tuned_by, tuned.source);
    // Replaced as a whole, and nothing else is left in the folder.
    let again = Tuning { delta: Delta::Blocks { block: 32 }, ..tuning };
    store.save(&identity, &again, &measured()).unwrap();
    assert_eq!(store.load(&info, &profile).unwrap().unwrap().tuning, again);
    assert_eq!(std::fs::read_dir(folder.join("tuning")).unwrap().count(), 1);
    // Without subgroups, and on another adapter, it is another file.
    let plain = info.profile(&DeviceOptions { subgroups: false, ..DeviceOptions::default() });
    assert_eq!(store.load(&info, &plain).unwrap(), None);
    let other = adapter("another");
    assert_eq!(store.load(&other, &profile).unwrap(), None);
    let odd = adapter("../../etc/\u{1b}[31mπ");
    let name = store.path(&Identity::of(&odd, &profile));
    assert_eq!(name.parent(), Some(folder.join("tuning").as_path()), "a name is no path: {}", name.display());
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn strangers_are_named_and_not_used() {
    let folder = cache("hostile");
    let (store, info) = (Store::new(&folder), adapter("soft"));
    let profile = info.profile(&DeviceOptions::default());
    let identity = Identity::of(&info, &profile);
    let path = store.save(&identity, &profile.tuning, &measured()).unwrap();
    let good: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let refused = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let error = store.load(&info, &profile).unwrap_err();
        assert_eq!(error.path, path);
        let said = error.to_string();
        assert!(said.contains(&path.display().to_string()), "{said}");
        assert!(said.len() < 1200 && !said.contains(char::is_control), "{said:?}");
        said
    };
    // Whatever the bytes are.
    let whole = serde_json::to_vec(&good).unwrap();
    for end in 0..whole.len() {
        refused(&whole[..end]);
    }
    refused(b"\xff\xfe\x00");
    refused("[".repeat(30_000).as_bytes());
    assert!(refused(&vec![b' '; 100_000]).contains("65536 bytes"));
    assert!(refused(b"{\"\\u001b[31m\": 1}").contains("malformed"));
    // Another adapter's, driver's or version's, or none's.
    for (pointer, value, named) in [
        ("/schema", json!(2), "schema"),
        ("/identity/adapter", json!("hard"), "adapter"),
        ("/identity/driver", json!("hard"), "driver"),
        ("/identity/driver_info", json!("Mesa 26.0.0"), "Mesa 26.0.0"),
        ("/identity/driver_info", json!("x\u{7}".repeat(9000)), "driver_info"),
        ("/identity/subgroup_size", json!([4, 8]), "subgroup_size"),
        ("/identity/program", json!("0.0.1"), "program"),
        ("/tuning/mat_vec_rows", json!(0), "mat_vec_rows"),
        ("/tuning/mat_vec_rows", json!(3), "mat_vec_rows"),
        ("/tuning/mat_vec_workgroup", json!(1024), "mat_vec_workgroup"),
        ("/tuning/row_workgroup", json!(4_294_967_295_u32), "row_workgroup"),
        ("/tuning/row_workgroup", json!(4_294_967_296_u64), "malformed"),
        ("/tuning/attention_workgroup", json!(-8), "malformed"),
        ("/tuning/attention_fill", json!(1e9), "malformed"),
        ("/tuning/ssd", json!({"kernels": {"block": 1 << 30}}), "ssd"),
        ("/tuning/delta", json!({"blocks": {"block": 48}}), "delta"),
        ("/tuning/reduce", json!("magic"), "malformed"),
        ("/measured/prefill_ratio", json!("fast"), "malformed"),
    ] {
        let mut spoilt = good.clone();
        *spoilt.pointer_mut(pointer).unwrap() = value;
        let said = refused(&serde_json::to_vec(&spoilt).unwrap());
        assert!(said.contains(named), "{pointer}: {said}");
    }
    // What is legal depends on how the adapter is opened.
    let mut tiles = good.clone();
    tiles["tuning"]["mat_mat_shared"] = json!(true);
    std::fs::write(&path, serde_json::to_vec(&tiles).unwrap()).unwrap();
    assert!(store.load(&info, &profile).unwrap().unwrap().tuning.mat_mat_shared);
    let mut little = profile.clone();
    little.limits.max_compute_workgroup_storage_size = 8 << 10;
    assert!(store.load(&info, &little).unwrap_err().to_string().contains("mat_mat_shared"));
    // No file at all: a folder by its name.
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert!(matches!(store.load(&info, &profile).unwrap_err().reason, Reason::Shape));
    std::fs::remove_dir_all(folder).unwrap();
}
