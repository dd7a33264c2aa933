//! Access control: a unix socket accepts every request, a TCP address requires the token.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Content, OpenApi, Ref, RefOr, ResponseBuilder};

use slotkeeper_consul::Secret;

use super::token;
use crate::http::error::{Code, Error};
use crate::http::openapi;

/// The scheme's name in the OpenAPI document.
const SCHEME: &str = "token";
/// The response's name in the OpenAPI document.
const REFUSED: &str = "Unauthorized";

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

    /// Adds the token to the OpenAPI document.
    pub(super) fn describe(&self, document: &mut OpenApi) {
        let Self::Token(_) = self else { return };
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer);
        let scheme = scheme.description(Some("The one line of the file `control.token_file`."));
        let components = document.components.get_or_insert_default();
        components.security_schemes.insert(SCHEME.to_owned(), SecurityScheme::Http(scheme.build()).into());
        let challenge = HeaderBuilder::new()
            .schema(Some(ObjectBuilder::new().schema_type(Type::String)))
            .description(Some("`Bearer`: the scheme of the Authorization header."));
        let refused = ResponseBuilder::new()
            .description("`unauthorized`: the token is missing or wrong.")
            .header("WWW-Authenticate", challenge.build())
            .content("application/json", Content::new(Some(Ref::from_schema_name("Error"))));
        components.responses.insert(REFUSED.to_owned(), refused.build().into());
        document.security = Some(vec![SecurityRequirement::new(SCHEME, [""; 0])]);
        for (path, item) in &mut document.paths.paths {
            let operations = [&mut item.get, &mut item.post, &mut item.delete];
            for operation in operations.into_iter().flatten() {
                guard(operation, path == openapi::PATH);
            }
        }
    }
}

fn guard(operation: &mut Operation, open: bool) {
    if open {
        operation.security = Some(Vec::new());
    } else {
        let refused = RefOr::Ref(Ref::from_response_name(REFUSED));
        operation.responses.responses.insert("401".to_owned(), refused);
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
