//! The client: who is asked, with which token, how long, and what is made of the answer.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::CONTENT_TYPE;
use tokio::sync::watch;
use tokio::time::Instant;

use super::connections::Permit;
use super::endpoint::{Endpoint, Lane};
use super::request::{Answer, Request};
use super::token::{Ready, Refusal, Token};
use super::{
    Code, Error, Observer, Operation, Secret, Settings, TlsError, TokenError, TokenSource, Tried, classify,
    login,
};

/// The time that an answer may take, if [`Client::within`] does not say otherwise. Consul itself waits 7 s for a
/// leader before it says that there is none.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest answer that is taken in, in bytes.
pub const MAX_ANSWER: usize = 16 * 1024 * 1024;

/// The longest answer that is looked at where it is a refusal. Of more, the beginning is enough.
const MAX_REFUSAL: usize = 1024 * 1024;

/// Why no client can be made of some settings.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// Certificates and keys.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A given token that cannot be sent. Files are read later.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// An address that no URL can be made of.
    #[error("no URL can be made of the Consul address {0}: {1}")]
    Address(String, String),
    /// The HTTP library refuses what it was told.
    #[error("the HTTP client cannot be set up: {0}")]
    Http(String),
}

/// A client of one Consul agent or server. Clones share connections and token.
///
/// Proxies of the environment (`HTTP_PROXY`) are never used: the lease hangs on these requests, and they are meant
/// for an agent nearby. Redirects are never followed: Consul sends none but for malformed keys.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    token: Arc<Token>,
    within: Duration,
}

