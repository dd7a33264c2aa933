//! Routes requests by the selection, and asks the other addresses for it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::request::{Answer, Request};
use super::selection::{Outcome, Route, Search, Selection};
use super::token::Token;
use super::{Addresses, Client, Error, Kind, Operation, Read};

/// The time-out of a question to another address.
const ASK_TIMEOUT: Duration = Duration::from_secs(3);
/// The maximum time that a request waits for another address. A renewal is better sent again after it.
const MAX_REROUTE_WAIT: Duration = Duration::from_millis(1500);

/// The address in use, shared by a client and those derived from it.
pub(super) struct Router {
    pub(super) configured: Addresses,
    selection: Mutex<Selection>,
    /// Signals that the selection may have changed.
    changed: watch::Sender<()>,
}

impl Router {
    pub(super) fn new(configured: &Addresses) -> Self {
        Self {
            selection: Mutex::new(Selection::new(configured)),
            changed: watch::channel(()).0,
            configured: configured.clone(),
        }
    }

    pub(super) fn with<T>(&self, what: impl FnOnce(&mut Selection) -> T) -> T {
        what(&mut self.selection.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The destination of a request now.
    pub(super) fn now(&self) -> Route {
        self.with(|selection| selection.route(Instant::now()))
    }

    /// The destination of a request, after a search for the session of an earlier process if one is needed.
    pub(super) async fn found(self: &Arc<Self>, client: &Client) -> Route {
        let mut changed = self.changed.subscribe();
        if self.now().is_blocked {
            self.search_if_due(client);
        }
        let waits = || self.now().is_blocked && self.with(|selection| selection.is_searching());
        while waits() && changed.changed().await.is_ok() {}
        self.now()
    }

    /// Records the outcome of a request. Returns whether its answer counts.
    pub(super) fn ended(self: &Arc<Self>, route: &Route, outcome: Outcome, client: &Client) -> bool {
        let counts = self.note(client, |selection| selection.record(route, outcome, Instant::now()));
        self.search_if_due(client);
        counts
    }

    /// A destination other than `route`: the one in use now, or the result of a search in progress. `None` if there is none now.
    pub(super) async fn other_than(&self, route: &Route) -> Option<Route> {
        let found = timeout(MAX_REROUTE_WAIT, async {
            let mut changed = self.changed.subscribe();
            while self.now().at == route.at && self.with(|selection| selection.is_searching()) {
                changed.changed().await.ok()?;
            }
            Some(self.now()).filter(|now| now.at != route.at && now.generation == route.generation)
        });
        found.await.ok()?
    }

    /// Returns when another address than that of `route` is in use.
    pub(super) async fn left(&self, route: &Route) {
        self.until(|now| now.at != route.at).await;
    }

    /// Returns when another generation has begun.
    pub(super) async fn generation_over(&self, generation: u64) {
        self.until(|now| now.generation != generation).await;
    }

    async fn until(&self, is_so: impl Fn(Route) -> bool) {
        let mut changed = self.changed.subscribe();
        while !is_so(self.now()) {
            if changed.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Searches for another address if that is due.
    fn search_if_due(self: &Arc<Self>, client: &Client) {
        let begun = self.with(|selection| selection.begin_search(fastrand::f64(), Instant::now()));
        let Some(search) = begun else { return };
        let mut running = Running { router: Arc::clone(self), client: client.clone(), others: Vec::new() };
        tokio::spawn(async move {
            let client = running.client.clone();
            let ask = async |at| {
                let asked = timeout(ASK_TIMEOUT, client.shows_any(at, &search)).await;
                (at, asked.unwrap_or_else(|_| Err(format!("no answer within {ASK_TIMEOUT:?}"))))
            };
            let mut asked: FuturesUnordered<_> = search.candidates.iter().map(|at| ask(*at)).collect();
            while let Some((at, shows)) = asked.next().await {
                let found = |selection: &mut Selection| selection.found(at, shows, Instant::now());
                if running.router.note(&client, found) {
                    running.others.push(at);
                }
            }
        });
    }

    /// Changes the selection and reports the change.
    fn note<T>(&self, client: &Client, what: impl FnOnce(&mut Selection) -> T) -> T {
        let (done, news) = self.with(|selection| (what(selection), selection.take_news()));
        // Each long poll wakes up by it, so only if something changed.
        if !news.is_empty() {
            self.changed.send_replace(());
        }
        for news in news {
            client.observer().addresses(&news);
        }
        done
    }
}

/// A search. It ends also if its task is dropped.
struct Running {
    router: Arc<Router>,
    client: Client,
    others: Vec<usize>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.router.note(&self.client, |selection| selection.end_search(&self.others, Instant::now()));
        self.router.changed.send_replace(());
    }
}

#[derive(Deserialize)]
struct Shown {
    #[serde(rename = "ID")]
    id: String,
}

impl Client {
    /// Whether an address shows one of the sessions. If it shows none, it has a leader at least.
    async fn shows_any(&self, at: usize, search: &Search) -> Result<bool, String> {
        for session in &search.sessions {
            match self.shows(at, session).await {
                Ok(true) => return Ok(true),
                Err(why) if search.needs_session => return Err(why),
                Ok(false) | Err(_) => {}
            }
        }
        let leader = self.ask(Request::get(Operation::Leader, "status/leader", ""), at).await?;
        let leader: String = leader.json().map_err(|error| error.detail)?;
        if leader.is_empty() { Err("it has no leader".into()) } else { Ok(false) }
    }

    async fn shows(&self, at: usize, session: &str) -> Result<bool, String> {
        let request = Request::get(Operation::SessionInfo, format!("session/info/{session}"), session);
        let answer = self.ask(request.reading(Read::consistent()), at).await?;
        if answer.filtered {
            return Err("it hides sessions from the token (X-Consul-Results-Filtered-By-ACLs)".into());
        }
        let had_token = answer.used.is_some() || matches!(*self.own_token, Token::Anonymous);
        let shown: Option<Vec<Shown>> = answer.json().map_err(|error| error.detail)?;
        let shows = shown.unwrap_or_default().iter().any(|one| one.id == session);
        if !shows && !had_token {
            // Consul does not report that it hides sessions from a request without a token.
            return Err("it was asked without a token, since there is none yet".into());
        }
        Ok(shows)
    }

    /// Sends one request with the current token, and returns the answer if its status is 200.
    async fn ask(&self, request: Request, at: usize) -> Result<Answer, String> {
        let answer = self.attempt_at(&request, at).await.map_err(|error| error.detail)?;
        match answer.status {
            200 => Ok(answer),
            status => Err(format!("it answers {status}")),
        }
    }
}

/// The meaning of a request's outcome for its address. The cut of a long poll means nothing, since proxies cut long requests.
pub(super) fn outcome(error: Option<&Error>, status: u16, is_poll: bool) -> Outcome {
    let Some(error) = error else { return Outcome::Answered };
    match error.kind {
        Kind::NoLeader => Outcome::NoLeader,
        _ if error.is_unsent() || error.is_mismatch() => Outcome::Failed(error.detail.clone()),
        Kind::Unknown if is_poll => Outcome::Other,
        Kind::Unknown if matches!(status, 502 | 503) => Outcome::Failed(format!("it answers {status}")),
        // A load balancer without a backend accepts connections and closes them.
        Kind::Unknown if status != 500 => Outcome::Unanswered,
        Kind::Unknown | Kind::Cut | Kind::NotConsul | Kind::NotSent => Outcome::Other,
        Kind::Gone | Kind::Denied => Outcome::Refused,
        Kind::Busy | Kind::Refused => Outcome::Answered,
    }
}
