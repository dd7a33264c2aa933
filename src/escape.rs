//! Text from outside, for people: with nothing in it that a terminal, a log or a shell would obey.

/// Another client's text, with nothing in it that a terminal would obey.
pub(crate) fn printable(text: &str) -> String {
    slotkeeper_semaphore::printable(text, 100)
}

/// A text that an agent has answered, with nothing in it that a terminal would obey; its lines stay. In JSON, what is replaced
/// stands as JSON has it. Whoever listens at the agent's address may have made it.
pub(crate) fn harmless(text: &str) -> String {
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
