//! Tokens from logins: when to log in, and which token to send meanwhile.
//!
//! The client logs in at the first request, when Consul refuses the token, when the bearer token's file changes, and before the token
//! expires. There is one login at a time. Meanwhile requests send the previous token. It is logged out once its successor is there.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{Notify, OwnedMutexGuard};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::file::TokenFile;
use super::pace::Pace;
use super::{Ready, Refusal, Secret, TokenError, TokenSource};
use crate::{Client, Error, Login, Operation};

/// The share of its lifetime after which a token is replaced, and the random addition to it, which spreads the logins of agents.
const LIFE: (f64, f64) = (0.7, 0.15);

/// The time-out of a login. After a dead connection another login is thus possible within a short lease.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(5);

/// An auth method, and the bearer token to present to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthMethod {
    /// Its name in Consul.
    pub name: String,
    /// The file with the bearer token. It is read at each login, and a change causes a login.
    pub bearer_token_file: PathBuf,
    /// Metadata for the token's description.
    pub meta: BTreeMap<String, String>,
}

/// The logins by one auth method.
pub(crate) struct Logins {
    method: AuthMethod,
    bearer: TokenFile,
    kept: Mutex<Kept>,
    /// Held during a login.
    turn: Arc<tokio::sync::Mutex<Turn>>,
    /// Signals that another token is sent.
    changed: Notify,
}

#[derive(Default)]
struct Kept {
    held: Option<Arc<Held>>,
    /// Whether the client has logged out for good.
    over: bool,
    /// The tasks that log out replaced tokens.
    logouts: JoinSet<()>,
}

impl Kept {
    fn spawn_logout(&mut self, logout: impl Future<Output = ()> + Send + 'static) {
        while self.logouts.try_join_next().is_some() {}
        self.logouts.spawn(logout);
    }
}

/// A token that is sent.
struct Held {
    token: Arc<Ready>,
    /// The bearer token of the login.
    bearer: Secret,
    replace_at: Option<Instant>,
}

#[derive(Default)]
struct Turn {
    pace: Pace,
    /// The error of the last login, if it failed.
    failed: Option<Error>,
}

type Turned = OwnedMutexGuard<Turn>;

impl Logins {
    pub(super) fn new(method: AuthMethod) -> Self {
        let bearer = TokenFile::new(method.bearer_token_file.clone());
        Self { method, bearer, kept: Mutex::default(), turn: Arc::default(), changed: Notify::new() }
    }

    pub(super) fn auth_method(&self) -> &str {
        &self.method.name
    }

    /// The current token, as a header.
    pub(super) fn at_hand(&self) -> Option<Arc<Ready>> {
        self.held().map(|held| Arc::clone(&held.token))
    }

    /// The current token.
    pub(crate) fn token(&self) -> Option<Secret> {
        self.held().map(|held| held.token.secret.clone())
    }

    /// Waits until another token is sent. For one caller, which may drop it and call again.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Whether both use the same auth method with the same bearer token file.
    pub(crate) fn is_by(&self, other: &Self) -> bool {
        self.method == other.method
    }

    /// The token for a request: the current one, or that of a login, for which the request waits.
    pub(super) async fn current(self: &Arc<Self>, client: &Client) -> Result<Arc<Ready>, TokenError> {
        let Some(held) = self.held() else {
            let turn = self.turn().await;
            return match self.held() {
                Some(held) => Ok(Arc::clone(&held.token)),
                None => self.log_in(client, turn, None).await,
            };
        };
        let now = Instant::now();
        // Requests do not wait for this login: they send the previous token until the new one is there.
        if self.is_old(&held, now).await
            && let Ok(turn) = Arc::clone(&self.turn).try_lock_owned()
            && !self.is_over()
            && turn.pace.may_try(false, now)
        {
            tokio::spawn(Arc::clone(self).exchange(client.clone(), turn, None));
        }
        Ok(Arc::clone(&held.token))
    }

    /// After a refusal of `used`: the token of another login, which another request may have started; `None` if it is too soon.
    pub(super) async fn instead_of(
        self: &Arc<Self>,
        used: &Ready,
        refusal: Refusal,
        client: &Client,
    ) -> Result<Option<Arc<Ready>>, TokenError> {
        let other = || self.held().filter(|held| held.token.secret != used.secret);
        if let Some(held) = other() {
            return Ok(Some(Arc::clone(&held.token)));
        }
        let turn = self.turn().await;
        if let Some(held) = other() {
            return Ok(Some(Arc::clone(&held.token)));
        }
        let now = Instant::now();
        // Where a right is lacking there still is a token to go on with.
        let needed = refusal == Refusal::Unknown;
        if self.is_over()
            || !turn.pace.may_replace(refusal, now)
            || !(needed || turn.pace.may_try(false, now))
        {
            return Ok(None);
        }
        self.log_in(client, turn, Some(refusal)).await.map(Some)
    }

    /// Logs out for good: no login follows. It also waits for a login and for logouts in flight, for at most `within`.
    pub(crate) async fn end(&self, client: &Client, within: Duration) -> Result<(), Error> {
        let held = self.keep(|kept| {
            kept.over = true;
            kept.held.take()
        });
        let own = async {
            match held {
                Some(held) => log_out(client, &held.token).await,
                None => Ok(()),
            }
        };
        let late = |operation, target: &str| {
            let tried = client.tried(operation, target);
            move |_| Error::late(tried, within)
        };
        let others = async {
            let until = Instant::now() + within;
            let turn = timeout_at(until, self.turn()).await;
            drop(turn.map_err(late(Operation::Login, &self.method.name))?);
            let mut logouts = self.keep(|kept| std::mem::take(&mut kept.logouts));
            let all = async { while logouts.join_next().await.is_some() {} };
            timeout_at(until, all).await.map_err(late(Operation::Logout, ""))
        };
        let (own, others) = tokio::join!(own, others);
        own.and(others)
    }

