//! Sessions, which own locks.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::Instant;

use super::kv::shown;
use super::request::Request;
use super::{Client, Error, Indexed, Operation, Read};

/// What happens to the keys that a session has locked when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Behavior {
    /// The keys stay and are unlocked.
    Release,
    /// The keys are deleted.
    Delete,
}

/// The parameters of a new session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSpec {
    /// A name for humans. It need not be unique.
    pub name: String,
    /// The time without a renewal after which Consul may end the session, 10 s to 24 h. In practice Consul waits twice as long.
    pub ttl: Duration,
    /// What happens to its keys when it ends.
    pub behavior: Behavior,
    /// The time for which a key stays locked for others after the session that held it was invalidated, 0 to 60 s.
    pub lock_delay: Duration,
    /// The catalog node that it is tied to; `None`: the node of the agent that receives the request.
    pub node: Option<String>,
    /// The node's checks that end the session when they turn critical. An empty list is sent too: without a list Consul uses
    /// `serfHealth`.
    pub node_checks: Vec<String>,
    /// The services' checks that end the session when they turn critical.
    pub service_checks: Vec<String>,
}

/// A session, as Consul returns it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Session {
    /// Its id, a UUID.
    #[serde(rename = "ID")]
    pub id: String,
    /// A name for humans.
    #[serde(default)]
    pub name: String,
    /// The catalog node that it is tied to.
    pub node: String,
    /// What happens to its keys when it ends.
    pub behavior: Behavior,
    /// The TTL; `None` without one, and for a text that is no TTL of Consul's.
    #[serde(default, rename = "TTL", deserialize_with = "ttl")]
    pub ttl: Option<Duration>,
    /// The time for which its keys stay locked for others after it is invalidated.
    #[serde(default, deserialize_with = "nanoseconds")]
    pub lock_delay: Duration,
    /// The node's checks that end the session when they turn critical. Consul before 1.7 lists them as `Checks`.
    #[serde(default, alias = "Checks", deserialize_with = "names")]
    pub node_checks: Vec<String>,
    /// The services' checks that end the session when they turn critical.
    #[serde(default, deserialize_with = "check_ids")]
    pub service_checks: Vec<String>,
    /// The Raft index of its creation.
    pub create_index: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Create<'a> {
    name: &'a str,
    #[serde(rename = "TTL")]
    ttl: String,
    behavior: Behavior,
    lock_delay: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<&'a str>,
    node_checks: &'a [String],
    service_checks: Vec<ServiceCheck<'a>>,
}

/// Consul's maximum for a TTL.
const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// The address of a node that nothing runs on. Consul demands one and does not use it.
const NO_ADDRESS: &str = "127.0.0.1";

#[derive(Serialize)]
struct ServiceCheck<'a> {
    #[serde(rename = "ID")]
    id: &'a str,
}

#[derive(Deserialize)]
struct ServiceCheckOf {
    #[serde(rename = "ID")]
    id: String,
}

#[derive(Deserialize)]
struct Created {
    #[serde(rename = "ID")]
    id: String,
}

impl Client {
    /// Creates a session and returns its ID.
    ///
    /// # Errors
    ///
    /// [`Kind::Refused`](crate::Kind::Refused) if the node or a check is missing or critical, or for a TTL outside of Consul's limits. If
    /// the outcome is unknown, a session may exist; without renewals its TTL ends it.
    pub async fn session_create(&self, spec: &SessionSpec) -> Result<String, Error> {
        let create = Create {
            name: &spec.name,
            ttl: go_duration(spec.ttl),
            behavior: spec.behavior,
            lock_delay: go_duration(spec.lock_delay),
            node: spec.node.as_deref(),
            node_checks: &spec.node_checks,
            service_checks: spec.service_checks.iter().map(|id| ServiceCheck { id }).collect(),
        };
        let request = Request::put(Operation::SessionCreate, "session/create", &spec.name);
        let body = serde_json::to_vec(&create).map_err(|error| {
            let tried = self.tried(Operation::SessionCreate, &spec.name);
            Error::refused(tried, error.to_string())
        })?;
        let sent = Instant::now();
        let created: Created = self.send(request.body(body)).await?.json()?;
        if !is_id(&created.id) {
            // The ID is written to logs, files and the environment of commands.
            let tried = self.tried(Operation::SessionCreate, &spec.name);
            return Err(Error::undecodable(tried, "its ID is not a session ID"));
        }
        self.leased(&created.id, sent, spec.ttl, true);
        Ok(created.id)
    }

