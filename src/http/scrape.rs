//! `/metrics`, in the format that the scraper accepts.

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};

use super::Site;
use super::error::{Code, Error};
use crate::{clock, metrics};

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The metrics, in the Prometheus text format, or in OpenMetrics for a scraper that accepts it.
pub(super) async fn metrics(State(site): State<Site>, headers: HeaderMap) -> Result<Response, Error> {
    let text = site
        .metrics
        .text(&site.viewed(), clock::now(), clock::wall())
        .map_err(|error| Error::new(Code::Internal, format!("the metrics cannot be rendered: {error}")))?;
    let accept = headers.get_all(header::ACCEPT).iter().filter_map(|accept| accept.to_str().ok());
    Ok(if wants_openmetrics(accept) {
        ([(header::CONTENT_TYPE, OPENMETRICS)], metrics::openmetrics(&text)).into_response()
    } else {
        ([(header::CONTENT_TYPE, TEXT)], text).into_response()
    })
}

/// Whether a scraper names OpenMetrics and prefers it at least as much as the text format, which is the default.
fn wants_openmetrics<'a>(accept: impl Iterator<Item = &'a str>) -> bool {
    let mut open = 0.0;
    // The precision of the match for the text format, and its weight.
    let mut text = (0, 0.0);
    for range in accept.flat_map(|accept| accept.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let weight = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
        let weight = weight.map_or(1.0, |weight| weight.parse::<f64>().unwrap_or(0.0));
        let exact = match kind.as_str() {
            "application/openmetrics-text" => {
                open = weight.max(open);
                continue;
            }
            "text/plain" => 3,
            "text/*" => 2,
            "*/*" => 1,
            _ => continue,
        };
        if exact > text.0 {
            text = (exact, weight);
        }
    }
    open > 0.0 && open >= text.1
}

#[cfg(test)]
mod tests {
    use super::wants_openmetrics;

    #[test]
    fn the_format_is_the_one_that_is_liked_best() {
        for (accept, open) in [
            ("", false),
            ("*/*", false),
            ("text/plain", false),
            ("application/openmetrics-text", true),
            ("application/openmetrics-text;version=1.0.0,text/plain;q=0.5", true),
            (
                "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;q=0.4,text/plain;q=0.3,*/*;q=0.2",
                true,
            ),
            ("application/openmetrics-text;q=0.5, text/plain;q=0.9", false),
            ("application/openmetrics-text; q=0.5, */*;q=0.9", false),
            ("application/openmetrics-text;q=0.5, text/plain;q=0.1, */*;q=0.9", true),
            ("application/openmetrics-text;q=0", false),
            ("Application/OpenMetrics-Text;Q=0.5", true),
            ("text/html", false),
        ] {
            assert_eq!(wants_openmetrics([accept].into_iter()), open, "{accept}");
        }
        assert!(!wants_openmetrics(["application/openmetrics-text;q=0.1", "text/plain"].into_iter()));
    }
}
