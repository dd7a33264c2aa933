//! The checks of Consul. They send reads, and writes that Consul refuses after it has checked the right to them: transactions with an
//! operation that fails, and a session with a check that does not exist.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use serde_json::Value;
use tokio::time::Instant;
use uuid::Uuid;

use super::super::Exit;
use super::check::{Check, Found, Trouble, fail, failed, warn};
use super::stored::judge;
use crate::config::{Config, Semaphore, SessionNode};
use crate::duration::show;
use crate::operator::{Found as Stored, PrefixSnapshot};
use crate::session_node::{AUTO_NODE, NODE_RULE, SESSION_RULE};
use crate::{bridge, clock};
use slotkeeper_consul::{
    self, Address, Client, Error, Indexed, Kind, MAX_LONG_POLLS, Read, SessionSpec, Settings, Unobserved,
};
use slotkeeper_semaphore::{Failure, FailureKind, LOCK_FLAGS, Listing, Op};

/// The time-out of a request.
const REQUEST: Duration = Duration::from_secs(4);
/// A difference of clocks, in seconds, that is reported. The header `Date` has whole seconds.
const MAX_SKEW: i64 = 3;
/// The most connections of an agent.
const MAX_CONNECTIONS: u64 = MAX_LONG_POLLS as u64 + 8;
/// A check that no node has, so that Consul creates no session.
const NO_CHECK: &str = "slotkeeper-doctor-no-such-check";
/// A modify index that no key has, so that Consul writes nothing.
const NO_INDEX: u64 = i64::MAX as u64;
/// Long polls that end early before it gives up.
const MAX_POLLS: u32 = 4;

/// What the job wants at a key.
#[derive(Clone, Copy)]
enum Wanted<'a> {
    Semaphore(&'a Semaphore),
    Lock,
    /// A semaphore at this prefix, or the lock below it.
    Any,
}

/// Checks Consul, from the connection to what is stored.
pub(super) async fn examine(client: &Client, prefix: Option<&str>, job: &Config, checks: &mut Vec<Check>) {
    let client = &client.within(REQUEST);
    let reached = join_all(job.consul.address.iter().map(|address| reach(address, job))).await;
    let first = reached.iter().find_map(|one| Some(one.as_ref().ok()?.1.clone()));
    for (address, one) in job.consul.address.iter().zip(reached) {
        let found = match (one, &first) {
            (Ok((_, peers)), Some(first)) if first.is_disjoint(&peers) => fail(
                Exit::Config,
                "its servers are those of another cluster than the first address's; remove it",
            ),
            (Ok((found, _)), _) => found,
            // Another address serves meanwhile.
            (Err((_, why)), Some(_)) => warn(why),
            (Err(why), None) => Err(why),
        };
        checks.push(Check::new(&format!("address {address}"), found));
    }
    if first.is_none() {
        return;
    }
    let agent = match client.agent().await {
        Err(error) if error.is_unknown_token() || error.kind != Kind::Denied || error.token.is_some() => {
            let is_token = error.is_unknown_token() || error.token.is_some();
            return checks.push(Check::new(if is_token { "token" } else { "agent" }, refused(&error)));
        }
        agent => agent,
    };
    let anonymous = "none is sent, so the job has the rights of Consul's anonymous token";
    let token = if client.is_anonymous() { anonymous } else { "Consul knows it" };
    checks.push(Check::new("token", Ok(token.into())));
    let (session, is_on_its_node) = session(client, job).await;
    checks.push(Check::new("agent", of_agent(agent, is_on_its_node)));
    checks.push(Check::new("session", session));
    let any = prefix.map(|prefix| ("prefix".to_owned(), prefix, Wanted::Any));
    let semaphores = job.semaphores.iter();
    let semaphores = semaphores
        .map(|one| (format!("semaphore {}", one.entry.name), &*one.entry.key, Wanted::Semaphore(one)));
    let locks = job.locks.iter().map(|one| (format!("lock {}", one.name), &*one.key, Wanted::Lock));
    let all = any.into_iter().chain(semaphores).chain(locks);
    let each = all.map(async |(name, key, wanted)| {
        let found = examine_key(client, key, wanted).await;
        found.into_iter().map(|found| Check::new(&name, found)).collect::<Vec<_>>()
    });
    checks.extend(join_all(each).await.into_iter().flatten());
}

