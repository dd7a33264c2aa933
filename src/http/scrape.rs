//! `/metrics`, in the format that the scraper asks for.

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};

use super::{Error, Site};
use crate::{clock, metrics};

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) async fn metrics(State(site): State<Site>, headers: HeaderMap) -> Result<Response, Error> {
    let text = site
        .metrics
        .text(&site.snapshot(), clock::now(), clock::wall())
        .map_err(|error| Error::internal(format!("the metrics cannot be written: {error}")))?;
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or("");
    Ok(if accept.contains("application/openmetrics-text") {
        ([(header::CONTENT_TYPE, OPENMETRICS)], metrics::openmetrics(&text)).into_response()
    } else {
        ([(header::CONTENT_TYPE, TEXT)], text).into_response()
    })
}
