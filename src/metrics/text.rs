//! The metrics as text, in both formats.

use prometheus::proto::MetricFamily;
use prometheus::{Encoder, TextEncoder};

/// Rewrites the text format into OpenMetrics 1.0, which the library does not write: a counter's family is named without
/// the `_total` of its sample, and the end is marked.
pub fn openmetrics(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        // The type is on the line after the help.
        let about = if line.starts_with("# HELP ") { lines.peek().copied().unwrap_or("") } else { line };
        let counter = about.strip_prefix("# TYPE ").and_then(|rest| rest.strip_suffix("_total counter"));
        match counter {
            Some(family) => out.push_str(&line.replacen(&format!("{family}_total"), family, 1)),
            None => out.push_str(line),
        }
        out.push('\n');
    }
    out.push_str("# EOF\n");
    out
}

pub(super) fn encode(families: &[MetricFamily]) -> prometheus::Result<String> {
    let mut text = Vec::with_capacity(32 * 1024);
    TextEncoder::new().encode(families, &mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openmetrics_names_counter_families_without_total_and_marks_the_end() {
        let text = "# HELP a_total Some_total help\n# TYPE a_total counter\na_total 1\n# HELP b B\n# TYPE b gauge\nb 2\n";
        let expected =
            "# HELP a Some_total help\n# TYPE a counter\na_total 1\n# HELP b B\n# TYPE b gauge\nb 2\n# EOF\n";
        assert_eq!(openmetrics(text), expected);
    }
}
