//! libFuzzer entry of [`plimsoll_fuzz::config_json`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| plimsoll_fuzz::config_json(data));
