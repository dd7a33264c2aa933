//! The one variable part of a path.

use std::convert::Infallible;

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;

/// The variable part of a path, decoded. One that does not decode to text stays as it is, with its percent signs: no name matches
/// it, and the response is 404.
#[derive(Debug)]
pub(crate) struct Segment(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Segment {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Infallible> {
        // Every such path of ours has it in the third place: /v1/semaphores/{name}.
        let raw = parts.uri.path().split('/').nth(3).unwrap_or_default().to_owned();
        let decoded = Path::<String>::from_request_parts(parts, state).await;
        Ok(Self(decoded.map_or(raw, |Path(text)| text)))
    }
}
