#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| slotkeeper::hostile::answer(data));