/// The line about an address, and the servers of its cluster.
async fn reach(address: &Address, job: &Config) -> Result<(Found, BTreeSet<String>), Trouble> {
    // These endpoints need no token, and the server may be another one.
    let settings = Settings { address: address.clone().into(), token: None, ..job.consul.clone() };
    let client = Client::new(&settings, Arc::new(Unobserved)).or_else(|error| fail(Exit::Config, error))?;
    let sent = Instant::now();
    let cluster = client.within(REQUEST).cluster().await.or_else(|error| refused(&error))?;
    let Some(leader) = cluster.leader else {
        return fail(Exit::Unavailable, "Consul has no leader; try again when the servers have elected one");
    };
    let tls = if address.is_https() { ", certificate accepted" } else { "" };
    let found = format!("leader {leader}, answered in {} ms{tls}", sent.elapsed().as_millis());
    let seconds =
        |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs().cast_signed());
    let here = clock::wall().at(clock::now());
    let ahead = cluster.date.map_or(0, |date| seconds(date) - seconds(here));
    let why = "s ahead of this one; set both by NTP: certificates, logins and the shown ages depend on them, and leases do not";
    let skewed = ahead.abs() > MAX_SKEW;
    Ok((if skewed { warn(format!("{found}; its clock is {ahead} {why}")) } else { Ok(found) }, cluster.peers))
}

/// The line about the agent. `is_on_its_node`: the job's session is.
fn of_agent(agent: Result<Value, Error>, is_on_its_node: bool) -> Found {
    let agent = agent.or_else(|error| {
        let what =
            "version, leave_on_terminate and http_max_conns_per_client are unknown, which no job needs";
        warn(format!("{what}: {}", bridge::message(&error)))
    })?;
    let (config, debug) = (&agent["Config"], &agent["DebugConfig"]);
    let [node, version] = ["NodeName", "Version"].map(|name| config[name].as_str().unwrap_or_default());
    let kind = if config["Server"] == true { "server" } else { "client agent" };
    let (leaves, max) = (&debug["LeaveOnTerm"], &debug["HTTPMaxConnsPerClient"]);
    let found = format!(
        "{node}, Consul {version}, {kind}, leave_on_terminate {leaves}, http_max_conns_per_client {max}"
    );
    if *leaves == true && is_on_its_node {
        let why = "its restart ends the sessions of its node, and so loses slots; set session.node (--node)";
        warn(format!("{found}: {why}"))
    } else if max.as_u64().is_some_and(|max| (1..MAX_CONNECTIONS).contains(&max)) {
        warn(format!("{found}: an agent may need {MAX_CONNECTIONS} connections; raise it"))
    } else {
        Ok(found)
    }
}

/// Whether Consul would create, and so renew and destroy, the job's session, and whether on the agent's node.
async fn session(client: &Client, job: &Config) -> (Found, bool) {
    let on = async |node: Option<&str>| {
        let (place, ttl) = (node.unwrap_or("the addressed agent's node"), show(job.session.ttl));
        try_session(client, job, node)
            .await
            .map(|()| format!("can be created on {place} with a TTL of {ttl}"))
    };
    let found = |created: Result<String, Error>| created.or_else(|error| refused(&error));
    let missing_rule = match &job.session.node {
        SessionNode::Agent => return (found(on(None).await), true),
        SessionNode::Named(node) => return (found(on(Some(node)).await), false),
        SessionNode::Auto => match on(Some(AUTO_NODE)).await {
            Err(error) if error.detail.contains("Missing node") => {
                match client.may_register_node(AUTO_NODE).await {
                    Ok(true) => {
                        let found = format!("the first one registers the node {AUTO_NODE}, which is missing");
                        return (Ok(found), false);
                    }
                    Ok(false) => NODE_RULE,
                    Err(error) => return (refused(&error), false),
                }
            }
            Err(error) if error.kind == Kind::Denied => SESSION_RULE,
            created => return (found(created), false),
        },
    };
    let created = match on(None).await {
        Err(error) if error.kind == Kind::Denied => {
            let text = format!("{error}; the token needs `{missing_rule}`");
            return (failed(Failure { text, ..bridge::failure(&error) }), true);
        }
        created => found(created),
    };
    let why =
        format!("not on the node {AUTO_NODE}, which outlives an agent: the token needs `{missing_rule}`");
    (created.and_then(|found| warn(format!("{found}, and {why}"))), true)
}

