//! The tuning table, what is legal, and what is tried: for every kind of adapter, without one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use plimsoll_kernels::tuning::{Field, table};
use plimsoll_kernels::{Delta, Facts, Limits, Profile, Reduce, Ssd, Tuned, Tuning};

fn facts(subgroup_size: Option<(u32, u32)>, cpu: bool) -> Facts {
    Facts { limits: Limits::webgpu_default(), subgroup_size, cpu, f16: false, cooperative_matrix: false }
}

/// Every kind of adapter there is: smallest subgroups of all sizes and none, software and not.
fn adapters() -> Vec<Facts> {
    let sizes = [None].into_iter().chain((0..8).map(|i| Some((1 << i, 128))));
    sizes.flat_map(|size| [facts(size, false), facts(size, true)]).collect()
}

/// What adapters got before there was a table: plans, and so every figure that was measured, stay what they were.
#[test]
fn adapters_get_what_they_always_got() {
    for facts in adapters() {
        let reduce = if facts.subgroup_size.is_some() { Reduce::Subgroup } else { Reduce::Shared };
        let low = facts.subgroup_size.map_or(1, |(low, _)| low);
        let lanes = if facts.subgroup_size.is_some() { low.clamp(4, 32) } else { 8 };
        let expected = if facts.cpu {
            Tuning {
                reduce,
                mat_vec_workgroup: lanes,
                mat_vec_rows: if low >= 8 { 32 } else { 8 },
                norm_values: 4 << 20,
                mat_mat_shared: false,
                row_workgroup: lanes,
                attention_workgroup: 8,
                attention_fill: 2,
                ssd: Ssd::Sequential,
                delta: Delta::Sequential,
            }
        } else {
            Tuning {
                reduce,
                mat_vec_workgroup: 64,
                mat_vec_rows: 4,
                norm_values: 8 << 20,
                mat_mat_shared: true,
                row_workgroup: 128,
                attention_workgroup: 64,
                attention_fill: 1024,
                ssd: Ssd::Streaming { block: 16 },
                delta: Delta::Blocks { block: 16 },
            }
        };
        let row = table::look_up(&facts);
        assert_eq!(row.tuning, expected, "{facts:?}");
        let profile = Profile::of("it", facts.clone());
        assert_eq!((&profile.tuning, profile.tuned_by), (&expected, format!("table row {}", row.name)));
        assert_eq!(Profile::of("it", facts.clone()).facts(), facts);
    }
}

#[test]
fn every_row_is_for_somebody_legal_and_says_what_it_stands_on() {
    let mut seen = std::collections::HashSet::new();
    for facts in adapters() {
        let row = table::look_up(&facts);
        assert!(row.when.holds(&facts), "{}: {}", row.name, row.when);
        row.tuning.checked(&facts).unwrap();
        seen.insert(row.name);
    }
    for row in &table::ROWS {
        assert!(seen.contains(row.name), "{} stands behind others", row.name);
        assert_eq!(table::named(row.name), Some(row), "names are of one row");
        assert!(!row.reasoning.is_empty());
        for measured in row.measured {
            let texts = [measured.adapter, measured.driver, measured.what, measured.figures, measured.source];
            assert!(texts.iter().all(|text| !text.is_empty()), "{measured:?}");
            assert!(measured.date.len() == 10 && measured.date.starts_with("20"), "{measured:?}");
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(measured.source);
            assert!(measured.source == "nowhere else" || path.is_file(), "{measured:?}");
        }
        assert!(row.when.cpu || row.measured.is_empty(), "nothing was measured on a GPU");
    }
}

