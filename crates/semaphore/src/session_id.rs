//! The name of a session.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A Consul session's id. An opaque text here: other clients' records may name what is no UUID.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionId(Arc<str>);

impl SessionId {
    /// The id as Consul writes it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<T: AsRef<str>> From<T> for SessionId {
    fn from(id: T) -> Self {
        Self(Arc::from(id.as_ref()))
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}