    /// The source of a refused token and what to do, for an error.
    pub(super) fn advice(&self) -> String {
        format!(
            "the token is from a login by the auth method {}: check the policies of its binding rules, and whether the token was \
             deleted",
            self.method.name
        )
    }

    fn keep<T>(&self, what: impl FnOnce(&mut Kept) -> T) -> T {
        what(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn held(&self) -> Option<Arc<Held>> {
        self.keep(|kept| kept.held.clone())
    }

    fn is_over(&self) -> bool {
        self.keep(|kept| kept.over)
    }

    async fn turn(&self) -> Turned {
        Arc::clone(&self.turn).lock_owned().await
    }

    async fn is_old(&self, held: &Held, now: Instant) -> bool {
        // An unreadable file counts as unchanged.
        let changed = self.bearer.current(now).await.is_ok_and(|bearer| bearer.secret != held.bearer);
        changed || held.replace_at.is_some_and(|at| at <= now)
    }

    /// Logs in, unless it is too soon after a failed login. The login continues if the caller's future is dropped, so that its token is
    /// never lost.
    async fn log_in(
        self: &Arc<Self>,
        client: &Client,
        turn: Turned,
        refused: Option<Refusal>,
    ) -> Result<Arc<Ready>, TokenError> {
        if self.is_over() {
            return Err(TokenError::Login(Box::new(self.over(client))));
        }
        if let Some(failed) = turn.failed.as_ref().filter(|_| !turn.pace.may_try(true, Instant::now())) {
            return Err(TokenError::Login(Box::new(failed.clone())));
        }
        let exchange = tokio::spawn(Arc::clone(self).exchange(client.clone(), turn, refused));
        match exchange.await {
            Ok(exchanged) => exchanged.map_err(|error| TokenError::Login(Box::new(error))),
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The runtime is shutting down.
            Err(_) => std::future::pending().await,
        }
    }

    fn over(&self, client: &Client) -> Error {
        let tried = client.tried(Operation::Login, &self.method.name);
        Error::refused(tried, "this client has logged out for good")
    }

    /// Boxed, since a login is itself a request. `refused`: how Consul refused the previous token.
    fn exchange(
        self: Arc<Self>,
        client: Client,
        mut turn: Turned,
        refused: Option<Refusal>,
    ) -> BoxFuture<'static, Result<Arc<Ready>, Error>> {
        Box::pin(async move {
            // Not the time-out of the request that started it.
            let client = client.within(LOGIN_TIMEOUT);
            let asked = self.ask(&client).await;
            let (now, share) = (Instant::now(), fastrand::f64());
            match asked {
                Ok(held) => {
                    turn.pace.succeeded(refused.is_some(), now, share);
                    turn.failed = None;
                    self.send_from_now_on(&client, held)
                }
                Err(error) => {
                    turn.pace.failed(now, share);
                    let before = turn.failed.replace(error.clone());
                    let has_token = self.held().is_some();
                    // Only a new error is reported. Without a token the waiting requests return the first error themselves.
                    if before.as_ref() != Some(&error) && (before.is_some() || has_token) {
                        let has_token = has_token && refused != Some(Refusal::Unknown);
                        client.observer().login_failed(&error, has_token);
                    }
                    Err(error)
                }
            }
        })
    }

    async fn ask(&self, client: &Client) -> Result<Held, Error> {
        let AuthMethod { name, meta, .. } = &self.method;
        let nothing_sent = |error| Error::without_token(client.tried(Operation::Login, name), error);
        let sent = Instant::now();
        let bearer = self.bearer.reread(sent).await.map_err(nothing_sent)?.secret.clone();
        let Login { accessor, secret, lifetime } = client.anonymous().login(name, &bearer, meta).await?;
        client.observer().logged_in(name, &accessor);
        let token = Ready::new(secret.expose(), super::GIVEN).map_err(nothing_sent)?;
        let share = LIFE.0 + LIFE.1 * fastrand::f64();
        let life = |lifetime: Duration| sent.checked_add(lifetime.mul_f64(share));
        Ok(Held { token, bearer, replace_at: lifetime.and_then(life) })
    }

    /// Replaces the current token and logs out the previous one in the background. Requests in flight with the previous token are sent
    /// again with the new one. A token that cannot be logged out ends by its MaxTokenTTL.
    fn send_from_now_on(&self, client: &Client, held: Held) -> Result<Arc<Ready>, Error> {
        let token = Arc::clone(&held.token);
        let sent = self.keep(|kept| {
            let replaced = if kept.over { Some(Arc::new(held)) } else { kept.held.replace(Arc::new(held)) };
            if let Some(replaced) = replaced {
                let client = client.clone();
                kept.spawn_logout(async move {
                    let _ = log_out(&client, &replaced.token).await;
                });
            }
            if kept.over { Err(self.over(client)) } else { Ok(token) }
        });
        self.changed.notify_one();
        sent
    }
}

async fn log_out(client: &Client, token: &Ready) -> Result<(), Error> {
    let source = TokenSource::Value(token.secret.clone());
    let own = client
        .with_token(&source)
        .map_err(|error| Error::without_token(client.tried(Operation::Logout, ""), error))?;
    own.logout().await
}
