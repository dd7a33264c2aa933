//! Untrusted text, made safe to print.

/// The beginning of a text of anybody's, at most so many bytes as it is shown, on one line and with nothing in it that a
/// terminal, a log or a shell's variable would be misled by.
pub fn printable(text: &str, most: usize) -> String {
    let mut shown = String::new();
    for character in text.chars() {
        let before = shown.len();
        if matches!(character, '"' | '\'' | '\\') {
            shown.push(character);
        } else {
            shown.extend(character.escape_debug());
        }
        if shown.len() > most {
            shown.truncate(before);
            shown.push('…');
            break;
        }
    }
    shown
}

/// Whether Consul takes the character in a path: Go's `unicode.IsPrint`, which are letters, marks, numbers, punctuation,
/// symbols and the plain blank.
pub fn is_printable(character: char) -> bool {
    // A mark is escaped where it begins a text, and shown behind a letter.
    let shown = format!("a{character}").escape_debug().to_string();
    matches!(character, '\\' | '\'' | '"') || !shown.starts_with("a\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_obeyed_elsewhere_is_only_shown() {
        let hostile = "a\u{1b}[2J\u{9b}2J\r\n\0\u{7f}\u{202e}b\u{2028}";
        assert_eq!(printable(hostile, 100), "a\\u{1b}[2J\\u{9b}2J\\r\\n\\0\\u{7f}\\u{202e}b\\u{2028}");
        assert_eq!(printable("it's \"é☃\" \\ <b>", 100), "it's \"é☃\" \\ <b>");
        assert_eq!(printable("abc", 2), "ab…");
        assert_eq!(printable("abc", 3), "abc");
    }

    #[test]
    fn consul_takes_what_go_prints() {
        for taken in ['a', ' ', 'é', '\u{301}', '☃', '\\', '"', '\'', '😀', '%'] {
            assert!(is_printable(taken), "{taken:?}");
        }
        for refused in ['\0', '\t', '\n', '\u{7f}', '\u{a0}', '\u{200b}', '\u{202e}', '\u{3000}', '\u{e000}']
        {
            assert!(!is_printable(refused), "{refused:?}");
        }
    }

    #[test]
    fn what_is_made_longer_to_be_shown_is_not_longer_than_asked_for() {
        assert_eq!(printable("\u{1b}\u{1b}\u{1b}", 12), "\\u{1b}\\u{1b}…");
        assert_eq!(printable("\u{1b}\u{1b}", 11), "\\u{1b}…");
        assert_eq!(printable("ééé", 5), "éé…");
    }
}