    /// Registers a catalog node for sessions, without a check and without a service. A node of that name that exists stays as it is.
    ///
    /// # Errors
    ///
    /// As for any request. [`Kind::Denied`](crate::Kind::Denied) also where the node exists.
    pub async fn register_node(&self, node: &str) -> Result<(), Error> {
        let mut body = json!({"Node": node, "Address": NO_ADDRESS, "SkipNodeUpdate": true});
        if let Some(datacenter) = self.datacenter() {
            body["Datacenter"] = datacenter.into();
        }
        let request = Request::put(Operation::NodeRegister, "catalog/register", node);
        self.send(request.body(body.to_string())).await?.json::<bool>().map(drop)
    }

    /// Renews a session for one more TTL. Consul counts it from the arrival of the request. Callers must count it from before the
    /// call.
    ///
    /// # Errors
    ///
    /// [`Kind::Gone`](crate::Kind::Gone) if Consul answers that the session does not exist. No other error means that.
    pub async fn session_renew(&self, id: &str) -> Result<Session, Error> {
        let path = self.session_path(Operation::SessionRenew, "renew", id)?;
        let request = Request::put(Operation::SessionRenew, path, id);
        let sent = Instant::now();
        let sessions: Vec<Session> = self.send(request).await?.json()?;
        let renewed =
            sessions.into_iter().find(|session| session.id.eq_ignore_ascii_case(id)).ok_or_else(|| {
                let tried = self.tried(Operation::SessionRenew, id);
                Error::undecodable(tried, "it does not list the session")
            })?;
        self.leased(id, sent, renewed.ttl.unwrap_or(MAX_TTL), false);
        Ok(renewed)
    }

    /// Destroys a session. It succeeds if the session has ended already.
    ///
    /// # Errors
    ///
    /// As for any request.
    pub async fn session_destroy(&self, id: &str) -> Result<(), Error> {
        let path = self.session_path(Operation::SessionDestroy, "destroy", id)?;
        let request = Request::put(Operation::SessionDestroy, path, id);
        self.send(request).await?.json::<bool>()?;
        self.has_ended(id);
        Ok(())
    }

    /// Reads a session; `None` if it does not exist, or if the token may not see it (indistinguishable before Consul 1.11).
    ///
    /// # Errors
    ///
    /// As for any request.
    pub async fn session_info(&self, id: &str, read: Read) -> Result<Indexed<Option<Session>>, Error> {
        let path = self.session_path(Operation::SessionInfo, "info", id)?;
        self.info(id, Request::get(Operation::SessionInfo, path, id).reading(self.bounded(read))).await
    }

    /// Whether a session exists and the token may see it, by a consistent read that confirms a renewal's 404. It waits for a
    /// connection as a renewal does: apart from other reads, and within the request's time-out.
    ///
    /// # Errors
    ///
    /// As for any request.
    pub async fn session_exists(&self, id: &str) -> Result<bool, Error> {
        let path = self.session_path(Operation::SessionInfo, "info", id)?;
        let request = Request::get(Operation::SessionInfo, path, id).reading(Read::consistent()).confirming();
        Ok(self.info(id, request).await?.value.is_some())
    }

    async fn info(&self, id: &str, request: Request) -> Result<Indexed<Option<Session>>, Error> {
        let is_consistent = request.query == Read::consistent().query();
        let found: Indexed<Option<Vec<Session>>> = self.send(request).await?.indexed()?;
        let found = found.map(|sessions| sessions.unwrap_or_default().into_iter().next());
        if found.value.is_none() && is_consistent {
            self.has_ended(id);
        }
        Ok(found)
    }