async fn try_session(client: &Client, job: &Config, node: Option<&str>) -> Result<(), Error> {
    let session = &job.session;
    let spec = SessionSpec {
        name: "slotkeeper-doctor".into(),
        ttl: session.ttl,
        behavior: slotkeeper_consul::Behavior::Delete,
        lock_delay: session.lock_delay,
        node: node.map(str::to_owned),
        node_checks: session.node_checks.clone(),
        // Consul looks at them in this order.
        service_checks: session.service_checks.iter().cloned().chain([NO_CHECK.to_owned()]).collect(),
    };
    match client.session_create(&spec).await {
        Err(error) if error.kind == Kind::Refused && error.detail.contains(NO_CHECK) => Ok(()),
        Err(error) => Err(error),
        Ok(id) => client.session_destroy(&id).await,
    }
}

/// The rights to the keys of a semaphore or lock, and what is stored there.
async fn examine_key(client: &Client, key: &str, wanted: Wanted<'_>) -> Vec<Found> {
    let session = Uuid::new_v4().to_string();
    let below = |name: &str| format!("{key}/{name}");
    let stale = |key| Op::Cas { key, value: Vec::new(), flags: 0, index: NO_INDEX };
    let semaphore = vec![stale(below(".lock")), stale(below(&session))];
    // No session has this id.
    let session = session.as_str().into();
    let lock = |key| vec![Op::Lock { key, value: Vec::new(), flags: LOCK_FLAGS, session }];
    let may = async |ops| {
        bridge::commit(client, ops).await.map_or_else(failed, |_| Ok("the token may write it".into()))
    };
    let read = Read::consistent();
    let read = match wanted {
        Wanted::Lock => bridge::read(client, key, read)
            .await
            .map(|at| (at.pair, Listing { index: at.index, filtered: false, pairs: Vec::new() })),
        Wanted::Semaphore(_) | Wanted::Any => {
            bridge::list(client, key, read).await.map(|below| (None, below))
        }
    };
    let snapshot = read.map(|(at, below)| {
        // The keys say who takes part.
        let sessions = Indexed { index: 1, filtered: true, value: Vec::new() };
        let snapshot = PrefixSnapshot::of(key, at, below, sessions);
        (snapshot.inspect(), snapshot.others_below())
    });
    let is_semaphore =
        snapshot.as_ref().is_ok_and(|(stored, _)| matches!(stored.found, Stored::Semaphore { .. }));
    let rights = match wanted {
        Wanted::Semaphore(_) => may(semaphore).await,
        Wanted::Lock => may(lock(key.to_owned())).await,
        Wanted::Any => match may(lock(below(".lock"))).await {
            Ok(_) if is_semaphore => may(semaphore).await,
            Ok(_) => may(semaphore).await.or_else(|(_, why)| warn(format!("enough for a lock alone: {why}"))),
            denied => denied,
        },
    };
    let stored = match snapshot {
        // A list without the right to it is empty.
        Ok((stored, _)) if stored.found == Stored::Nothing && is_hidden(client, &below(".lock")).await => {
            vec![warn("unknown: the token may not read it")]
        }
        Ok((stored, others)) => {
            judge(if let Wanted::Semaphore(one) = wanted { Some(one) } else { None }, &stored, others)
        }
        Err(failure) => vec![failed(failure)],
    };
    std::iter::once(rights).chain(stored).collect()
}

/// Whether the token may not read the key.
async fn is_hidden(client: &Client, key: &str) -> bool {
    let read = bridge::read(client, key, Read::consistent()).await;
    read.is_err_and(|failure| failure.kind == FailureKind::Denied)
}

/// Keeps a long poll open that nothing but its wait ends. Consul may answer earlier, so it is tried again.
pub(super) async fn long_poll(client: &Client, wait: Duration) -> Found {
    let (session, mut index) = (Uuid::new_v4().to_string(), 0);
    let client = client.within(REQUEST);
    for _ in 0..MAX_POLLS {
        let sent = Instant::now();
        match client.session_info(&session, Read::consistent().after(index, wait)).await {
            Ok(_) if index > 0 && sent.elapsed() >= wait => {
                return Ok(format!("one of {} was answered", show(wait)));
            }
            Ok(answer) => index = answer.index,
            Err(error) if error.kind == Kind::Cut => {
                return warn(bridge::message(&error).to_string());
            }
            Err(error) => return refused(&error),
        }
    }
    warn(format!("Consul answered each long poll before {} were over; try again", show(wait)))
}

fn refused<T>(error: &Error) -> Result<T, Trouble> {
    failed(bridge::failure(error))
}
