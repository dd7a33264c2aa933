//! Consul's addresses in the status.

use serde::{Deserialize, Serialize};

/// The state of one of Consul's addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AddressState {
    /// Requests go to it.
    Used,
    /// It did not respond, or did not show the session, when it was last tried; `reason` says why.
    Failed,
    /// It was not tried yet.
    #[default]
    #[serde(other)]
    Unknown,
}

/// One of Consul's addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The address as configured.
    #[serde(default)]
    pub address: String,
    /// Its state.
    #[serde(default)]
    pub state: AddressState,
    /// The problem; missing if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The connection to Consul.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConsulReport {
    /// Its addresses, in the configuration's order.
    #[serde(default)]
    pub addresses: Vec<Address>,
    /// Why sessions are on the addressed agent's node and not on the node `slotkeeper`, with the missing ACL rule; null if they are not.
    #[serde(default)]
    pub session_node_refusal: Option<String>,
}
