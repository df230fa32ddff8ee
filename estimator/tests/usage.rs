//! Flags that would change nothing, and sizes that are none: each is a mistake of the usage, by its name.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "common/binary.rs"]
mod binary;

use binary::run;

fn config(name: &str) -> String {
    format!("{}/../tests/data/configs/{name}.json", env!("CARGO_MANIFEST_DIR"))
}

/// The exit code and the words.
fn ends(args: &[&str]) -> (i32, String) {
    let output = run(args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("panicked"), "{args:?}: {said}");
    (output.status.code().unwrap(), said)
}

/// Every flag that `--help` lists, with a value where it takes one.
fn all_flags() -> Vec<Vec<String>> {
    let help = String::from_utf8(run(&["--help"]).stdout).unwrap();
    let mut flags = Vec::new();
    for line in help.lines().map(str::trim) {
        let line = line.strip_prefix("-v, ").unwrap_or(line);
        if !line.starts_with("--") || line.starts_with("--help") || line.starts_with("--version") {
            continue;
        }
        let (flag, value) = line.split_once(' ').unwrap_or((line, ""));
        let value = match (flag, value) {
            (_, "") | ("--verbose...", _) => None,
            ("--runtime", _) => Some("mlx"),
            ("--mla", _) => Some("kv"),
            ("--mamba-cache", _) => Some("all"),
            ("--gpu-memory-utilization", _) => Some("0.5"),
            ("--image-size", _) => Some("64x64"),
            (_, "<FORMAT>") => Some("f16"),
            _ => Some("8"),
        };
        let flag = flag.trim_end_matches("...");
        flags.push(std::iter::once(flag).chain(value).map(str::to_owned).collect());
    }
    assert!(flags.len() > 35, "{flags:?}");
    flags
}

#[test]
fn beside_a_fleet_or_the_table_nothing_else_is_heard() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("usage");
    std::fs::create_dir_all(&folder).unwrap();
    let fleet = folder.join("fleet.toml");
    let text = format!(
        "device = [{{ name = \"apple-m4-max-128\" }}]\nmodel = [{{ path = \"{}\" }}]",
        config("smollm2-135m")
    );
    std::fs::write(&fleet, text).unwrap();
    let fleet = fleet.to_str().unwrap();
    for (mode, heard) in
        [(vec!["--fleet", fleet], &["--json", "--verbose"][..]), (vec!["--list-devices"], &["--json"])]
    {
        let (code, said) = ends(&mode);
        assert_eq!(code, 0, "{said}");
        for flag in all_flags() {
            if mode[0] == flag[0] {
                continue;
            }
            let mut args = mode.clone();
            args.extend(flag.iter().map(String::as_str));
            let (code, said) = ends(&args);
            if heard.contains(&flag[0].as_str()) {
                assert_eq!(code, 0, "{args:?}: {said}");
                continue;
            }
            assert_eq!(code, 2, "{args:?}: {said}");
            assert!(said.contains(&flag[0]), "{args:?}: {said}");
            // A flag of another engine without that engine is told so first.
            assert!(said.contains(mode[0]) || said.contains("--runtime"), "{args:?}: {said}");
        }
        let model = config("smollm2-135m");
        let (code, said) = ends(&[&mode[..], &[&model]].concat());
        assert!(code == 2 && said.contains("MODEL") && said.contains(mode[0]), "{said}");
    }
    assert!(ends(&["--fleet", fleet, "-v"]).1.contains("priced in"));
}

