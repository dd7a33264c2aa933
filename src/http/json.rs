//! JSON answers.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// An answer as JSON, in one line with its end, as a terminal and line-based tools expect.
#[derive(Debug)]
pub(crate) struct Json<T>(pub(crate) T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, "application/json")], line(&self.0)).into_response()
    }
}

/// A value as JSON with the end of its line.
pub(crate) fn line(value: &impl Serialize) -> Vec<u8> {
    // Text and numbers always serialise.
    let mut text = serde_json::to_vec(value).unwrap_or_default();
    text.push(b'\n');
    text
}
