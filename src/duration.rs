//! Durations as text: `30s`, `1m30s`, `500ms`.
//!
//! A duration has whole numbers with units, without spaces and fractions. The JSON Schema can express this form as a pattern,
//! and Consul reads it too. A bare number is refused, since its unit would be ambiguous.

use std::time::Duration;

/// A text that is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A number without a unit.
    #[error("`{0}` has no unit; write {0}s for seconds")]
    NoUnit(String),
    /// Any other text that is not a duration.
    #[error(
        "`{0}` is not a duration; write whole numbers with the units ms, s, m, h or d, such as 30s or 1m30s"
    )]
    Malformed(String),
    /// A duration beyond the range of [`Duration`], or a number beyond 32 bits.
    #[error("`{0}` is too long")]
    TooLong(String),
}

/// Seconds for JSON, rounded to the millisecond.
pub fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}

/// Reads a duration. Usable as a clap value parser.
///
/// # Errors
///
/// If `text` is not a duration.
pub fn parse(text: &str) -> Result<Duration, Error> {
    let malformed = || Error::Malformed(text.to_owned());
    let too_long = || Error::TooLong(text.to_owned());
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Error::NoUnit(text.to_owned()));
    }
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() || text.is_empty() {
        let (number, after) = split_where(rest, |c| !c.is_ascii_digit());
        let (unit, after) = split_where(after, |c| c.is_ascii_digit());
        let unit = match unit {
            "ms" => Duration::from_millis(1),
            "s" => Duration::from_secs(1),
            "m" => Duration::from_secs(60),
            "h" => Duration::from_secs(60 * 60),
            "d" => Duration::from_secs(24 * 60 * 60),
            _ => return Err(malformed()),
        };
        if number.is_empty() {
            return Err(malformed());
        }
        let number: u32 = number.parse().map_err(|_| too_long())?;
        total = unit.checked_mul(number).and_then(|part| total.checked_add(part)).ok_or_else(too_long)?;
        rest = after;
    }
    Ok(total)
}

/// Writes a duration as [`parse`] reads it, truncated to milliseconds.
pub fn show(duration: Duration) -> String {
    let mut left = duration.as_millis();
    let mut shown = String::new();
    for (unit, millis) in [("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)] {
        let count = left / millis;
        left %= millis;
        if count > 0 {
            shown.push_str(&format!("{count}{unit}"));
        }
    }
    if shown.is_empty() { "0s".to_owned() } else { shown }
}

/// A duration for people, in its two largest units: `12s`, `3m49s`, `2h5m`, `4d3h`.
pub fn age(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let units = [(86_400, "d"), (3600, "h"), (60, "m"), (1, "s")];
    let first = units.iter().position(|(unit, _)| seconds >= *unit).unwrap_or(units.len() - 1);
    let mut rest = seconds;
    let mut shown = String::new();
    for (unit, name) in units.iter().skip(first).take(2) {
        let count = rest / unit;
        rest %= unit;
        if count > 0 || shown.is_empty() {
            shown.push_str(&format!("{count}{name}"));
        }
    }
    shown
}

/// The [`age`] of a number of seconds, as JSON has it.
pub fn of_seconds(seconds: f64) -> String {
    age(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

fn split_where(text: &str, stop: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(stop).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_read() {
        for (text, millis) in
            [("30s", 30_000), ("1m30s", 90_000), ("500ms", 500), ("0s", 0), ("24h", 86_400_000)]
        {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused_with_the_fix() {
        assert!(parse("30").unwrap_err().to_string().contains("write 30s"));
        for text in ["", " ", "s", "1.5s", "30 s", "-1s", "30sec", "forever", "1s ", "ms1", "99999999999s"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn an_age_has_its_two_largest_units() {
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (229, "3m49s"),
            (3600, "1h"),
            (7535, "2h5m"),
            (86_400, "1d"),
            (356_461, "4d3h"),
        ] {
            assert_eq!(age(Duration::from_secs(seconds)), text);
        }
        assert_eq!(age(Duration::from_millis(59_999)), "59s");
    }

    proptest! {
        #![proptest_config(slotkeeper_test_seed::cases())]

        #[test]
        fn a_shown_duration_reads_back(millis in 0u64..=u64::from(u32::MAX) * 1000) {
            let duration = Duration::from_millis(millis);
            prop_assert_eq!(parse(&show(duration)), Ok(duration));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,20}") {
            let _ = parse(&text);
        }
    }
}
