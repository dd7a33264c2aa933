//! `/v1/openapi.json`: the description of a listener.

use axum::Router;
use axum::http::header;
use axum::routing::get;
use bytes::Bytes;

/// The document's path.
pub(crate) const PATH: &str = "/v1/openapi.json";
/// The document of the read-only endpoints.
pub(crate) const READ_ONLY: &str = include_str!("openapi.json");

/// The route of a listener's document, which has this text.
pub(crate) fn route(text: impl Into<Bytes>) -> Router {
    let text: Bytes = text.into();
    let document = async move || ([(header::CONTENT_TYPE, "application/json")], text.clone());
    Router::new().route(PATH, get(document))
}
