#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| slotkeeper::untrusted_input::entry(data));
