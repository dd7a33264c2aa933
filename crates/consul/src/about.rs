//! What an address says of the agent behind it, and of its cluster.

use std::collections::BTreeSet;
use std::time::SystemTime;

use serde_json::Value;

use super::request::Request;
use super::{Client, Error, Operation};

/// The cluster behind an address. Consul shows it to every token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// The leader's address; `None` while there is no leader.
    pub leader: Option<String>,
    /// The addresses of the servers. Two addresses that have one in common belong to one cluster.
    pub peers: BTreeSet<String>,
    /// The clock of the agent, or of a proxy before it, in whole seconds.
    pub date: Option<SystemTime>,
}

impl Client {
    /// Reads what the agent in use knows of its cluster.
    ///
    /// # Errors
    ///
    /// As for any request.
    pub async fn cluster(&self) -> Result<Cluster, Error> {
        let answer = self.send(Request::get(Operation::Peers, "status/peers", "")).await?;
        let date = answer.date.as_deref().and_then(|date| httpdate::parse_http_date(date).ok());
        Ok(Cluster { leader: self.leader().await?, peers: answer.json()?, date })
    }

    /// Reads what the agent in use says of itself, as Consul writes it. The token needs the right to read the agent.
    ///
    /// # Errors
    ///
    /// As for any request.
    pub async fn agent(&self) -> Result<Value, Error> {
        self.send(Request::get(Operation::AgentSelf, "agent/self", "").long()).await?.json()
    }
}
