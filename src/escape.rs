//! Escaping of untrusted text for a terminal, a log or a shell.

/// Another client's text, escaped and cut to 100 characters.
pub(crate) fn printable(text: &str) -> String {
    slotkeeper_semaphore::printable(text, 100)
}

/// Replaces control characters in an agent's response by JSON escapes; line breaks stay. The response is untrusted input, since
/// another process may listen at the agent's address.
pub(crate) fn escape_control_chars(text: &str) -> String {
    let mut shown = String::new();
    for character in text.chars() {
        let is_plain = matches!(character, '\n' | '"' | '\'' | '\\') || character.escape_debug().count() == 1;
        if is_plain {
            shown.push(character);
        } else {
            let mut units = [0; 2];
            character
                .encode_utf16(&mut units)
                .iter()
                .for_each(|unit| shown.push_str(&format!("\\u{unit:04x}")));
        }
    }
    shown
}
