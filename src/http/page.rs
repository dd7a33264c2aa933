//! `/`: the status page, one document that requests only `/v1/events`.

use std::sync::LazyLock;

use axum::http::header;
use axum::response::{Html, IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};

const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = include_str!("page/script.js");

/// The document, with its style and its script.
static PAGE: LazyLock<String> = LazyLock::new(|| {
    include_str!("page/index.html")
        .replacen("<style></style>", &format!("<style>{STYLE}</style>"), 1)
        .replacen("<script></script>", &format!("<script>{SCRIPT}</script>"), 1)
});

/// The page's Content-Security-Policy. It names the page's own style and script by their hashes, so that no injected one is
/// executed.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "default-src 'none'; style-src {}; script-src {}; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
        source(STYLE),
        source(SCRIPT)
    )
});

/// The status page.
pub(super) async fn page() -> Response {
    let headers = [
        (header::CONTENT_SECURITY_POLICY, POLICY.as_str()),
        (header::REFERRER_POLICY, "no-referrer"),
        // For browsers without `frame-ancestors`.
        (header::X_FRAME_OPTIONS, "DENY"),
    ];
    (headers, Html(PAGE.as_str())).into_response()
}

/// The policy's source for an element with this text.
fn source(text: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(digest(&SHA256, text.as_bytes())))
}
