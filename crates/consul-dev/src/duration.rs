//! Durations in Go's notation (`15s`, `1h30m`, `1.5h`, `-2ms`), read as Consul reads them.

use std::time::Duration;

/// Nanoseconds of a second.
pub const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Why a text is not a duration. The texts are those of Go's `time.ParseDuration`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotADuration {
    /// The text has no number where one has to be, or the duration is too long.
    #[error("time: invalid duration {0:?}")]
    Invalid(String),
    /// A number has no unit.
    #[error("time: missing unit in duration {0:?}")]
    NoUnit(String),
    /// A unit is not one of `ns`, `us`, `µs`, `ms`, `s`, `m`, `h`.
    #[error("time: unknown unit {unit:?} in duration {text:?}")]
    Unit {
        /// The unit.
        unit: String,
        /// The duration that contains it.
        text: String,
    },
}

/// Nanoseconds; negative for a text that begins with a minus.
pub fn parse(text: &str) -> Result<i64, NotADuration> {
    let invalid = || NotADuration::Invalid(text.to_owned());
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut nanos: u64 = 0;
    while !rest.is_empty() {
        let (number, after) = split(rest, |c| !c.is_ascii_digit() && c != '.');
        let (unit, after) = split(after, |c| c.is_ascii_digit() || c == '.');
        if !number.contains(|c: char| c.is_ascii_digit()) {
            return Err(invalid());
        }
        if unit.is_empty() {
            return Err(NotADuration::NoUnit(text.to_owned()));
        }
        let scale = nanos_of(unit)
            .ok_or_else(|| NotADuration::Unit { unit: unit.to_owned(), text: text.to_owned() })?;
        let part = scaled(number, scale).ok_or_else(invalid)?;
        nanos = nanos.checked_add(part).ok_or_else(invalid)?;
        rest = after;
    }
    i64::try_from(nanos).map(|nanos| sign * nanos).map_err(|_| invalid())
}

fn split(text: &str, ends: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(ends).unwrap_or(text.len()))
}

fn nanos_of(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => NANOS_PER_SECOND,
        "m" => 60 * NANOS_PER_SECOND,
        "h" => 3600 * NANOS_PER_SECOND,
        _ => return None,
    })
}

/// `number` times `scale`, without the rounding of floats: digits that fall below a nanosecond are cut off.
fn scaled(number: &str, scale: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole = if whole.is_empty() { 0 } else { whole.parse::<u64>().ok()? };
    let mut total = whole.checked_mul(scale)?;
    let mut place = scale;
    for digit in fraction.chars() {
        place /= 10;
        total = total.checked_add(u64::from(digit.to_digit(10)?) * place)?;
    }
    Some(total)
}

/// A duration as Go shows it: `1m30s`, `100ms`, `24h0m0s`.
pub fn show(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let units: [(u128, &str); 4] = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns")];
    let Some((scale, unit)) = units.into_iter().find(|(scale, _)| nanos >= *scale) else {
        return "0s".to_owned();
    };
    let minutes = nanos / scale / 60;
    let (larger, rest) = match unit {
        "s" if minutes >= 60 => (format!("{}h{}m", minutes / 60, minutes % 60), nanos % (60 * scale)),
        "s" if minutes > 0 => (format!("{minutes}m"), nanos % (60 * scale)),
        _ => (String::new(), nanos),
    };
    let digits = scale.ilog10() as usize;
    let fraction = format!("{:0digits$}", rest % scale);
    let fraction = if digits == 0 { "" } else { fraction.trim_end_matches('0') };
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{larger}{}{point}{fraction}{unit}", rest / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_shown_as_go_shows_them() {
        for (millis, shown) in [
            (0, "0s"),
            (100, "100ms"),
            (10_000, "10s"),
            (1_500, "1.5s"),
            (90_000, "1m30s"),
            (86_400_000, "24h0m0s"),
            (3_600_050, "1h0m0.05s"),
        ] {
            assert_eq!(show(Duration::from_millis(millis)), shown);
        }
        assert_eq!(show(Duration::from_nanos(1)), "1ns");
        assert_eq!(show(Duration::from_nanos(1_500)), "1.5µs");
    }

    #[test]
    fn durations_are_read_as_go_reads_them() {
        let seconds = |s: i64| s * 1_000_000_000;
        assert_eq!(parse("15s"), Ok(seconds(15)));
        assert_eq!(parse("15000ms"), Ok(seconds(15)));
        assert_eq!(parse("1h30m"), Ok(seconds(5400)));
        assert_eq!(parse("1.5h"), Ok(seconds(5400)));
        assert_eq!(parse("-5s"), Ok(seconds(-5)));
        assert_eq!(parse("0"), Ok(0));
        assert_eq!(parse(".5s"), Ok(500_000_000));
    }

    #[test]
    fn errors_have_the_messages_of_go() {
        let text = |text| parse(text).unwrap_err().to_string();
        assert_eq!(text("abc"), "time: invalid duration \"abc\"");
        assert_eq!(text(""), "time: invalid duration \"\"");
        assert_eq!(text("10"), "time: missing unit in duration \"10\"");
        assert_eq!(text("1d"), "time: unknown unit \"d\" in duration \"1d\"");
        assert_eq!(text("1.2.3s"), "time: invalid duration \"1.2.3s\"");
        assert_eq!(text("99999999999h"), "time: invalid duration \"99999999999h\"");
    }
}
