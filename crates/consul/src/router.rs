//! Routes requests by the selection, and probes the other addresses for it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use serde::Deserialize;
use tokio::sync::{OnceCell, Semaphore, watch};
use tokio::time::{Instant, sleep, timeout};

use super::address::{Addresses, MAX_ADDRESSES};
use super::request::{Answer, Request};
use super::selection::{AddressState, Outcome, Probe, ProbeResult, Selection, Target};
use super::token::Token;
use super::{Client, Error, Kind, Operation, Read};

/// The time-out of a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
/// The maximum time that a request waits for another target. A renewal is better sent again after it.
const MAX_REROUTE_WAIT: Duration = Duration::from_millis(1500);
/// The maximum time for the resolution of a name. After it the connection resolves the name.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

/// The maximum number of Raft peers in an answer, and the maximum length of a peer's address.
const MAX_PEERS: usize = 64;
const MAX_PEER: usize = 300;

/// The address in use, shared by a client and those derived from it.
pub(super) struct Router {
    configured: Addresses,
    has_names: bool,
    resolved: OnceCell<()>,
    /// Held while names are resolved.
    resolving: Arc<Semaphore>,
    selection: Mutex<Selection>,
    /// Signals that the selection may have changed.
    changed: watch::Sender<()>,
}

/// The destination of one request.
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) target: Target,
    /// For messages.
    pub(super) shown: Arc<str>,
    pub(super) epoch: u64,
    /// Only logins may be sent there.
    pub(super) is_blocked: bool,
}

impl Router {
    pub(super) fn new(configured: &Addresses) -> Self {
        let targets = configured.iter().map(|address| Target { address: address.clone(), ip: None });
        Self {
            has_names: configured.iter().any(|address| address.name().is_some()),
            resolved: OnceCell::new(),
            resolving: Arc::new(Semaphore::new(1)),
            selection: Mutex::new(Selection::new(targets.collect())),
            changed: watch::channel(()).0,
            configured: configured.clone(),
        }
    }

    /// Whether both have the same configured addresses.
    pub(super) fn is_for(&self, other: &Self) -> bool {
        self.configured == other.configured
    }

