//! The sending of a request: the address, the connection, the time-out.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::TryFutureExt;
use reqwest::StatusCode;
use reqwest::header::{ACCEPT_ENCODING, CONNECTION, CONTENT_TYPE};
use tokio::time::Instant;

use super::classify::NEVER_ANSWERED;
use super::client::MAX_ANSWER;
use super::connections::Permit;
use super::endpoint::{Endpoint, Lane};
use super::request::{Answer, Request};
use super::router::outcome;
use super::selection::Route;
use super::token::Ready;
use super::{Client, Code, Error, Kind, Operation, Tried, classify, probe};

/// The maximum size of an error answer. Of a longer one only the beginning is read.
const MAX_REFUSAL: usize = 1024 * 1024;

/// The maximum number of addresses that one request is sent to, one after the other.
const MAX_HOPS: usize = 3;

/// The time-out of a request to the first of several addresses, before anything has answered.
const UNTRIED_TIMEOUT: Duration = Duration::from_secs(3);

/// Why a request is not sent, or its answer is discarded.
const MAY_BE_ANOTHER: &str =
    "another address is used since the lease expired, and may belong to another cluster";

/// Why a request is not sent after a restart.
const SHOWS_NO_SESSION: &str =
    "no address has shown the session of the previous process, whose lease may be valid";

/// Why a request is not sent that waited for a connection until its time-out.
const NO_CONNECTION_FREE: &str = "not sent: no connection was free in time";

impl Client {
    /// Sends a request to the address in use. After a failure that permits another attempt, sends it to the next address.
    pub(super) async fn attempt(
        &self,
        request: &Request,
        token: Option<&Ready>,
        until: &mut Instant,
        after: Duration,
    ) -> Result<Answer, Error> {
        let found = tokio::time::timeout_at(*until, self.router.found(self)).await;
        let mut route = found.unwrap_or_else(|_| self.router.now());
        let mut hops = 1;
        loop {
            if route.generation != self.generation {
                return Err(self.not_sent(request, &route, MAY_BE_ANOTHER));
            }
            // A login must come first, since only its token may show the session.
            if route.is_blocked && request.operation != Operation::Login {
                return Err(self.not_sent(request, &route, SHOWS_NO_SESSION));
            }
            let answer = self.attempt_by(&route, request, token, until, after).await;
            let status = answer.as_ref().map_or(0, |answer| answer.status);
            let mut result = answer.and_then(|answer| self.judge(answer, request, token));
            let outcome = outcome(result.as_ref().err(), status, request.lane() == Lane::Poll);
            if !self.router.ended(&route, outcome, self) && status != 0 {
                let tried = self.tried_at(request, &route.shown);
                result = Err(Error::new(tried, Kind::Unknown, Code::Interrupted, MAY_BE_ANOTHER));
            }
            let error = match &result {
                Err(error) if hops < MAX_HOPS => error,
                Ok(_) | Err(_) => return result,
            };
            // A write that may have been applied is left to the caller, and a cut is no failure of the address.
            let again = error.is_unsent()
                || (!request.operation.writes()
                    && matches!(error.kind, Kind::NoLeader | Kind::Busy | Kind::Unknown | Kind::NotConsul));
            if !again {
                return result;
            }
            match tokio::time::timeout_at(*until, self.router.other_than(&route)).await {
                Ok(Some(other)) => route = other,
                Ok(None) | Err(_) => return result.map_err(|error| self.with_others(error)),
            }
            hops += 1;
        }
    }

    /// The answer if its status is one that the endpoint defines.
    fn judge(&self, answer: Answer, request: &Request, token: Option<&Ready>) -> Result<Answer, Error> {
        if answer.filtered && !request.takes_filtered {
            // A hidden session would look as if it had ended.
            let hidden = "permission denied: parts of the answer are hidden from this token";
            return Err(Error::new(answer.tried, Kind::Denied, Code::Forbidden, hidden));
        }
        if is_defined(&answer) {
            return Ok(answer);
        }
        let said = said(&answer, request, token);
        Err(classify::of_answer(answer.tried, answer.status, &said))
    }

    /// Adds the failures of the other addresses to an error.
    fn with_others(&self, mut error: Error) -> Error {
        if error.is_unsent() {
            for other in self.router.with(|selection| selection.failures_of_others()) {
                error.detail = format!("{}; {other}", error.detail);
            }
        }
        error
    }

