//! Access control: a unix socket accepts every request, a TCP address requires the token.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};

use slotkeeper_consul::Secret;

use super::token;
use crate::http::error::{Code, Error};
use crate::http::openapi;

/// The access to a listener.
#[derive(Clone, Debug)]
pub enum Gate {
    /// Every request is accepted.
    Open,
    /// Requests need this token, except for the OpenAPI document, so that clients can be generated without one.
    Token(Secret),
}

impl Gate {
    /// Guards `routes` and unknown paths alike, so that a request without a token does not learn which exist.
    pub(super) fn close(self, routes: Router) -> Router {
        match self {
            Self::Open => routes,
            Self::Token(token) => routes.layer(from_fn_with_state(token, check)),
        }
    }
}

async fn check(State(token): State<Secret>, request: Request, next: Next) -> Response {
    if request.uri().path() == openapi::PATH
        || borne(request.headers()).is_some_and(|borne| token::is(&token, borne))
    {
        return next.run(request).await;
    }
    let error = Error::new(
        Code::Unauthorized,
        "the token is missing or wrong; send the header `Authorization: Bearer <token>` with the one line of the file \
         control.token_file",
    );
    ([(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))], error).into_response()
}

/// The token of a request, if it has one.
fn borne(headers: &HeaderMap) -> Option<&[u8]> {
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(one), None) = (given.next(), given.next()) else { return None };
    let (scheme, token) = one.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_borne_by_one_header_of_the_right_scheme() {
        let borne_by = |lines: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(header::AUTHORIZATION, HeaderValue::from_static(line));
            }
            borne(&headers).map(|token| String::from_utf8(token.to_vec()).unwrap())
        };
        for line in ["Bearer abc", "bearer abc", "BEARER  abc "] {
            assert_eq!(borne_by(&[line]).as_deref(), Some("abc"), "{line:?}");
        }
        for lines in
            [&[] as &[_], &["abc"], &["Basic abc"], &["Bearerabc"], &["Bearer abc", "Bearer abc"], &[""]]
        {
            assert_eq!(borne_by(lines), None, "{lines:?}");
        }
    }
}
