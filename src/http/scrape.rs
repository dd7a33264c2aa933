//! `/metrics`, in the format that the scraper asks for.

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};

use super::Site;
use super::error::{Code, Error};
use crate::{clock, metrics};

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Metrics
///
/// In Prometheus' text format; in that of OpenMetrics for a scraper that accepts it.
#[utoipa::path(
    get,
    path = "/metrics",
    operation_id = "metrics",
    tag = "status",
    responses(
        (
            status = 200,
            description = "The metrics, one family after the other.",
            content((String = "text/plain"), (String = "application/openmetrics-text"))
        ),
        (status = 500, description = "`internal`: they cannot be written.", body = Error)
    )
)]
pub(super) async fn metrics(State(site): State<Site>, headers: HeaderMap) -> Result<Response, Error> {
    let text = site
        .metrics
        .text(&site.snapshot(), clock::now(), clock::wall())
        .map_err(|error| Error::new(Code::Internal, format!("the metrics cannot be written: {error}")))?;
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or("");
    Ok(if accept.contains("application/openmetrics-text") {
        ([(header::CONTENT_TYPE, OPENMETRICS)], metrics::openmetrics(&text)).into_response()
    } else {
        ([(header::CONTENT_TYPE, TEXT)], text).into_response()
    })
}
