//! `/`: the status page, one file that requests only `/v1/events`.

use std::sync::LazyLock;

use axum::http::header;
use axum::response::{Html, IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};

const PAGE: &str = include_str!("page/index.html");

/// The page's Content-Security-Policy. It names the page's own style and script by their hashes, so that no injected one is
/// executed.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "default-src 'none'; style-src {}; script-src {}; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
        source("style"),
        source("script")
    )
});

/// A status page
///
/// The current status in a browser.
#[utoipa::path(
    get,
    path = "/",
    operation_id = "page",
    tag = "status",
    responses((status = 200, description = "The page.", content_type = "text/html", body = String))
)]
pub(super) async fn page() -> Response {
    let headers = [
        (header::CONTENT_SECURITY_POLICY, POLICY.as_str()),
        (header::REFERRER_POLICY, "no-referrer"),
        // For browsers without `frame-ancestors`.
        (header::X_FRAME_OPTIONS, "DENY"),
    ];
    (headers, Html(PAGE)).into_response()
}

/// The policy's source for the page's only element of that kind.
fn source(element: &str) -> String {
    let (open, close) = (format!("<{element}>"), format!("</{element}>"));
    let inside = PAGE.split_once(&open).and_then(|(_, rest)| rest.split_once(&close));
    let sum = digest(&SHA256, inside.map_or("", |(inside, _)| inside).as_bytes());
    format!("'sha256-{}'", STANDARD.encode(sum))
}
