//! The client: its configuration, and the sending of a request with a token.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::endpoint::{Endpoint, Lane};
use super::request::{Answer, Request};
use super::router::Router;
use super::selection::AddressState;
use super::token::{Refusal, Token};
use super::{
    Code, Error, Kind, MAX_WAIT, Observer, Operation, Read, Secret, Settings, TokenError, TokenSource, Tried,
    login,
};

/// The default time-out of a request; [`Client::within`] sets another one. Consul itself waits 7 s for a leader before it answers
/// that there is none.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum size of an answer, in bytes after decompression.
pub const MAX_ANSWER: usize = 16 * 1024 * 1024;

/// Why no client can be made of the settings: a certificate, a key, the given token or an address cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SetupError(pub(super) String);

/// A client of one Consul cluster. It uses one agent or server at a time. Clones share the connections, the token and the address
/// in use.
///
/// If the address in use fails, the client moves to another one. While a session of this client may have a valid lease, that is one which
/// shows the session, and so belongs to the same cluster; without one, requests fail until the leases have expired. After that the
/// client may move to an address of another cluster, and clients that are [bound](Self::bound) to the earlier state send nothing more.
///
/// Proxies of the environment (`HTTP_PROXY`) are never used: a lease depends on these requests, and the agent is nearby.
/// Redirects are never followed: Consul sends them for malformed keys alone.
#[derive(Clone)]
pub struct Client {
    pub(super) shared: Arc<Shared>,
    pub(super) router: Arc<Router>,
    pub(super) token: Arc<Token>,
    /// The token of the questions to other addresses. Differs from `token` for the requests of a login, which are anonymous.
    pub(super) own_token: Arc<Token>,
    within: Duration,
    /// Nothing is sent in a later generation, which may have another cluster.
    pub(super) generation: u64,
    /// The deadline of the requests that began before it was sent.
    hurry: watch::Sender<Option<Instant>>,
}