    fn not_sent(&self, request: &Request, route: &Route, why: &str) -> Error {
        let others = self.router.with(|selection| selection.failures_of_others());
        let why = std::iter::once(why.to_owned()).chain(others).collect::<Vec<_>>().join("; ");
        Error::new(
            self.tried_at(request, &route.shown),
            Kind::NotSent,
            Code::Other,
            format!("not sent: {why}"),
        )
    }

    fn tried_at(&self, request: &Request, shown: &Arc<str>) -> Tried {
        Tried { operation: request.operation, target: request.target.clone(), address: Arc::clone(shown) }
    }

    async fn attempt_by(
        &self,
        route: &Route,
        request: &Request,
        token: Option<&Ready>,
        until: &mut Instant,
        after: Duration,
    ) -> Result<Answer, Error> {
        let tried = self.tried_at(request, &route.shown);
        let endpoint = &self.shared.endpoints[route.at];
        let Some(permit) = self.enter(endpoint, request, until).await else {
            return Err(Error::new(tried, Kind::NotSent, Code::Other, NO_CONNECTION_FREE));
        };
        let started = Instant::now();
        // Boxed: the library's futures are large, and callers hold many of them.
        let exchange = Box::pin(self.exchange(request, &tried, token, endpoint, permit));
        let exchange = async {
            // A long poll at the previous address might never return.
            let is_poll = request.lane() == Lane::Poll;
            tokio::select! {
                biased;
                result = exchange => result,
                () = self.router.left(route), if is_poll => {
                    let cause = "another address is in use now";
                    Err(Error::new(tried.clone(), Kind::Unknown, Code::Interrupted, cause))
                }
                () = endpoint.poll_may_be_dead(request.waits), if is_poll => {
                    let cause = "other requests had no answer, and its connection may be dead";
                    Err(classify::cut(tried.clone(), started.elapsed(), cause))
                }
            }
        };
        let limit = if route.is_untried { UNTRIED_TIMEOUT } else { after };
        let limited = started.checked_add(limit).map_or(*until, |limited| limited.min(*until));
        let result = match tokio::time::timeout_at(limited, exchange).await {
            Ok(result) => result,
            Err(_) => {
                let mut late = Error::late(tried.clone(), limit.min(after));
                if !endpoint.is_known.load(Ordering::Relaxed) {
                    late.detail.push_str(NEVER_ANSWERED);
                }
                Err(late)
            }
        };
        match &result {
            Ok(_) => endpoint.heard(true),
            Err(error) if error.code == Code::Timeout => endpoint.heard(false),
            Err(_) => {}
        }
        self.count(request, &tried, &result, started);
        result
    }

    /// Sends a request to any address, with the current token. It is not reported to the observer.
    pub(super) async fn attempt_at(&self, request: &Request, at: usize) -> Result<Answer, Error> {
        let tried = self.tried_at(request, &self.router.with(|selection| selection.shown(at)));
        let endpoint = &self.shared.endpoints[at];
        let token = self.own_token.at_hand().await;
        let permit = endpoint.enter(request.lane()).await;
        let answer = Box::pin(self.exchange(request, &tried, token.as_deref(), endpoint, permit)).await?;
        Ok(Answer { used: token, ..answer })
    }

    fn count(&self, request: &Request, tried: &Tried, result: &Result<Answer, Error>, started: Instant) {
        let code = match result {
            Ok(answer) if answer.filtered && !request.takes_filtered => Code::Forbidden,
            Ok(answer) => Code::of_status(answer.status),
            Err(error) => error.code,
        };
        self.observer().finished(tried, code, started.elapsed());
    }

