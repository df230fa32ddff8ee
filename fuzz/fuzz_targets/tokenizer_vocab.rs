//! libFuzzer entry of [`plimsoll_fuzz::tokenizer_vocab`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| plimsoll_fuzz::tokenizer_vocab(data));