struct Shared {
    endpoint: Endpoint,
    /// `dc`, `ns`, `partition`.
    scope: Vec<(&'static str, String)>,
    /// For errors.
    address: Arc<str>,
    observer: Arc<dyn Observer>,
    /// When what was begun before this was sent has to be over.
    hurry: watch::Sender<Option<Instant>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("address", &self.shared.address)
            .field("within", &self.within)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Makes a client; nothing is sent yet. Certificates are read now, a token file with the first request.
    ///
    /// # Errors
    ///
    /// Certificates, keys or a given token that cannot be used.
    pub fn new(settings: &Settings, observer: Arc<dyn Observer>) -> Result<Self, SetupError> {
        let endpoint = Endpoint::new(settings)?;
        let scope =
            [("dc", &settings.datacenter), ("ns", &settings.namespace), ("partition", &settings.partition)];
        let scope = scope.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect();
        let token = Arc::new(Token::new(settings.token.as_ref())?);
        let address = settings.address.to_string().into();
        let (hurry, _) = watch::channel(None);
        let shared = Shared { endpoint, scope, address, observer, hurry };
        Ok(Self { shared: Arc::new(shared), token, within: DEFAULT_TIMEOUT })
    }

    /// The same client, whose answers may take `within` and no longer: from the connection to the answer's last byte,
    /// on top of what a blocking read waits. One shorter than the 5 s that a connection may take ends as
    /// [`Error::Timeout`] where a longer one ends as [`Error::Unreachable`].
    #[must_use]
    pub fn within(&self, within: Duration) -> Self {
        Self { within, ..self.clone() }
    }

    /// Has the reads and writes of this client and its clones that are under way, or wait for a connection, end as
    /// [`Error::Timeout`] after `within`: they must not keep waiting what begins now. Neither long polls nor what keeps a
    /// lease: these have connections of their own.
    pub fn hurry(&self, within: Duration) {
        self.shared.hurry.send_replace(Instant::now().checked_add(within));
    }

    /// The same client with another token, such as one that came of a [`login`](Self::login).
    ///
    /// # Errors
    ///
    /// [`TokenError::NotAHeader`].
    pub fn with_token(&self, source: &TokenSource) -> Result<Self, TokenError> {
        Ok(Self { token: Arc::new(Token::new(Some(source))?), ..self.clone() })
    }

    /// The same client without a token.
    pub(super) fn anonymous(&self) -> Self {
        Self { token: Arc::new(Token::Anonymous), ..self.clone() }
    }

    /// The same client, which goes on with the token of `before` where both get it alike: from the same file, which may not
    /// be readable at the moment, or by the same login.
    #[must_use]
    pub fn keeping_token_of(self, before: &Self) -> Self {
        if self.token.is_got_as(&before.token) {
            return Self { token: Arc::clone(&before.token), ..self };
        }
        self
    }

    /// Ends the token that a login has given to this client and its clones, who send nothing more after it. Where it has
    /// not logged in there is nothing to do.
    ///
    /// # Errors
    ///
    /// As any request's. The token then ends by its auth method's `MaxTokenTTL`, if it has one.
    pub async fn log_out_for_good(&self) -> Result<(), Error> {
        let Token::Login(logins) = &*self.token else { return Ok(()) };
        Box::pin(logins.end(self, self.within)).await
    }

    /// The token that a login has given to this client and its clones, as they send it now. None without a login.
    pub fn login_token(&self) -> Option<Secret> {
        if let Token::Login(logins) = &*self.token { logins.token() } else { None }
    }

    /// Waits until [`Self::login_token`] is another one; for ever without a login. For one caller at a time, which may drop it
    /// and call again.
    pub async fn login_token_changed(&self) {
        match &*self.token {
            Token::Login(logins) => logins.changed().await,
            Token::Anonymous | Token::Fixed(_) | Token::File(_) => std::future::pending().await,
        }
    }

    /// Where Consul is, for people.
    pub fn address(&self) -> &str {
        &self.shared.address
    }

    /// Asks for the leader's address (`ip:port` of its RPC). `None`: there is no leader.
    ///
    /// # Errors
    ///
    /// As any request's.
    pub async fn leader(&self) -> Result<Option<String>, Error> {
        let answer = self.send(Request::get(Operation::Leader, "status/leader", "")).await?;
        let leader: String = answer.json()?;
        Ok((!leader.is_empty()).then_some(leader))
    }

    /// Whether it sends no token, and so may see and do what everybody may.
    pub fn is_anonymous(&self) -> bool {
        matches!(*self.token, Token::Anonymous)
    }

    pub(super) fn observer(&self) -> &dyn Observer {
        &*self.shared.observer
    }

    /// What was tried, for an error that this client gives before anything is sent.
    pub(super) fn tried(&self, operation: Operation, target: &str) -> Tried {
        Tried { operation, target: target.into(), address: Arc::clone(&self.shared.address) }
    }

    /// Sends `request`, and once more where its token was refused and there is another one: of the file, or of a new
    /// login. Returns what the endpoint has as an answer: 200, the 404 of a missing key, the 409 of a transaction.
    pub(super) async fn send(&self, request: Request) -> Result<Answer, Error> {
        if !matches!(request.lane(), Lane::Read | Lane::Write) {
            return self.serve(request).await;
        }
        let (operation, began) = (request.operation, Instant::now());
        let tried = self.tried(operation, &request.target);
        let hurried = self.hurried();
        tokio::select! {
            biased;
            answer = self.serve(request) => answer,
            () = hurried => {
                let after = began.elapsed();
                self.shared.observer.finished(operation, Code::Timeout, after);
                Err(Error::Timeout { tried, after })
            }
        }
    }

    /// Ends when what is begun now has to be over, where a [`hurry`](Self::hurry) comes.
    fn hurried(&self) -> impl Future<Output = ()> + use<> {
        let mut hurry = self.shared.hurry.subscribe();
        async move {
            let until = match hurry.changed().await {
                Ok(()) => *hurry.borrow_and_update(),
                Err(_) => None,
            };
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        }
    }

    async fn serve(&self, request: Request) -> Result<Answer, Error> {
        let tried = self.tried(request.operation, &request.target);
        let after = self.within.saturating_add(request.waits);
        let Some(mut until) = Instant::now().checked_add(after) else {
            return Err(Error::BadRequest { tried, said: "the time-out is longer than time itself".into() });
        };
        let token = &self.token;
        let mut used = self
            .in_time(token.current(self), until, after)
            .await
            .map_err(|source| Error::Token { tried: tried.clone(), source })?;
        let mut answer = self.attempt(&request, &tried, used.as_deref(), &mut until, after).await?;
        let mut in_vain = None;
        // A refusal has changed nothing, so asking again is safe.
        if let Some(refusal) = refusal(&answer) {
            let other = token.instead_of(used.as_deref(), refusal, self);
            match self.in_time(other, until, after).await {
                Ok(None) => {}
                Ok(Some(newer)) => {
                    answer = self.attempt(&request, &tried, Some(&newer), &mut until, after).await?;
                    used = Some(newer);
                }
                // What was refused says more.
                Err(error) => in_vain = Some(error),
            }
        }
        if accepted(&answer) {
            return Ok(Answer { used, ..answer });
        }
        let advice = || {
            let advice = token.advice();
            match &in_vain {
                Some(error) => format!("{advice}; and another login failed: {error}"),
                None => advice,
            }
        };
        if answer.filtered {
            // What is hidden would look as if it did not exist, and its owner as if it were dead.
            let said = "parts of the answer are hidden from this token".into();
            return Err(Error::Denied { tried, said, advice: advice() });
        }
        let secrets: Vec<_> = used.iter().map(|used| &used.secret).chain(request.secret.as_ref()).collect();
        let said = classify::excerpt(&String::from_utf8_lossy(&answer.body), &secrets);
        Err(classify::of_answer(answer.tried, answer.status, said, |said| {
            if request.operation == Operation::Login { login::advice(said).into() } else { advice() }
        }))
    }

    /// A token, for which a login may have to be waited: no longer than for the answer itself.
    async fn in_time<T>(
        &self,
        token: impl Future<Output = Result<T, TokenError>>,
        until: Instant,
        after: Duration,
    ) -> Result<T, TokenError> {
        tokio::time::timeout_at(until, token).await.unwrap_or_else(|_| {
            let tried = self.tried(Operation::Login, self.token.auth_method());
            Err(TokenError::Login(Box::new(Error::Timeout { tried, after })))
        })
    }

    async fn attempt(
        &self,
        request: &Request,
        tried: &Tried,
        token: Option<&Ready>,
        until: &mut Instant,
        after: Duration,
    ) -> Result<Answer, Error> {
        let Some(permit) = self.enter(request, until).await else {
            return Err(Error::Timeout { tried: tried.clone(), after });
        };
        let started = Instant::now();
        // Boxed: the library's futures are large, and callers hold many of these.
        let exchange = Box::pin(self.exchange(request, tried, token, permit));
        let result = match tokio::time::timeout_at(*until, exchange).await {
            Ok(result) => result,
            Err(_) => Err(Error::Timeout { tried: tried.clone(), after }),
        };
        let code = match &result {
            Ok(answer) if answer.filtered => Code::Forbidden,
            Ok(answer) => Code::of_status(answer.status),
            Err(error) => error.code(),
        };
        self.shared.observer.finished(request.operation, code, started.elapsed());
        result
    }

    /// Waits for a connection. What keeps a lease has no more time for that; all else has its time from then on, since it
    /// may stand in a line of hundreds, each of which is answered soon.
    async fn enter(&self, request: &Request, until: &mut Instant) -> Option<Permit<'_>> {
        let lane = request.lane();
        let permit = self.shared.endpoint.enter(lane);
        if lane == Lane::Lease {
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
        mut permit: Permit<'_>,
    ) -> Result<Answer, Error> {
        let shared = &self.shared;
        let refuse = |said: String| Error::BadRequest { tried: tried.clone(), said };
        let mut url = shared.endpoint.url(&request.path).map_err(|error| refuse(error.to_string()))?;
        url.query_pairs_mut().extend_pairs(&shared.scope).extend_pairs(&request.query);
        let http = shared.endpoint.client(&mut permit).map_err(|error| refuse(error.to_string()))?;
        let mut sent = http.request(request.method.clone(), url);
        if let Some(token) = token {
            sent = sent.header("X-Consul-Token", token.header.clone());
        }
        if let Some(body) = &request.body {
            sent = sent.header(CONTENT_TYPE, "application/json").body(body.clone());
        }
        let sent = sent.build().map_err(|error| refuse(error.to_string()))?;
        let broken = |error| classify::of_transport(tried.clone(), &error);
        let response = http.execute(sent).await.map_err(broken)?;
        let status = response.status().as_u16();
        let filtered = header(&response, "X-Consul-Results-Filtered-By-ACLs") == Some("true");
        let index = header(&response, "X-Consul-Index").and_then(|index| index.parse().ok());
        let body = match take_in(response).await {
            Ok(Some(body)) => body,
            Ok(None) => {
                let why = format!("it is longer than {MAX_ANSWER} bytes");
                return Err(Error::BadAnswer { tried: tried.clone(), why });
            }
            Err(error) => return Err(broken(error)),
        };
        Ok(Answer { status, index, filtered, body, tried: tried.clone(), used: None })
    }
}

/// The body; `None` where it is too long. Of a refusal the beginning is enough, also where the connection breaks after
/// it: Consul closes it on a body that is too large, without reading that to its end.
async fn take_in(mut response: reqwest::Response) -> Result<Option<Vec<u8>>, reqwest::Error> {
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

/// A 404 is the answer "there is no such key" only where Consul itself gives it, which an index proves: a gateway's
/// 404 must not pass for a contender that is gone.
fn accepted(answer: &Answer) -> bool {
    if answer.filtered {
        return false;
    }
    match answer.tried.operation {
        Operation::Txn | Operation::KvGetMany => matches!(answer.status, 200 | 409),
        Operation::KvGet | Operation::KvList | Operation::KvWatch => {
            answer.status == 200 || (answer.status == 404 && answer.index.is_some())
        }
        Operation::SessionCreate
        | Operation::SessionRenew
        | Operation::SessionDestroy
        | Operation::SessionInfo
        | Operation::SessionList
        | Operation::KvPut
        | Operation::KvDelete
        | Operation::Login
        | Operation::Logout
        | Operation::Leader => answer.status == 200,
    }
}

/// How the token was refused, where another one might have been let through. A transaction says so by a rollback, and
/// what a server answers to an agent may come as a 500.
fn refusal(answer: &Answer) -> Option<Refusal> {
    if answer.filtered {
        return Some(Refusal::Denied);
    }
    if !matches!(answer.status, 403 | 409 | 500) {
        return None;
    }
    let said = String::from_utf8_lossy(&answer.body);
    if said.contains("ACL not found") {
        Some(Refusal::Unknown)
    } else if answer.status == 403 || said.contains("Permission denied") {
        Some(Refusal::Denied)
    } else {
        None
    }
}
