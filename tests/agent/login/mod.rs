//! Logins by an auth method, on a Consul with access control and TLS.

mod docs;
#[path = "../../support/agent/fortress.rs"]
mod fortress;
mod life;
mod node;
mod policy;
mod renewal;
mod silence;
mod tls;
