//! libFuzzer entry of [`plimsoll_fuzz::gguf_header`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| plimsoll_fuzz::gguf_header(data));
