//! The client: who is asked, with which token, how long, and what is made of the answer.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::endpoint::{Endpoints, Lane};
use super::exchange::refused;
use super::request::{Answer, Request};
use super::router::Router;
use super::selection::AddressState;
use super::token::{Refusal, Token};
use super::{
    Code, Error, MAX_WAIT, Observer, Operation, Read, Secret, Settings, TlsError, TokenError, TokenSource,
    Tried, login,
};

/// The time that an answer may take, if [`Client::within`] does not say otherwise. Consul itself waits 7 s for a
/// leader before it says that there is none.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest answer that is taken in, in bytes.
pub const MAX_ANSWER: usize = 16 * 1024 * 1024;

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

/// A client of one Consul cluster, by one of its agents or servers at a time. Clones share connections, token, and which
/// address is used.
///
/// Where the used address fails, another one that surely belongs to the same cluster is used from then on: while a session that
/// this client has created or renewed may live, one that shows the session. Where none is sure, requests fail until the
/// leases are over; another address may then belong to another cluster, and clients that are [bound](Self::bound) to what was before
/// send nothing more.
///
/// Proxies of the environment (`HTTP_PROXY`) are never used: the lease hangs on these requests, and they are meant
/// for an agent nearby. Redirects are never followed: Consul sends none but for malformed keys.
#[derive(Clone)]
pub struct Client {
    pub(super) shared: Arc<Shared>,
    pub(super) router: Arc<Router>,
    pub(super) token: Arc<Token>,
    /// The one by which addresses prove themselves. That of a login, also for the requests of the login itself.
    pub(super) own_token: Arc<Token>,
    within: Duration,
    /// Of the addresses. Nothing is sent in a later one: what the caller knows may be another cluster's.
    pub(super) epoch: u64,
    /// When what was begun before this was sent has to be over.
    hurry: watch::Sender<Option<Instant>>,
}

pub(super) struct Shared {
    pub(super) endpoints: Endpoints,
    /// `dc`, `ns`, `partition`.
    pub(super) scope: Vec<(&'static str, String)>,
    /// No blocking read waits longer.
    max_wait: Duration,
    /// All addresses, for people.
    address: Arc<str>,
    observer: Arc<dyn Observer>,
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
        let endpoints = Endpoints::new(settings)?;
        let scope =
            [("dc", &settings.datacenter), ("ns", &settings.namespace), ("partition", &settings.partition)];
        let scope = scope.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect();
        let token = Arc::new(Token::new(settings.token.as_ref())?);
        let address = settings.address.to_string().into();
        let (hurry, _) = watch::channel(None);
        let max_wait = settings.max_wait.unwrap_or(MAX_WAIT);
        let shared = Arc::new(Shared { endpoints, scope, max_wait, address, observer });
        let router = Arc::new(Router::new(&settings.address));
        let own_token = Arc::clone(&token);
        Ok(Self { shared, router, token, own_token, within: DEFAULT_TIMEOUT, epoch: 0, hurry })
    }

    /// The same client, whose answers may take `within` and no longer: from the connection to the answer's last byte,
    /// on top of what a blocking read waits. One shorter than the 5 s that a connection may take ends as
    /// [`Error::Timeout`] where a longer one ends as [`Error::Unreachable`].
    #[must_use]
    pub fn within(&self, within: Duration) -> Self {
        Self { within, ..self.clone() }
    }

    /// Has the reads and writes that are under way, or wait for a connection, end as [`Error::Timeout`] after `within`: they
    /// must not keep waiting what begins now. Those of this client, of its clones, and of the clients that it
    /// [replaces](Self::in_place_of). Neither long polls nor what keeps a lease: these have connections of their own.
    pub fn hurry(&self, within: Duration) {
        self.hurry.send_replace(Instant::now().checked_add(within));
    }

    /// The same client with another token, such as one that came of a [`login`](Self::login).
    ///
    /// # Errors
    ///
    /// [`TokenError::NotAHeader`].
    pub fn with_token(&self, source: &TokenSource) -> Result<Self, TokenError> {
        let token = Arc::new(Token::new(Some(source))?);
        Ok(Self { own_token: Arc::clone(&token), token, ..self.clone() })
    }

    /// The same client without a token.
    pub(super) fn anonymous(&self) -> Self {
        Self { token: Arc::new(Token::Anonymous), ..self.clone() }
    }

