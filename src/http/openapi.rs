//! `/v1/openapi.json`: the description of a listener. Its routes and the document have one definition, so that they cannot
//! differ.

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

use super::json::line;

/// The document's path.
pub(crate) const PATH: &str = "/v1/openapi.json";

/// The rendered document.
#[derive(Clone, Debug)]
struct Document(Bytes);

/// Begins a listener's endpoints, of which the document is one. `about` is its description.
pub(crate) fn begin<S: Clone + Send + Sync + 'static>(about: &str) -> OpenApiRouter<S> {
    let mut license = License::new("Apache License 2.0");
    license.identifier = Some("Apache-2.0".to_owned());
    let mut info = Info::new("slotkeeper", env!("CARGO_PKG_VERSION"));
    info.description = Some(about.to_owned());
    info.license = Some(license);
    let empty = OpenApiBuilder::new().openapi(OpenApiVersion::Version31).info(info).build();
    OpenApiRouter::with_openapi(empty).routes(routes!(document))
}

/// Adds the schema of `T`, which a set of responses references and does not include.
pub(crate) fn add_schema<T: ToSchema>(document: &mut OpenApi) {
    let mut schemas = vec![(T::name().into_owned(), T::schema())];
    T::schemas(&mut schemas);
    document.components.get_or_insert_default().schemas.extend(schemas);
}

/// Removes the value `unknown` from enumerations that have it only for the statuses of other versions: no agent sends it.
pub(crate) fn remove_unknown(schemas: &mut Value) {
    for name in ["Stage", "State", "Mode", "LastReload"] {
        let values = schemas.get_mut(name).and_then(|schema| schema.get_mut("enum")?.as_array_mut());
        if let Some(values) = values {
            values.retain(|value| value != "unknown");
        }
    }
}

/// The routes, with their own document.
pub(crate) fn finish(routes: Router, document: &OpenApi) -> Router {
    // Text and numbers always serialise.
    let mut document = serde_json::to_value(document).unwrap_or_default();
    remove_unknown(&mut document["components"]["schemas"]);
    let text = line(&document);
    routes.layer(Extension(Document(text.into())))
}

/// An OpenAPI document.
#[derive(ToSchema)]
#[schema(as = OpenApi)]
#[allow(dead_code, reason = "its schema is used")]
struct Described {
    /// The version of OpenAPI.
    #[schema(pattern = r"^3\.1\.\d+$")]
    openapi: String,
    /// Title, version and licence.
    #[schema(value_type = Object)]
    info: Value,
    /// The endpoints.
    #[schema(value_type = Object)]
    paths: Value,
}

/// This document
///
/// The endpoints of this address, as OpenAPI 3.1. Served without a token.
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
