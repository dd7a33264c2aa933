//! The `session` section.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::WrittenDuration;
use crate::config::choice::Behavior;

/// The Consul session that all slots of this agent belong to.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(in crate::config) struct Session {
    /// How the names of its sessions begin, for people who list sessions. Who it is and 16 digits follow.
    #[schemars(extend("default" = "slotkeeper"))]
    pub(in crate::config) name: Option<String>,
    /// 10s to 24h. How long the slots outlive an agent that died: up to twice this.
    #[schemars(extend("default" = "45s"))]
    pub(in crate::config) ttl: Option<WrittenDuration>,
    /// What Consul does with the contender entries when the session ends.
    #[schemars(extend("default" = "delete"))]
    pub(in crate::config) behavior: Option<Behavior>,
    /// 0s to 60s. How long Consul refuses a single-key lock after its session was ended for its holder. It has no
    /// effect on semaphores.
    #[schemars(extend("default" = "15s"))]
    pub(in crate::config) lock_delay: Option<WrittenDuration>,
    /// How long a failing watch is tolerated before the slot counts as lost; at most the TTL. By default up to the
    /// lease's end; `0s` is the semaphore guide's strict rule. Not for what is taken on demand.
    pub(in crate::config) watch_grace: Option<WrittenDuration>,
    /// Health checks of the node that end the session when they fail. None by default: then only the TTL ends it.
    pub(in crate::config) node_checks: Option<Vec<String>>,
    /// Health checks of services, by check id, that end the session when they fail.
    pub(in crate::config) service_checks: Option<Vec<String>>,
    /// The catalog node that the session is tied to, where no client agent is near. By default the addressed agent's.
    pub(in crate::config) node: Option<String>,
    /// The file from which a restarted agent takes its own session up again. None unless set; an empty text is none.
    pub(in crate::config) state_file: Option<PathBuf>,
}