#[test]
fn a_flag_that_changes_nothing_is_named_with_what_makes_it_so() {
    let model = config("gemma-3-12b-it");
    let pairs: [(&[&str], [&str; 2]); 20] = [
        (&["--cache-limit", "0", "--snapshots", "2"], ["--cache-limit", "--snapshots"]),
        (&["--reserve", "1GiB"], ["--reserve", "--device"]),
        (&["--chart", "--json"], ["--chart", "--json"]),
        (&["--runtime", "llama.cpp", "--snapshots", "2"], ["--snapshots", "--runtime llama.cpp"]),
        (&["--runtime", "vllm", "--snapshots", "2"], ["--snapshots", "--runtime vllm"]),
        (&["--runtime", "mlx", "--cache-limit", "2"], ["--cache-limit", "--runtime mlx"]),
        (&["--runtime", "mlx", "--max-binding", "2GiB"], ["--max-binding", "--runtime mlx"]),
        (&["--runtime", "mlx", "--max-allocation", "2GiB"], ["--max-allocation", "--runtime mlx"]),
        (&["--runtime", "vllm", "--max-allocation", "2GiB"], ["--max-allocation", "--runtime vllm"]),
        (
            &["--runtime", "llama.cpp", "--max-allocation", "2GiB"],
            ["--max-allocation", "--no-flash-attention"],
        ),
        (&["--runtime", "llama.cpp", "--image-size", "64x64"], ["--image-size", "--runtime llama.cpp"]),
        (&["--runtime", "vllm", "--kv-fp8", "--kv", "f16"], ["--kv", "--kv-fp8"]),
        (&["--runtime", "vllm", "--kv-fp8", "--kv-v", "f16"], ["--kv-v", "--kv-fp8"]),
        (
            &["--runtime", "vllm", "--gpu-memory-utilization", "0.5"],
            ["--gpu-memory-utilization", "--device or --memory"],
        ),
        (&["--cell-padding", "32"], ["--cell-padding", "--runtime llama.cpp"]),
        (&["--runtime", "vllm", "--kv-unified"], ["--kv-unified", "--runtime llama.cpp"]),
        (&["--runtime", "plimsoll", "--kv-bits", "8"], ["--kv-bits", "--runtime mlx"]),
        (&["--mla", "dense"], ["--mla", "--runtime"]),
        (&["--block-size", "32"], ["--block-size", "--runtime vllm"]),
        (&["--kv", "f16", "--kv-k", "f32", "--kv-v", "f32"], ["--kv", "--kv-k"]),
    ];
    for (flags, names) in pairs {
        let (code, said) = ends(&[&[model.as_str()], flags].concat());
        assert_eq!(code, 2, "{flags:?}: {said}");
        assert!(names.iter().all(|name| said.contains(name)), "{flags:?}: {said}");
    }
    let heard: [&[&str]; 7] = [
        &["--reserve", "1GiB", "--device", "apple-m4-max-128"],
        &["--reserve", "1GiB", "--memory", "64GiB"],
        &["--image-size", "64x64"],
        &["--chart"],
        &["--runtime", "vllm", "--gpu-memory-utilization", "0.5", "--memory", "99GiB"],
        &["--runtime", "llama.cpp", "--no-flash-attention", "--max-allocation", "99GiB"],
        &["--cache-limit", "1GiB"],
    ];
    for flags in heard {
        let (code, said) = ends(&[&[model.as_str()], flags].concat());
        assert_eq!(code, 0, "{flags:?}: {said}");
    }
    let text = String::from_utf8(run(&[&model, "--cache-limit", "1GiB"]).stdout).unwrap();
    assert!(text.contains("at most 1.00 GiB (flag --cache-limit)"), "{text}");
    assert!(ends(&[&model, "--reserve", "1GiB", "--memory", "64GiB"]).1.contains("--memory stays whole"));
}

#[test]
fn sizes_are_whole_bytes_and_more_than_none() {
    let model = config("smollm2-135m");
    for flag in ["--memory", "--max-allocation", "--max-binding", "--replaces"] {
        for text in ["0", "0GiB", "0.0", "1.5", "0.5B", "0.0001kB", "-1"] {
            let (code, said) = ends(&[&model, &format!("{flag}={text}")]);
            assert_eq!(code, 2, "{flag} {text}: {said}");
            assert!(said.contains(flag), "{flag} {text}: {said}");
        }
        let (code, said) = ends(&[&model, &format!("{flag}=1.5GiB")]);
        assert_eq!(code, 0, "{flag}: {said}");
    }
    // Nothing is a reserve, and a limit of what is kept; a part of a byte is not.
    for flag in ["--reserve", "--cache-limit"] {
        let device = "--device=apple-m4-max-128";
        assert_eq!(ends(&[&model, device, &format!("{flag}=0")]).0, 0);
        let (code, said) = ends(&[&model, device, &format!("{flag}=1.5")]);
        assert!(code == 2 && said.contains(flag), "{said}");
    }
}
