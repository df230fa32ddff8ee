//! libFuzzer entry of [`plimsoll_fuzz::safetensors_index`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| plimsoll_fuzz::safetensors_index(data));
