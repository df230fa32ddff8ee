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
            ("--mamba-ssm-cache-dtype", _) => Some("float16"),
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

/// A limit on what is kept says nothing of another engine: the flag is refused, and the variable is told to be idle.
#[test]
fn a_limit_on_what_is_kept_is_idle_beside_another_engine() {
    let model = config("llama-3.1-8b");
    let with = |args: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_plimsoll-estimate"));
        command.env_remove("PLIMSOLL_MEMORY_LIMIT").env_remove("PLIMSOLL_RESERVE");
        let output = command.env("PLIMSOLL_CACHE_LIMIT", "1MB").arg(&model).args(args).output().unwrap();
        let [out, said] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        assert_eq!(output.status.code(), Some(0), "{said}");
        (out, said)
    };
    for engine in ["vllm", "mlx", "llama.cpp"] {
        let (out, said) = with(&["--runtime", engine]);
        assert!(!out.contains("kept without being live"), "{out}");
        let idle = format!("PLIMSOLL_CACHE_LIMIT changes nothing with --runtime {engine}");
        assert_eq!(said.matches(&idle).count(), 1, "{said}");
        let document: serde_json::Value =
            serde_json::from_str(&with(&["--runtime", engine, "--json"]).0).unwrap();
        assert!(document["cache_limit"]["bytes"].is_null(), "{}", document["cache_limit"]);
        assert!(document["warnings"].to_string().contains(&idle), "{}", document["warnings"]);
    }
    let (out, said) = with(&[]);
    assert!(out.contains("kept without being live") && !said.contains("PLIMSOLL_CACHE_LIMIT"), "{out}{said}");
}

/// Help promises of `-v` what an estimate does: it loads nothing, and says how long it took.
#[test]
fn more_is_said_as_the_help_has_it() {
    let help = String::from_utf8(run(&["--help"]).stdout).unwrap();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        help.contains("Say more: of an estimate how long it took, of what runs the admitted plan"),
        "{help}"
    );
    let model = config("smollm2-135m");
    let plain = run(&[&model]).stdout;
    for verbose in ["-v", "-vv"] {
        let output = run(&[&model, verbose]);
        assert_eq!(output.stdout, plain, "{verbose}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("priced in"), "{verbose}");
    }
}

/// A model of whose weights one piece is past WebGPU's least limits says that those are no device's.
#[test]
fn a_limit_of_no_device_offers_one() {
    let llama4 = format!("{}/../models/tests/data/priced/llama-4-scout.json", env!("CARGO_MANIFEST_DIR"));
    let offer = "these are WebGPU's least limits: --device NAME";
    let text = run(&[&llama4]);
    let out = String::from_utf8_lossy(&text.stdout).into_owned();
    assert_eq!(text.status.code(), Some(3));
    assert!(out.contains(offer) && out.contains("binding limit is 134,217,728"), "{out}");
    assert!(out.contains("no geometry of this model fits them"), "{out}");
    assert!(out.contains("needs 167,772,160 bytes"), "{out}");
    // Programs and browsers are told as people are.
    let page = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("usage-least-limits.html");
    let document = run(&[&llama4, "--json", "--html", page.to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&document.stderr).contains(offer));
    assert!(std::fs::read_to_string(&page).unwrap().contains("WebGPU&#39;s least limits: --device NAME"));
    let document: serde_json::Value = serde_json::from_slice(&document.stdout).unwrap();
    assert!(document["warnings"].to_string().contains(offer), "{}", document["warnings"]);
    let refusal = &document["refusal"];
    let limits = (&refusal["broke"], &refusal["need"], &refusal["have"]);
    let expected = serde_json::json!(["binding", 167_772_160, 134_217_728]);
    assert_eq!(limits, (&expected[0], &expected[1], &expected[2]), "{refusal}");
    // Where no size fits it is not memory that is blamed.
    let all = String::from_utf8(run(&[&llama4, "--memory", "2TB"]).stdout).unwrap();
    assert!(
        all.contains("context none") && all.contains("not memory but WebGPU's least limits leave none"),
        "{all}"
    );
    let little = String::from_utf8(run(&[&config("llama-3.1-8b"), "--memory", "2MB"]).stdout).unwrap();
    assert!(little.contains("context none") && !little.contains("least limits"), "{little}");
    assert_eq!(run(&[&llama4, "--device", "apple-m3-ultra-256"]).status.code(), Some(0));
    // A row of the table without limits is priced against the same, and says so.
    let unknown = run(&[&llama4, "--device", "apple-m5-ultra-512"]);
    let said = String::from_utf8_lossy(&unknown.stdout).into_owned();
    assert_eq!(unknown.status.code(), Some(3), "{said}");
    assert!(
        said.contains("least limits: those of apple-m5-ultra-512 are not known, and it may have more"),
        "{said}"
    );
    assert!(said.contains("not memory but WebGPU's least limits leave none"), "{said}");
    for other in [&["--device", "h200"][..], &["--max-binding", "1MiB"]] {
        let (code, said) = ends(&[&[llama4.as_str(), "--json"], other].concat());
        assert!(code == 3 && !said.contains(offer), "{other:?}: {said}");
    }
}
