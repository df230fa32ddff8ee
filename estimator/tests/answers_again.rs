//! Answers asked again: what is said to fit does, whatever else is named, and one unit more does not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "common/asked.rs"]
mod asked;

use asked::{ask, config};
use proptest::prelude::*;
use serde_json::Value;

/// What stands beside the model: names of configurations are between flags.
const BESIDE: [&[&str]; 7] = [
    &[],
    &["--replaces", "gemma-3-270m"],
    &["--replaces", "12GB"],
    &["--with", "gemma-3-270m"],
    &["--draft-model", "smollm2-135m"],
    &["--with", "smollm2-135m", "--replaces", "gemma-3-270m"],
    &["--draft-model", "gemma-3-270m", "--replaces", "llama-3.1-8b"],
];

const FORMATS: [&[&str]; 3] = [&["--kv", "f16"], &["--kv", "q8_0"], &["--kv-k", "q8_0", "--kv-v", "q4_0"]];

/// What the budget is of; nothing: a ceiling near what is needed.
const DEVICES: [&str; 4] = ["", "", "intel-lunar-lake-140v-32", "nvidia-rtx-4060-ti-16"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(14))]

    #[test]
    fn what_is_said_to_fit_is_admitted_when_it_is_asked(
        model in prop::sample::select(&["smollm2-135m", "qwen3.5-9b", "gemma-3-270m"]),
        beside in prop::sample::select(&BESIDE), part in 70u64..400,
        context in 1u32..4096, slots in 1u32..20, chunk in 1u32..200,
        kv in prop::sample::select(&FORMATS), device in prop::sample::select(&DEVICES),
    ) {
        let named: Vec<String> = beside.iter().flat_map(|word| match *word {
            "--draft-model" => vec!["--draft-depth".to_owned(), "2".into(), "--draft".into()],
            flag if flag.starts_with("--") || flag.ends_with("GB") => vec![flag.to_owned()],
            name => vec![config(name)],
        }).collect();
        let model = config(model);
        let with = |memory: &str, [context, slots, chunk]: [u64; 3]| {
            let numbers = [context, slots, chunk].map(|number| number.to_string());
            let flags = ["--context", &numbers[0], "--slots", &numbers[1], "--chunk", &numbers[2]];
            let mut args = [&[model.as_str()], &flags[..], kv].concat();
            args.extend(named.iter().map(String::as_str));
            match (device, memory) {
                (_, "") => {}
                ("", memory) => args.extend(["--memory", memory]),
                (device, _) => args.extend(["--device", device]),
            }
            let (code, report, said) = ask(&args);
            (code, report, format!("{args:?}: {said}"))
        };
        let asked = [context, slots, chunk].map(u64::from);
        let (_, report, _) = with("", asked);
        let Some(own) = report["bytes"]["total"].as_u64() else { return Ok(()) };
        let others = report["others"]["here"].as_array().map_or(0, |all| all.iter().filter_map(|o| o["total"].as_u64()).sum());
        let memory = ((own + others) / 100 * part).to_string();
        let (code, report, said) = with(&memory, asked);
        prop_assert!(code == 0 || code == 3, "{}", said);
        for (at, field, step) in [(0, "context", 32), (1, "slots", 1), (2, "prefill_chunk", 1)] {
            let Some(most) = report["largest"][field].as_u64() else { continue };
            let mut again = asked;
            again[at] = most;
            let (code, _, said) = with(&memory, again);
            prop_assert_eq!(code, 0, "{}", said);
            if report["largest"]["bounded_by"][field] == Value::Null {
                again[at] = most + step;
                let (code, _, said) = with(&memory, again);
                prop_assert_eq!(code, 3, "{}", said);
            }
        }
        for point in report["frontier"]["points"].as_array().unwrap() {
            let [slots, context] = ["slots", "context"].map(|field| point[field].as_u64().unwrap());
            let (code, again, said) = with(&memory, [context, slots, asked[2]]);
            prop_assert_eq!((code, &again["bytes"]["total"]), (0, &point["total"]), "{}", said);
        }
    }
}