#[test]
fn rows_ask_for_what_they_say() {
    let plain = facts(Some((8, 8)), true);
    let base = table::When { subgroup: 8, ..table::named("cpu").unwrap().when };
    let more = table::When { workgroup_memory: 32 << 10, invocations: 512, ..base };
    let all = table::When { f16: true, cooperative_matrix: true, ..more };
    assert!(base.holds(&plain) && !more.holds(&plain) && !all.holds(&plain));
    let limits = Limits {
        max_compute_workgroup_storage_size: 32 << 10,
        max_compute_invocations_per_workgroup: 512,
        ..plain.limits.clone()
    };
    let large = Facts { limits, ..plain.clone() };
    assert!(more.holds(&large) && !all.holds(&large));
    assert!(!all.holds(&Facts { f16: true, ..large.clone() }));
    assert!(all.holds(&Facts { f16: true, cooperative_matrix: true, ..large }));
    assert!(!base.holds(&facts(Some((4, 8)), true)), "drivers may choose the smallest");
    assert!(!base.holds(&facts(None, true)) && !base.holds(&facts(Some((8, 8)), false)));
    for part in ["software", "subgroups of at least 8", "32768", "512", "f16", "cooperative"] {
        assert!(all.to_string().contains(part), "{part}: {all}");
    }
}

type Spoil = fn(&mut Tuning);

#[test]
fn nonsense_is_named() {
    let adapter = facts(Some((8, 8)), true);
    let base = table::look_up(&adapter).tuning.clone();
    let spoilt: [(Field, Spoil); 23] = [
        (Field::MatVecWorkgroup, |t| t.mat_vec_workgroup = 0),
        (Field::MatVecWorkgroup, |t| t.mat_vec_workgroup = 24),
        (Field::MatVecWorkgroup, |t| t.mat_vec_workgroup = 512),
        (Field::MatVecRows, |t| t.mat_vec_rows = 0),
        (Field::MatVecRows, |t| t.mat_vec_rows = 3),
        (Field::MatVecRows, |t| t.mat_vec_rows = 1 << 31),
        (Field::RowWorkgroup, |t| t.row_workgroup = 0),
        (Field::RowWorkgroup, |t| t.row_workgroup = 96),
        (Field::RowWorkgroup, |t| t.row_workgroup = u32::MAX),
        (Field::AttentionWorkgroup, |t| t.attention_workgroup = 0),
        (Field::AttentionWorkgroup, |t| t.attention_workgroup = 4),
        (Field::AttentionWorkgroup, |t| t.attention_workgroup = 128),
        (Field::AttentionFill, |t| t.attention_fill = 0),
        (Field::AttentionFill, |t| t.attention_fill = u32::MAX),
        (Field::NormValues, |t| t.norm_values = u32::MAX),
        (Field::Ssd, |t| t.ssd = Ssd::Streaming { block: 0 }),
        (Field::Ssd, |t| t.ssd = Ssd::Streaming { block: 128 }),
        (Field::Ssd, |t| t.ssd = Ssd::Kernels { block: 48 }),
        (Field::Ssd, |t| t.ssd = Ssd::Kernels { block: u32::MAX }),
        (Field::Delta, |t| t.delta = Delta::Blocks { block: 0 }),
        (Field::Delta, |t| t.delta = Delta::Blocks { block: 64 }),
        (Field::MatVecWorkgroup, |t| t.mat_vec_workgroup = u32::MAX),
        (Field::AttentionWorkgroup, |t| t.attention_workgroup = 12),
    ];
    base.checked(&adapter).unwrap();
    for (field, spoil) in spoilt {
        let mut tuning = base.clone();
        spoil(&mut tuning);
        let error = tuning.checked(&adapter).unwrap_err();
        assert_eq!(error.field, field, "{error}");
        assert!(error.to_string().contains(field.name()), "{error}");
        let tuned = Tuned { tuning, source: "a stranger".to_owned() };
        assert_eq!(Profile::of("it", adapter.clone()).tuned(&tuned), Err(error));
    }
    // What is legal depends on the adapter.
    let few = Limits { max_compute_invocations_per_workgroup: 128, ..Limits::webgpu_default() };
    let few = Facts { limits: few, ..adapter.clone() };
    let little = Limits { max_compute_workgroup_storage_size: 8 << 10, ..Limits::webgpu_default() };
    let little = Facts { limits: little, ..adapter.clone() };
    let tiles = Tuning { mat_mat_shared: true, ..base.clone() };
    let rows = Tuning { row_workgroup: 256, ..base.clone() };
    tiles.checked(&adapter).unwrap();
    rows.checked(&adapter).unwrap();
    assert_eq!(tiles.checked(&few).unwrap_err().field, Field::MatMatShared);
    assert_eq!(tiles.checked(&little).unwrap_err().field, Field::MatMatShared);
    assert_eq!(rows.checked(&few).unwrap_err().field, Field::RowWorkgroup);
    assert_eq!(base.checked(&facts(None, true)).unwrap_err().field, Field::Reduce);
}

