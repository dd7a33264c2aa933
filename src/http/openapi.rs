//! `/v1/openapi.json`: what a listener serves. Its routes and the document come of one definition, so that they cannot
//! drift apart.

use axum::Router;
use axum::extract::Extension;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::Value;
use utoipa::ToSchema;
use utoipa::openapi::{Info, License, OpenApi, OpenApiBuilder, OpenApiVersion};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Where it is.
pub(crate) const PATH: &str = "/v1/openapi.json";

/// The document, written out once.
#[derive(Clone, Debug)]
struct Document(Bytes);

/// Begins a listener's endpoints: the document itself is one. `about` is for people.
pub(crate) fn begin<S: Clone + Send + Sync + 'static>(about: &str) -> OpenApiRouter<S> {
    let mut license = License::new("Apache License 2.0");
    license.identifier = Some("Apache-2.0".to_owned());
    let mut info = Info::new("slotkeeper", env!("CARGO_PKG_VERSION"));
    info.description = Some(about.to_owned());
    info.license = Some(license);
    let empty = OpenApiBuilder::new().openapi(OpenApiVersion::Version31).info(info).build();
    OpenApiRouter::with_openapi(empty).routes(routes!(document))
}

/// Adds the schema of `T`, which descriptions of whole sets of answers name and do not bring along.
pub(crate) fn add_schema<T: ToSchema>(document: &mut OpenApi) {
    let mut schemas = vec![(T::name().into_owned(), T::schema())];
    T::schemas(&mut schemas);
    document.components.get_or_insert_default().schemas.extend(schemas);
}

/// The routes, which serve the document of themselves.
pub(crate) fn finish(routes: Router, document: &OpenApi) -> Router {
    // What is made of text and numbers can be written.
    let text = serde_json::to_vec(document).unwrap_or_default();
    routes.layer(Extension(Document(text.into())))
}

/// An OpenAPI document.
#[derive(ToSchema)]
#[schema(as = OpenApi)]
#[allow(dead_code, reason = "its schema is used")]
struct Described {
    /// The version of OpenAPI that it keeps to.
    #[schema(pattern = r"^3\.1\.\d+$")]
    openapi: String,
    /// What it is about.
    #[schema(value_type = Object)]
    info: Value,
    /// What there is.
    #[schema(value_type = Object)]
    paths: Value,
}

/// This document
///
/// What this address serves, as OpenAPI 3.1. It is served without a token.
#[utoipa::path(
    get,
    path = "/v1/openapi.json",
    operation_id = "document",
    tag = "status",
    responses((status = 200, description = "The document.", body = Described))
)]
async fn document(Extension(Document(text)): Extension<Document>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}
