//! Consul's addresses, as the world may see them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What is known of one of Consul's addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AddressState {
    /// Requests go there.
    Used,
    /// It belongs to the same cluster, and is used next.
    Standby,
    /// It could not be asked, or confirms nothing; `reason` says why.
    Failed,
    /// It may belong to another cluster, so that it is not used; `reason` says why.
    Foreign,
    /// Nothing is known of it yet.
    #[default]
    #[serde(other)]
    Unknown,
}

/// One of Consul's addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = ConsulAddress)]
pub struct Address {
    /// The address as configured; with the IP address where its name has several.
    pub address: String,
    /// What is known of it.
    pub state: AddressState,
    /// What is wrong; missing where nothing is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reason: Option<String>,
}

/// How Consul is reached.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Consul)]
pub(super) struct ConsulReport {
    /// Its addresses, in the configuration's order.
    pub(super) addresses: Vec<Address>,
}
