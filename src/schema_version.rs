//! The version of slotkeeper's JSON documents, which each of them begins with: `docs/stability.md` says what it promises.

use serde::{Deserialize, Serialize};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// The version that this program writes. It increases if a field is removed, renamed, or changes its meaning.
const CURRENT: u32 = 1;

/// The field `schema_version` of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SchemaVersion(u32);

impl Default for SchemaVersion {
    fn default() -> Self {
        Self(CURRENT)
    }
}

impl PartialSchema for SchemaVersion {
    fn schema() -> RefOr<Schema> {
        let about = "The version of this document's schema. It changes if a field is removed, renamed, or changes its meaning.";
        let version = ObjectBuilder::new().schema_type(Type::Integer).enum_values(Some([CURRENT]));
        version.description(Some(about)).build().into()
    }
}

impl ToSchema for SchemaVersion {}