#[test]
fn candidates_are_legal_and_differ_in_one_field() {
    for facts in adapters() {
        let base = &table::look_up(&facts).tuning;
        for field in Field::ALL {
            let candidates = field.candidates(&facts, base);
            for candidate in &candidates {
                candidate.checked(&facts).unwrap();
                for other in Field::ALL {
                    let same = other.value(candidate) == other.value(base);
                    assert_eq!(same, other != field, "{field}: {candidate:?}");
                }
            }
            let values: std::collections::HashSet<_> = candidates.iter().map(|c| field.value(c)).collect();
            assert_eq!(values.len(), candidates.len(), "{field}: each once");
            let lone = field == Field::Reduce && facts.subgroup_size.is_none();
            assert_eq!(candidates.is_empty(), lone, "{field}: {facts:?}");
        }
    }
    assert_eq!(Field::ALL.iter().map(|f| f.name()).collect::<std::collections::HashSet<_>>().len(), 10);
}

#[test]
fn documents_are_read_back_and_strangers_are_not() {
    let tuning = Tuning { ssd: Ssd::Kernels { block: 64 }, ..table::ROWS[0].tuning.clone() };
    let text = serde_json::to_string(&tuning).unwrap();
    assert_eq!(serde_json::from_str::<Tuning>(&text).unwrap(), tuning);
    for (from, to) in [
        ("\"reduce\":", "\"reduces\":"),
        ("{\"reduce\"", "{\"more\":1,\"reduce\""),
        ("\"block\":64", "\"block\":-1"),
        ("\"block\":64", "\"block\":64,\"size\":1"),
        ("\"kernels\"", "\"shaders\""),
        ("\"mat_mat_shared\":false", "\"mat_mat_shared\":0"),
    ] {
        assert!(text.contains(from), "{from} in {text}");
        assert!(serde_json::from_str::<Tuning>(&text.replacen(from, to, 1)).is_err(), "{to}");
    }
    // Profiles of plans that were written before they said where their tuning is from.
    let mut old = serde_json::to_value(Profile::webgpu_default()).unwrap();
    for new in ["tuned_by", "f16", "cooperative_matrix"] {
        old.as_object_mut().unwrap().remove(new).unwrap();
    }
    assert_eq!(serde_json::from_value::<Profile>(old).unwrap().tuned_by, "");
}

/// What a row of the table says of a file is what the file says.
#[test]
fn the_figures_of_the_state_space_are_those_of_their_file() {
    let row = table::look_up(&facts(Some((8, 8)), true));
    let measured = row.measured.iter().find(|measured| measured.what.starts_with("ssd: ")).unwrap();
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(measured.source);
    let text = std::fs::read_to_string(file).unwrap();
    let cells = |line: &str| -> Vec<String> { line.split('|').map(|cell| cell.trim().to_owned()).collect() };
    let (_, table) = text.split_once("## Forms of the state space").unwrap();
    let find = |start: &str| cells(table.lines().find(|line| line.starts_with(start)).unwrap());
    let (header, figures) = (find("| tokens |"), find("| 2,048 |"));
    let at = |form: usize| (header[form].as_str(), figures[form].split(' ').next().unwrap());
    assert_eq!((at(2).0, at(4).0, at(6).0), ("sequential", "of 32", "of 64"));
    assert!(header[3].starts_with("streaming, ") && header[5].starts_with("five kernels, "), "{header:?}");
    let expected = format!(
        "sequential {}, five kernels {} (blocks of 64), streaming {} (blocks of 32)",
        at(2).1,
        at(6).1,
        at(4).1
    );
    assert_eq!(measured.figures, expected);
    assert!(measured.what.contains("milliseconds on the wall") && measured.what.contains("T 2,048"));
}
