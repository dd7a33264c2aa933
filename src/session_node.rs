//! The catalog node of new sessions.
//!
//! Consul ends a session with its node, whatever its TTL. The addressed agent's node goes when a client agent leaves, which a restart
//! does, and when a server is removed. So by default (`session.node: auto`) sessions are tied to a node that nothing runs on.

use std::sync::{Arc, OnceLock};

use tracing::warn;

use crate::bridge;
use crate::log_events::SESSION_NODE_REFUSED;
use slotkeeper_consul::{Client, Error, Kind, Operation, SessionSpec};
use slotkeeper_semaphore::Failure;

/// The node of `session.node: auto`, in each datacenter and partition.
pub const AUTO_NODE: &str = "slotkeeper";

/// The ACL rule for sessions on [`AUTO_NODE`].
pub const SESSION_RULE: &str = r#"session "slotkeeper" { policy = "write" }"#;

/// The ACL rule for the registration of [`AUTO_NODE`], which is needed where the node is missing.
pub const NODE_RULE: &str = r#"node "slotkeeper" { policy = "write" }"#;

/// Creates the sessions of an agent, its own and those of its leases.
#[derive(Clone, Debug)]
pub struct Sessions {
    /// The parameters of each.
    pub spec: SessionSpec,
    /// On [`AUTO_NODE`]: why they are on the addressed agent's node after all. Decided by the first refusal, until the process ends.
    auto: Option<Arc<OnceLock<String>>>,
}

impl Sessions {
    /// On the node that `spec` names.
    pub fn on_named_node(spec: SessionSpec) -> Self {
        Self { spec, auto: None }
    }

    /// On [`AUTO_NODE`].
    pub fn on_auto_node(spec: SessionSpec) -> Self {
        Self { spec: SessionSpec { node: Some(AUTO_NODE.to_owned()), ..spec }, auto: Some(Arc::default()) }
    }

    /// Why sessions are on the addressed agent's node, although the configuration does not ask for it.
    pub fn refusal(&self) -> Option<&str> {
        self.auto.as_ref()?.get().map(String::as_str)
    }

    /// Creates a session.
    ///
    /// # Errors
    ///
    /// Consul refused it, or did not answer.
    pub async fn create(&self, client: &Client) -> Result<String, Failure> {
        let on_agent = SessionSpec { node: None, ..self.spec.clone() };
        let failed = |error| bridge::failure(&error);
        let error = match &self.auto {
            None => return client.session_create(&self.spec).await.map_err(failed),
            Some(refusal) if refusal.get().is_some() => {
                return client.session_create(&on_agent).await.map_err(failed);
            }
            Some(_) => match on_auto_node(client, &self.spec).await {
                Err(error) if is_refused(&error) => error,
                answer => return answer.map_err(failed),
            },
        };
        let registers = error.tried.operation == Operation::NodeRegister;
        let text = format!("{error}; the token needs `{}`", if registers { NODE_RULE } else { SESSION_RULE });
        match client.session_create(&on_agent).await {
            // Of the two refusals, the first is of the smaller right.
            Err(other) if is_refused(&other) => Err(Failure { text, ..failed(error) }),
            Err(other) => Err(failed(other)),
            Ok(session) => {
                if self.auto.as_ref().is_some_and(|refusal| refusal.set(text.clone()).is_ok()) {
                    warn!(error = %text, "{SESSION_NODE_REFUSED}; they end when it leaves, such as by a restart");
                }
                Ok(session)
            }
        }
    }
}

/// Another client may register the node at the same time, and an operator may have: a registration changes no node that exists.
async fn on_auto_node(client: &Client, spec: &SessionSpec) -> Result<String, Error> {
    match client.session_create(spec).await {
        Err(error) if error.kind == Kind::Refused && error.detail.contains("Missing node") => {
            client.register_node(AUTO_NODE).await?;
            client.session_create(spec).await
        }
        answer => answer,
    }
}

/// Whether the token lacks the right. A token that Consul does not know may only be new.
fn is_refused(error: &Error) -> bool {
    error.kind == Kind::Denied && error.token.is_none() && !error.is_unknown_token()
}