    /// Waits for a connection. For a request that keeps a lease or confirms its end, the time-out includes this wait. For others the
    /// time-out starts when they have a connection, since hundreds may queue.
    async fn enter<'a>(
        &self,
        endpoint: &'a Endpoint,
        request: &Request,
        until: &mut Instant,
    ) -> Option<Permit<'a>> {
        let lane = request.lane();
        let permit = endpoint.enter(lane);
        if matches!(lane, Lane::Lease | Lane::Confirmation) {
            return tokio::time::timeout_at(*until, permit).await.ok();
        }
        let began = Instant::now();
        let permit = permit.await;
        *until = until.checked_add(began.elapsed()).unwrap_or(*until);
        Some(permit)
    }

    async fn exchange(
        &self,
        request: &Request,
        tried: &Tried,
        token: Option<&Ready>,
        endpoint: &Endpoint,
        mut permit: Permit<'_>,
    ) -> Result<Answer, Error> {
        let refuse = |said: String| Error::refused(tried.clone(), said);
        let mut url = endpoint.url(&request.path).map_err(|error| refuse(error.to_string()))?;
        url.query_pairs_mut().extend_pairs(&self.shared.scope).extend_pairs(&request.query);
        // An idle client sends renewals alone, too rarely to keep their connection open.
        let closes = request.operation == Operation::SessionRenew && permit.is_alone();
        let http = endpoint.client(&mut permit).map_err(|error| refuse(error.to_string()))?;
        let mut sent = http.request(request.method.clone(), url);
        if closes {
            sent = sent.header(CONNECTION, "close");
        }
        if !request.is_long {
            // By default the library requests `gzip`.
            sent = sent.header(ACCEPT_ENCODING, "identity");
        }
        if let Some(token) = token {
            sent = sent.header("X-Consul-Token", token.header.clone());
        }
        if let Some(body) = &request.body {
            sent = sent.header(CONTENT_TYPE, "application/json").body(body.clone());
        }
        let sent = sent.build().map_err(|error| refuse(error.to_string()))?;
        let began = Instant::now();
        let waited = || if request.lane() == Lane::Poll { began.elapsed() } else { Duration::ZERO };
        let is_known = endpoint.is_known.load(Ordering::Relaxed);
        let broken = |error| classify::of_transport(tried.clone(), &error, waited(), is_known);
        let response = http.execute(sent).map_err(broken);
        let response = match &endpoint.plain {
            // A renewal cannot wait for that.
            Some(place) if !is_known && request.operation != Operation::SessionRenew => {
                let leader = endpoint.url("status/leader").map_err(|error| refuse(error.to_string()))?;
                probe::first_answer(place, &leader, tried, response).await?
            }
            Some(_) | None => response.await?,
        };
        endpoint.is_known.store(true, Ordering::Relaxed);
        let status = response.status().as_u16();
        let filtered = header(&response, "X-Consul-Results-Filtered-By-ACLs") == Some("true");
        let date = header(&response, "Date").map(str::to_owned);
        let index = header(&response, "X-Consul-Index").and_then(|index| index.parse().ok());
        let body = match read_body(response).await {
            Ok(Some(body)) => body,
            Ok(None) => {
                let why = format!("it is longer than {MAX_ANSWER} bytes");
                return Err(Error::undecodable(tried.clone(), why));
            }
            Err(error) => return Err(broken(error)),
        };
        let answer = Answer { status, index, filtered, date, body, tried: tried.clone(), used: None };
        let age = waited();
        if classify::is_cut(status, age) {
            let cause = format!("{status}: {}", said(&answer, request, token));
            return Err(classify::cut(tried.clone(), age, &cause));
        }
        Ok(answer)
    }
}

/// A 404 means that the key does not exist only if it has an index, which proves that Consul sent it. A gateway's 404 must not be
/// read as a missing contender key.
fn is_defined(answer: &Answer) -> bool {
    match answer.status {
        200 => true,
        404 => {
            let reads = [Operation::KvGet, Operation::KvList, Operation::KvWatch];
            answer.index.is_some() && reads.contains(&answer.tried.operation)
        }
        409 => matches!(answer.tried.operation, Operation::Txn | Operation::KvGetMany),
        _ => false,
    }
}

/// The beginning of an answer's body, as text for an error.
fn said(answer: &Answer, request: &Request, token: Option<&Ready>) -> String {
    let secrets: Vec<_> =
        token.map(|token| &token.secret).into_iter().chain(request.secret.as_ref()).collect();
    classify::excerpt(&String::from_utf8_lossy(&answer.body), &secrets)
}

/// The body; `None` if it is too long. Of an error answer the beginning is enough, also if the connection breaks after it: Consul
/// closes the connection on a request body that is too large, without reading it to its end.
async fn read_body(mut response: reqwest::Response) -> Result<Option<Vec<u8>>, reqwest::Error> {
    let refusal = response.status() != StatusCode::OK;
    let bound = if refusal { MAX_REFUSAL } else { MAX_ANSWER };
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if body.len() + chunk.len() <= bound => body.extend_from_slice(&chunk),
            Ok(Some(_)) => return Ok(refusal.then_some(body)),
            Ok(None) => return Ok(Some(body)),
            Err(_) if refusal => return Ok(Some(body)),
            Err(error) => return Err(error),
        }
    }
}

fn header<'a>(response: &'a reqwest::Response, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}