    pub(super) fn with<T>(&self, what: impl FnOnce(&mut Selection) -> T) -> T {
        what(&mut self.selection.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The destination of a request now.
    pub(super) fn now(&self) -> Route {
        self.with(|selection| {
            let first = || Target { address: self.configured.first().clone(), ip: None };
            let target = selection.used().cloned().unwrap_or_else(first);
            let is_blocked = selection.is_blocked(Instant::now());
            Route { shown: selection.label(&target), epoch: selection.epoch(), is_blocked, target }
        })
    }

    /// Waits for the first choice, and returns the destination of a request.
    pub(super) async fn chosen(self: &Arc<Self>, client: &Client) -> Route {
        if self.has_names {
            self.resolved.get_or_init(|| self.resolve()).await;
        }
        let mut changed = self.changed.subscribe();
        let is_chosen = || self.with(|selection| selection.is_chosen());
        if !is_chosen() {
            self.probe_if_due(client);
        }
        while !is_chosen() && self.with(|selection| selection.is_probing()) && changed.changed().await.is_ok()
        {
        }
        self.now()
    }

    /// Records the outcome of a request.
    pub(super) fn ended(self: &Arc<Self>, route: &Route, outcome: Outcome, client: &Client) {
        self.note(client, |selection| selection.record_outcome(&route.target, outcome, Instant::now()));
        self.probe_if_due(client);
    }

    /// A target other than that of `route`: the one in use now, or the result of a probe in progress. `None` if there is none now.
    pub(super) async fn other_than(&self, route: &Route) -> Option<Route> {
        timeout(MAX_REROUTE_WAIT, self.found_other_than(route)).await.ok()?
    }

    async fn found_other_than(&self, route: &Route) -> Option<Route> {
        let mut changed = self.changed.subscribe();
        loop {
            let now = self.now();
            if now.target != route.target {
                return (now.epoch == route.epoch).then_some(now);
            }
            if !self.with(|selection| selection.is_probing()) {
                return None;
            }
            changed.changed().await.ok()?;
        }
    }

    /// Returns when a target other than that of `route` is in use.
    pub(super) async fn left(&self, route: &Route) {
        let mut changed = self.changed.subscribe();
        while self.now().target == route.target {
            if changed.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Returns when another epoch has begun.
    pub(super) async fn epoch_over(&self, epoch: u64) {
        let mut changed = self.changed.subscribe();
        while self.with(|selection| selection.epoch()) == epoch {
            if changed.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// The addresses and their states, in the order of the configuration.
    pub(super) fn states(&self) -> Vec<(String, AddressState)> {
        self.with(|selection| selection.states())
    }

    /// Starts to probe the targets if that is due.
    fn probe_if_due(self: &Arc<Self>, client: &Client) {
        let begins = self.with(|selection| {
            let now = Instant::now();
            let after =
                selection.next_round_after(now).filter(|_| self.has_names || selection.has_others())?;
            selection.begin_round(after, fastrand::f64(), now);
            Some(after)
        });
        if let Some(after) = begins {
            let rounds = ProbeRounds { router: Arc::clone(self), client: client.clone(), is_over: false };
            tokio::spawn(rounds.run(after));
        }
    }

    /// Changes the selection and reports the change.
    fn note<T>(&self, client: &Client, what: impl FnOnce(&mut Selection) -> T) -> T {
        let state = |selection: &Selection| {
            let used = selection.used().cloned();
            (used, selection.epoch(), selection.is_chosen(), selection.is_probing())
        };
        let (done, has_changed, news) = self.with(|selection| {
            let before = state(selection);
            let done = what(selection);
            (done, before != state(selection), selection.take_news())
        });
        for news in news {
            client.observer().addresses(&news);
        }
        // Each long poll wakes up by it, so only if something changed.
        if has_changed {
            self.changed.send_replace(());
        }
        done
    }

    /// Replaces names by all their addresses; waits at most [`RESOLVE_TIMEOUT`]. The connection resolves a name that cannot be resolved here. A
    /// resolver that hangs blocks a thread for each name, so there is one resolution at a time.
    async fn resolve(self: &Arc<Self>) {
        let Ok(turn) = Arc::clone(&self.resolving).try_acquire_owned() else { return };
        let router = Arc::clone(self);
        let resolution = tokio::spawn(async move {
            let targets = targets(&router.configured).await;
            router.with(|selection| selection.set_targets(targets));
            drop(turn);
        });
        // A later result is used too.
        let _ = timeout(RESOLVE_TIMEOUT, resolution).await;
    }
}

/// The targets: each name replaced by all its addresses.
async fn targets(configured: &Addresses) -> Vec<Target> {
    let each = configured.iter().map(|address| async move {
        let by_name = || vec![Target { address: address.clone(), ip: None }];
        let Some((host, port)) = address.name() else { return by_name() };
        let Ok(found) = tokio::net::lookup_host((host.as_str(), port)).await else { return by_name() };
        let mut ips: Vec<_> = found.map(|found| found.ip()).collect();
        ips.sort_unstable();
        ips.dedup();
        // A resolver may return the same order to all clients, which would then all use one server.
        fastrand::shuffle(&mut ips);
        ips.sort_by_key(std::net::IpAddr::is_ipv6);
        if ips.is_empty() {
            return by_name();
        }
        ips.into_iter().map(|ip| Target { address: address.clone(), ip: Some(ip) }).collect()
    });
    let mut targets: Vec<Target> = join_all(each).await.into_iter().flatten().collect();
    targets.truncate(MAX_ADDRESSES);
    targets
}

/// A round of probes, and further rounds if needed. The selection is informed also if the task is dropped.
struct ProbeRounds {
    router: Arc<Router>,
    client: Client,
    is_over: bool,
}

impl ProbeRounds {
    async fn run(mut self, mut after: Duration) {
        loop {
            sleep(after).await;
            self.ask().await;
            let now = Instant::now();
            let again = self.router.note(&self.client, |selection| {
                selection.end_round(now).then(|| selection.begin_round(Duration::ZERO, fastrand::f64(), now))
            });
            if again.is_none() {
                self.is_over = true;
                return;
            }
            after = Duration::ZERO;
        }
    }

    async fn ask(&self) {
        let router = &self.router;
        if router.has_names {
            router.resolve().await;
        }
        let probes = router.with(|selection| selection.probes(Instant::now()));
        let ask = |probe: Probe| async {
            let result = match timeout(PROBE_TIMEOUT, self.client.probe(&probe)).await {
                Ok(result) => result,
                Err(_) => ProbeResult {
                    failed: Some(format!("no answer within {PROBE_TIMEOUT:?}")),
                    ..ProbeResult::default()
                },
            };
            (probe.target, result)
        };
        let mut asked: FuturesUnordered<_> = probes.into_iter().map(ask).collect();
        while let Some((target, result)) = asked.next().await {
            router.note(&self.client, |selection| selection.record_probe(&target, result, Instant::now()));
        }
    }
}

impl Drop for ProbeRounds {
    fn drop(&mut self) {
        if !self.is_over {
            self.router.note(&self.client, |selection| selection.end_round(Instant::now()));
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Shown {
    #[serde(rename = "ID")]
    id: String,
}

impl Client {
    /// Finds out by reads whether a target can be used.
    async fn probe(&self, probe: &Probe) -> ProbeResult {
        let mut result = ProbeResult::default();
        for session in &probe.sessions {
            match self.shows(&probe.target, session).await {
                Ok(shows) => result.shows = Some(shows),
                Err(why) => return ProbeResult { failed: Some(why), ..ProbeResult::default() },
            }
            if result.shows == Some(true) {
                return result;
            }
        }
        if probe.peers {
            match self.peers(&probe.target).await {
                Ok(peers) => result.peers = Some(peers),
                Err(why) => result.failed = Some(why),
            }
        }
        result
    }

    async fn shows(&self, target: &Target, session: &str) -> Result<bool, String> {
        let request = Request::get(Operation::SessionInfo, format!("session/info/{session}"), session);
        let answer = self.ask_once(request.reading(Read::consistent()), target).await?;
        if answer.filtered {
            return Err("it hides sessions from the token (X-Consul-Results-Filtered-By-ACLs)".into());
        }
        let had_token = answer.used.is_some() || matches!(*self.own_token, Token::Anonymous);
        let shown: Option<Vec<Shown>> = answer.json().map_err(|error| in_short(&error))?;
        let shows = shown.unwrap_or_default().iter().any(|one| one.id == session);
        if !shows && !had_token {
            // Consul does not report that it hides sessions from a request without a token.
            return Err("it was probed without a token, since there is none yet".into());
        }
        Ok(shows)
    }

    async fn peers(&self, target: &Target) -> Result<BTreeSet<String>, String> {
        let leader = self.ask_once(Request::get(Operation::Leader, "status/leader", ""), target).await?;
        let leader: String = leader.json().map_err(|error| in_short(&error))?;
        if leader.is_empty() {
            return Err("it has no leader".into());
        }
        let answer = self.ask_once(Request::get(Operation::Peers, "status/peers", ""), target).await?;
        let peers: BTreeSet<String> = answer.json().map_err(|error| in_short(&error))?;
        if peers.len() > MAX_PEERS || !peers.iter().all(|peer| is_peer(peer)) {
            // Peers appear in messages, and the server is untrusted.
            return Err("its peers are not addresses of servers".into());
        }
        Ok(peers)
    }

    /// Sends one request with the current token, and returns the answer if its status is 200.
    async fn ask_once(&self, request: Request, target: &Target) -> Result<Answer, String> {
        let answer = self.attempt_at(&request, target).await.map_err(|error| in_short(&error))?;
        match answer.status {
            200 => Ok(answer),
            status => Err(format!("it answers {status}")),
        }
    }
}

/// Whether the text may be the address of a Consul server.
fn is_peer(text: &str) -> bool {
    (1..=MAX_PEER).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// An error's message without the address.
fn in_short(error: &Error) -> String {
    error.detail.clone()
}

/// The meaning of a request's outcome for its target. The cut of a long poll means nothing, since proxies cut long requests.
pub(super) fn outcome(error: Option<&Error>, status: u16, is_poll: bool) -> Outcome {
    let Some(error) = error else { return Outcome::Answered };
    match error.kind {
        Kind::NoLeader => Outcome::NoLeader,
        _ if error.is_unsent() || error.is_mismatch() => Outcome::Failed(in_short(error)),
        Kind::Unknown if is_poll => Outcome::Other,
        Kind::Unknown if matches!(status, 502 | 503) => Outcome::Failed(in_short(error)),
        // A load balancer without a backend accepts connections and closes them.
        Kind::Unknown if status != 500 => Outcome::Unanswered,
        Kind::Unknown | Kind::Cut | Kind::NotConsul | Kind::NotSent => Outcome::Other,
        Kind::Gone | Kind::Denied => Outcome::Refused,
        Kind::Busy | Kind::Refused => Outcome::Answered,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_a_short_visible_text() {
        assert!(is_peer("10.0.0.1:8300"));
        let long = "1".repeat(MAX_PEER + 1);
        for text in ["", " ", "a b", "\u{1b}[31m", "é", long.as_str()] {
            assert!(!is_peer(text), "{text:?}");
        }
    }
}