pub(super) struct Shared {
    /// In the order of the addresses.
    pub(super) endpoints: Vec<Endpoint>,
    /// `dc`, `ns`, `partition`.
    pub(super) scope: Vec<(&'static str, String)>,
    /// The maximum wait of a blocking query.
    max_wait: Duration,
    /// All addresses, for messages.
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
    /// Creates a client. Nothing is sent. Certificates are read now, a token file with the first request.
    ///
    /// # Errors
    ///
    /// The certificates, the keys, the given token or the addresses are invalid.
    pub fn new(settings: &Settings, observer: Arc<dyn Observer>) -> Result<Self, SetupError> {
        let endpoints = Endpoint::all(settings)?;
        let scope =
            [("dc", &settings.datacenter), ("ns", &settings.namespace), ("partition", &settings.partition)];
        let scope = scope.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect();
        let token =
            Arc::new(Token::new(settings.token.as_ref()).map_err(|error| SetupError(error.to_string()))?);
        let address = settings.address.to_string().into();
        let (hurry, _) = watch::channel(None);
        let max_wait = settings.max_wait.unwrap_or(MAX_WAIT);
        let shared = Arc::new(Shared { endpoints, scope, max_wait, address, observer });
        let router = Arc::new(Router::new(&settings.address));
        let own_token = Arc::clone(&token);
        Ok(Self { shared, router, token, own_token, within: DEFAULT_TIMEOUT, generation: 0, hurry })
    }

    /// The same client with the time-out `within`: from the start of the connection to the last byte of the answer, in addition to
    /// the wait of a blocking query. A connection may take 5 s. With a shorter time-out a dead host gives [`Kind::Unknown`] instead
    /// of [`Kind::NotSent`].
    #[must_use]
    pub fn within(&self, within: Duration) -> Self {
        Self { within, ..self.clone() }
    }

    /// Ends the reads and writes that are in flight, or wait for a connection, after `within` with [`Code::Timeout`], so that they do
    /// not delay later requests. This applies to this client, its clones, and the clients that it [replaces](Self::in_place_of).
    /// Long polls and the requests that keep a lease have connections of their own and continue.
    pub fn hurry(&self, within: Duration) {
        self.hurry.send_replace(Instant::now().checked_add(within));
    }

    /// The same client with another token, such as one from a [`login`](Self::login).
    ///
    /// # Errors
    ///
    /// [`TokenError::Unusable`] if no HTTP header can carry the token.
    pub fn with_token(&self, source: &TokenSource) -> Result<Self, TokenError> {
        let token = Arc::new(Token::new(Some(source))?);
        Ok(Self { own_token: Arc::clone(&token), token, ..self.clone() })
    }

    /// The same client without a token.
    pub(super) fn anonymous(&self) -> Self {
        Self { token: Arc::new(Token::Anonymous), ..self.clone() }
    }

    /// The same client, as the replacement of `before`. If both have the same addresses, it continues with the address in use. If both
    /// have the same token file or the same login, it continues with the token of `before`, since the file may be unreadable now.
    /// [`hurry`](Self::hurry) applies to the requests of `before` too.
    #[must_use]
    pub fn in_place_of(self, before: &Self) -> Self {
        let same = self.token.is_got_as(&before.token);
        let token = Arc::clone(if same { &before.token } else { &self.token });
        let own = Self { own_token: Arc::clone(&token), token, hurry: before.hurry.clone(), ..self };
        if own.router.configured == before.router.configured {
            return Self { router: Arc::clone(&before.router), generation: before.generation, ..own };
        }
        own
    }

    /// The same client, bound to the cluster in use now. Call it after [`Self::cut_loose`], once the caller has discarded all that it
    /// read from Consul.
    #[must_use]
    pub fn bound(&self) -> Self {
        Self { generation: self.router.now().generation, ..self.clone() }
    }

    /// Returns when this client and its clones send nothing more, because another address is in use that may belong to another
    /// cluster. Discard everything that was read, then continue with [`Self::bound`].
    pub async fn cut_loose(&self) {
        self.router.generation_over(self.generation).await;
    }

    /// Records a session of an earlier process. The client uses the address that shows the session. `lease`: the time for which that
    /// process may still have a valid lease; until then the client uses no address that does not show the session.
    pub fn remember(&self, session: &str, lease: Duration) {
        let now = Instant::now();
        self.router.with(|selection| selection.remember(session, now + lease, now));
    }

    /// Records that a request sent at `sent` in this generation created or renewed a session.
    pub(super) fn leased(&self, session: &str, sent: Instant, ttl: Duration, is_new: bool) {
        self.router.with(|selection| match is_new {
            _ if selection.generation() != self.generation => {}
            true => selection.created(session, sent + ttl, Instant::now()),
            false => selection.renewed(session, sent + ttl),
        });
    }

    /// Records that a session was destroyed or has ended.
    pub(super) fn has_ended(&self, session: &str) {
        self.router.with(|selection| selection.ended(session));
    }

    /// The addresses and their states, in the order of the configuration.
    pub fn addresses(&self) -> Vec<(String, AddressState)> {
        self.router.with(|selection| selection.states())
    }

    /// Logs out: ends the token of this client's login. This client and its clones send nothing after it. Without a login it does
    /// nothing.
    ///
    /// # Errors
    ///
    /// As for any request. The token then ends by its auth method's `MaxTokenTTL`, if that is set.
    pub async fn log_out_for_good(&self) -> Result<(), Error> {
        let Token::Login(logins) = &*self.token else { return Ok(()) };
        Box::pin(logins.end(self, self.within)).await
    }

    /// The current token of this client's login; `None` without a login.
    pub fn login_token(&self) -> Option<Secret> {
        if let Token::Login(logins) = &*self.token { logins.token() } else { None }
    }

    /// Waits until [`Self::login_token`] changes; for ever without a login. For one caller at a time. It may be dropped and called
    /// again.
    pub async fn login_token_changed(&self) {
        match &*self.token {
            Token::Login(logins) => logins.changed().await,
            Token::Anonymous | Token::Fixed(_) | Token::File(_) => std::future::pending().await,
        }
    }

    /// All addresses, separated by commas, for messages.
    pub fn address(&self) -> &str {
        &self.shared.address
    }

    /// Reads the leader's address (`ip:port` of its RPC); `None` while there is no leader.
    ///
    /// # Errors
    ///
    /// As for any request.
    pub async fn leader(&self) -> Result<Option<String>, Error> {
        let answer = self.send(Request::get(Operation::Leader, "status/leader", "")).await?;
        let leader: String = answer.json()?;
        Ok((!leader.is_empty()).then_some(leader))
    }

    /// Whether the client sends no token, and so has the rights of Consul's anonymous token.
    pub fn is_anonymous(&self) -> bool {
        matches!(*self.token, Token::Anonymous)
    }

    /// The datacenter of [`Settings::datacenter`], for the one request that Consul reads it from the body of.
    pub(super) fn datacenter(&self) -> Option<&str> {
        self.shared.scope.iter().find(|(name, _)| *name == "dc").map(|(_, value)| value.as_str())
    }

    /// The read with its wait limited to [`Settings::max_wait`].
    pub(super) fn bounded(&self, read: Read) -> Read {
        read.at_most(self.shared.max_wait)
    }

    pub(super) fn observer(&self) -> &dyn Observer {
        &*self.shared.observer
    }

    /// The subject of an error that occurs before anything is sent.
    pub(super) fn tried(&self, operation: Operation, target: &str) -> Tried {
        Tried { operation, target: target.into(), address: self.router.now().shown }
    }

    /// Sends `request`. If Consul refuses the token and the file or a new login gives another one, sends it once more. Returns the
    /// statuses that the endpoint defines: 200, the 404 of a missing key, the 409 of a transaction.
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
                self.shared.observer.finished(&tried, Code::Timeout, after);
                Err(Error::late(tried, after))
            }
        }
    }

    /// Returns at the deadline of a later [`hurry`](Self::hurry).
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
            return Err(Error::refused(tried, "the time-out is too long"));
        };
        let token = &self.token;
        let mut used = self
            .in_time(token.current(self), until, after)
            .await
            .map_err(|error| Error::without_token(tried, error))?;
        let mut result = self.attempt(&request, used.as_deref(), &mut until, after).await;
        let mut in_vain = None;
        // A refusal changed nothing, so another attempt is safe.
        if let Some(refusal) = refusal(&result) {
            let other = token.instead_of(used.as_deref(), refusal, self);
            match self.in_time(other, until, after).await {
                Ok(None) => {}
                Ok(Some(newer)) => {
                    result = self.attempt(&request, Some(&newer), &mut until, after).await;
                    used = Some(newer);
                }
                // The refusal is the more helpful error.
                Err(error) => in_vain = Some(error),
            }
        }
        let mut error = match result {
            Ok(answer) => return Ok(Answer { used, ..answer }),
            Err(error) => error,
        };
        if error.kind == Kind::Denied {
            let is_login = request.operation == Operation::Login;
            let fault = if error.is_unknown_token() {
                "is mistyped, or has been deleted"
            } else {
                "lacks this right"
            };
            let advice = if is_login { login::advice(&error.detail).into() } else { token.advice(fault) };
            error.detail = format!("{}; {advice}", error.detail);
            if let Some(in_vain) = in_vain {
                error.detail = format!("{}; and another login failed: {in_vain}", error.detail);
            }
        }
        Err(error)
    }

    /// Waits for a token, which may need a login, until the request's own deadline.
    async fn in_time<T>(
        &self,
        token: impl Future<Output = Result<T, TokenError>>,
        until: Instant,
        after: Duration,
    ) -> Result<T, TokenError> {
        tokio::time::timeout_at(until, token).await.unwrap_or_else(|_| {
            let tried = self.tried(Operation::Login, self.token.auth_method());
            Err(TokenError::Login(Box::new(Error::late(tried, after))))
        })
    }
}

/// How Consul refused the token, if another token may have more rights. A transaction reports it by a rollback.
fn refusal(result: &Result<Answer, Error>) -> Option<Refusal> {
    let (denied, unknown) = match result {
        Err(error) => (error.kind == Kind::Denied, error.is_unknown_token()),
        Ok(answer) => {
            let said =
                |part: &str| answer.status == 409 && String::from_utf8_lossy(&answer.body).contains(part);
            (answer.filtered || said("Permission denied"), said("ACL not found"))
        }
    };
    if unknown { Some(Refusal::Unknown) } else { denied.then_some(Refusal::Denied) }
}