    /// Reads all sessions that the token may see; [`Indexed::filtered`] reports whether there are others.
    ///
    /// # Errors
    ///
    /// As for any request.
    pub async fn session_list(&self, read: Read) -> Result<Indexed<Vec<Session>>, Error> {
        let request = Request::get(Operation::SessionList, "session/list", "")
            .reading(self.bounded(read))
            .or_filtered();
        let found: Indexed<Option<Vec<Session>>> = self.send(request).await?.indexed()?;
        Ok(found.map(Option::unwrap_or_default))
    }

    fn session_path(&self, operation: Operation, verb: &str, id: &str) -> Result<String, Error> {
        if !is_id(id) {
            let said = "a session id consists of hexadecimal digits and dashes";
            return Err(Error::refused(self.tried(operation, &shown(id)), said));
        }
        Ok(format!("session/{verb}/{id}"))
    }
}

/// A UUID in practice; not more is asked for, so that no request can be made to go anywhere else.
fn is_id(id: &str) -> bool {
    (1..=64).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// A duration as Go reads it: in seconds where that is exact, else in milliseconds.
fn go_duration(duration: Duration) -> String {
    if duration.subsec_millis() == 0 {
        format!("{}s", duration.as_secs())
    } else {
        format!("{}ms", duration.as_millis())
    }
}

/// Consul returns the text of the session's creator, such as `1m30s` or `1.5m`.
fn ttl<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Option<Duration>, D::Error> {
    let ttl = humantime::parse_duration(&String::deserialize(input)?).ok();
    Ok(ttl.filter(|ttl| !ttl.is_zero() && *ttl <= MAX_TTL))
}

fn nanoseconds<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Duration, D::Error> {
    u64::deserialize(input).map(Duration::from_nanos)
}

/// Go writes an empty list as `null` as well.
fn names<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Vec<String>, D::Error> {
    Option::deserialize(input).map(Option::unwrap_or_default)
}

fn check_ids<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Vec<String>, D::Error> {
    let checks: Option<Vec<ServiceCheckOf>> = Option::deserialize(input)?;
    Ok(checks.unwrap_or_default().into_iter().map(|check| check.id).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_go_out_as_go_reads_them() {
        assert_eq!(go_duration(Duration::ZERO), "0s");
        assert_eq!(go_duration(Duration::from_secs(90)), "90s");
        assert_eq!(go_duration(Duration::from_millis(1500)), "1500ms");
    }

    #[test]
    fn a_session_of_each_version_decodes() {
        let old = r#"{"ID":"a","Name":"n","Node":"vm","Checks":["serfHealth"],"LockDelay":1500000000,
            "Behavior":"release","TTL":"","CreateIndex":14,"ModifyIndex":14}"#;
        let session: Session = serde_json::from_str(old).unwrap();
        assert_eq!((session.lock_delay, session.behavior), (Duration::from_millis(1500), Behavior::Release));
        assert_eq!(session.node_checks, ["serfHealth"]);
        let checked = r#"{"ID":"a","Node":"vm","Behavior":"delete","NodeChecks":null,
            "ServiceChecks":[{"ID":"web","Namespace":""}],"CreateIndex":1,"ModifyIndex":1}"#;
        let checked: Session = serde_json::from_str(checked).unwrap();
        assert_eq!((checked.node_checks, checked.service_checks), (vec![], vec!["web".to_owned()]));
        let new = r#"{"ID":"a","Name":"n","Node":"vm","LockDelay":0,"Behavior":"delete","TTL":"30s","NodeChecks":[],
            "ServiceChecks":null,"Namespace":"x","CreateIndex":14,"ModifyIndex":15}"#;
        assert_eq!(serde_json::from_str::<Session>(new).unwrap().ttl, Some(Duration::from_secs(30)));
    }

    #[test]
    fn a_ttl_is_read_as_its_creator_wrote_it() {
        let read = |text: &str| ttl(serde_json::Value::from(text)).unwrap();
        for (text, seconds) in
            [("30s", 30), ("1m30s", 90), ("1.5m", 90), ("15000ms", 15), ("1h0m30s", 3630), ("24h", 86_400)]
        {
            assert_eq!(read(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        // The last one is beyond what a clock can hold.
        for endless in ["", "0s", "-3s", "soon", "24h1s", "500000000000y"] {
            assert_eq!(read(endless), None, "{endless}");
        }
    }
}
