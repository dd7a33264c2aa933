//! The window of standard output, and text cut or wrapped to it.

use std::borrow::Cow;
use std::io::{self, IsTerminal};

use rustix::termios::tcgetwinsize;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Rows or columns if there is no window, or its size is unknown.
pub(super) const ENDLESS: usize = usize::MAX;

/// Whether there is a window.
pub(super) fn is_there() -> bool {
    io::stdout().is_terminal()
}

/// Its rows and columns.
pub(super) fn size() -> (usize, usize) {
    let known = |size: u16| if size == 0 { ENDLESS } else { usize::from(size) };
    tcgetwinsize(io::stdout()).map_or((ENDLESS, ENDLESS), |size| (known(size.ws_row), known(size.ws_col)))
}

/// The part of a line that fits, and whether it is the whole line.
pub(super) fn cut(line: &str, columns: usize) -> Cow<'_, str> {
    if line.width() <= columns {
        return line.into();
    }
    let mut left = columns.saturating_sub(1);
    let fits = |character: &char| {
        let rest = left.checked_sub(character.width().unwrap_or_default());
        left = rest.unwrap_or_default();
        rest.is_some()
    };
    let mut shown: String = line.chars().take_while(fits).collect();
    shown.push('…');
    shown.into()
}

/// Wraps the lines of a text that are too long.
pub(super) fn wrap(text: &str, columns: usize) -> String {
    let mut wrapped = String::new();
    for line in text.lines() {
        let mut used = 0;
        for (nth, word) in line.split(' ').enumerate() {
            let width = word.width();
            if nth > 0 && used + 1 + width > columns {
                wrapped.push('\n');
                used = 0;
            } else if nth > 0 {
                wrapped.push(' ');
                used += 1;
            }
            wrapped.push_str(word);
            used += width;
        }
        wrapped.push('\n');
    }
    wrapped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_by_columns_and_says_so() {
        for (line, columns, shown) in [
            ("abc", 3, "abc"),
            ("abcd", 3, "ab…"),
            ("éé☃☃", 3, "éé…"),
            // Two columns each.
            ("漢字", 4, "漢字"),
            ("漢字", 3, "漢…"),
            ("漢字", 2, "…"),
            ("abcd", 1, "…"),
            ("abcd", ENDLESS, "abcd"),
        ] {
            assert_eq!(cut(line, columns), shown, "{line} {columns}");
        }
    }

    #[test]
    fn words_stay_whole() {
        assert_eq!(wrap("one two three\n\nfour", 8), "one two\nthree\n\nfour\n");
        assert_eq!(wrap("a longer-than-that b", 6), "a\nlonger-than-that\nb\n");
        assert_eq!(wrap("a  b\n", ENDLESS), "a  b\n");
    }
}