    /// The same client, which replaces `before`. It goes on with the address that is in use where both have the same ones, and
    /// with the token of `before` where both get it alike: from the same file, which may not be readable at the moment, or by
    /// the same login. A [`hurry`](Self::hurry) of it reaches the requests of `before` too.
    #[must_use]
    pub fn in_place_of(self, before: &Self) -> Self {
        let same = self.token.is_got_as(&before.token);
        let token = Arc::clone(if same { &before.token } else { &self.token });
        let own = Self { own_token: Arc::clone(&token), token, hurry: before.hurry.clone(), ..self };
        if own.router.is_for(&before.router) {
            return Self { router: Arc::clone(&before.router), epoch: before.epoch, ..own };
        }
        own
    }

    /// The same client for a caller that has forgotten all that it has learnt from Consul, so that another cluster's answers
    /// cannot be mixed with it.
    #[must_use]
    pub fn bound(&self) -> Self {
        Self { epoch: self.router.now().epoch, ..self.clone() }
    }

    /// Ends when this client and its clones send nothing more, since another address is used that may belong to another
    /// cluster. Forget everything, then go on with [`Self::bound`].
    pub async fn cut_loose(&self) {
        self.router.epoch_over(self.epoch).await;
    }

    /// Says that this session of an earlier process may live: the address that shows it is used. Where that process may have
    /// a lease for so long still, none that does not show the session is moved to before.
    pub fn remember(&self, session: &str, lease: Option<Duration>) {
        let now = Instant::now();
        let ends = lease.and_then(|lease| now.checked_add(lease));
        self.router.with(|selection| selection.remember(session, ends, now));
    }

    /// A session was created or renewed by a request that was sent at `sent` in this epoch.
    pub(super) fn leased(&self, session: &str, sent: Instant, ttl: Option<Duration>) {
        // Consul's longest, where it says something that cannot be read.
        let ttl = ttl.unwrap_or(Duration::from_secs(24 * 60 * 60));
        self.router.with(|selection| {
            if selection.epoch() == self.epoch {
                selection.remember(session, sent.checked_add(ttl), Instant::now());
            }
        });
    }

    /// A session was destroyed, or is seen to have ended.
    pub(super) fn has_ended(&self, session: &str) {
        self.router.with(|selection| selection.forget(session, Instant::now()));
    }

    /// The addresses, and what is known of each, in the order of the configuration.
    pub fn addresses(&self) -> Vec<(String, AddressState)> {
        self.router.states()
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

    /// Where Consul is, for people: all addresses.
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

    /// A read that waits no longer than [`Settings::max_wait`].
    pub(super) fn bounded(&self, read: Read) -> Read {
        read.at_most(self.shared.max_wait)
    }

    pub(super) fn observer(&self) -> &dyn Observer {
        &*self.shared.observer
    }

    /// What was tried, for an error that this client gives before anything is sent.
    pub(super) fn tried(&self, operation: Operation, target: &str) -> Tried {
        Tried { operation, target: target.into(), address: self.router.now().shown }
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
        let mut hurry = self.hurry.subscribe();
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
        let mut answer = self.attempt(&request, used.as_deref(), &mut until, after).await?;
        let mut in_vain = None;
        // A refusal has changed nothing, so asking again is safe.
        if let Some(refusal) = refusal(&answer) {
            let other = token.instead_of(used.as_deref(), refusal, self);
            match self.in_time(other, until, after).await {
                Ok(None) => {}
                Ok(Some(newer)) => {
                    answer = self.attempt(&request, Some(&newer), &mut until, after).await?;
                    used = Some(newer);
                }
                // What was refused says more.
                Err(error) => in_vain = Some(error),
            }
        }
        if accepted(&answer, &request) {
            return Ok(Answer { used, ..answer });
        }
        let advice = || {
            let advice = token.advice();
            match &in_vain {
                Some(error) => format!("{advice}; and another login failed: {error}"),
                None => advice,
            }
        };
        if answer.filtered && !request.takes_filtered {
            // What is hidden would look as if it did not exist, and its owner as if it were dead.
            let said = "parts of the answer are hidden from this token".into();
            return Err(Error::Denied { tried: answer.tried, said, advice: advice() });
        }
        Err(refused(answer, &request, used.as_deref(), |said| {
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
}

/// A 404 is the answer "there is no such key" only where Consul itself gives it, which an index proves: a gateway's
/// 404 must not pass for a contender that is gone.
pub(super) fn accepted(answer: &Answer, request: &Request) -> bool {
    if answer.filtered && !request.takes_filtered {
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
        | Operation::Leader
        | Operation::Peers => answer.status == 200,
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
