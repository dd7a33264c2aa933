//! The token that comes of a login: when to log in, and which token to send meanwhile.
//!
//! It is logged in at the first request, and anew when Consul refuses the token, when the bearer token's file changes and
//! before the token expires. There is one login at a time, whatever waits for it; the token before it serves on where it
//! can, and is ended once its successor is there.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use super::file::TokenFile;
use super::pace::Pace;
use super::{Ready, Refusal, Secret, TokenError, TokenSource};
use crate::consul::{Client, DEFAULT_TIMEOUT, Error, Login, Operation};

/// The share of its life after which a token is replaced.
const LIFE: f64 = 0.8;

/// An auth method, and the word of somebody else's that it takes for ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthMethod {
    /// Its name in Consul.
    pub name: String,
    /// The file with the bearer token. It is read at each login, and a login follows when it changes.
    pub bearer_token_file: PathBuf,
    /// What the token's description is to say of its owner.
    pub meta: BTreeMap<String, String>,
}

/// What the logins by one auth method have given.
pub(in crate::consul) struct Logins {
    method: AuthMethod,
    bearer: TokenFile,
    held: Mutex<Option<Arc<Held>>>,
    /// Whoever has it logs in or out, nobody else.
    turn: Arc<tokio::sync::Mutex<Turn>>,
}

/// A token that is sent.
struct Held {
    token: Arc<Ready>,
    /// In exchange for this bearer token.
    bearer: Secret,
    replace_at: Option<Instant>,
}

#[derive(Default)]
struct Turn {
    pace: Pace,
    /// Why the last login failed.
    failed: Option<Error>,
    /// It was logged out for good.
    over: bool,
}

type Turned = OwnedMutexGuard<Turn>;

impl Logins {
    pub(super) fn new(method: AuthMethod) -> Self {
        let bearer = TokenFile::new(method.bearer_token_file.clone());
        Self { method, bearer, held: Mutex::default(), turn: Arc::default() }
    }

    pub(super) fn auth_method(&self) -> &str {
        &self.method.name
    }

    /// Whether these are logins by the same auth method with the same word.
    pub(in crate::consul) fn is_by(&self, other: &Self) -> bool {
        self.method == other.method
    }

    /// The token for a request: the one that there is, or one of a login, for which the request waits.
    pub(super) async fn current(self: &Arc<Self>, client: &Client) -> Result<Arc<Ready>, TokenError> {
        let Some(held) = self.held() else {
            let turn = self.turn().await;
            return match self.held() {
                Some(held) => Ok(Arc::clone(&held.token)),
                None => self.log_in(client, turn, false).await,
            };
        };
        let now = Instant::now();
        // Nobody waits for this one: the old token serves until the new one is there, and if none is to be had.
        if self.is_old(&held, now)
            && let Ok(turn) = Arc::clone(&self.turn).try_lock_owned()
            && !turn.over
            && turn.pace.may_try(false, now)
        {
            tokio::spawn(Arc::clone(self).exchange(client.clone(), turn, false));
        }
        Ok(Arc::clone(&held.token))
    }

    /// After a refusal of `used`: the token of another login, be it somebody else's; none where it is too soon for one.
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
        if turn.over || !turn.pace.may_replace(refusal, now) || !(needed || turn.pace.may_try(false, now)) {
            return Ok(None);
        }
        match (self.log_in(client, turn, true).await, refusal) {
            (Ok(token), _) => Ok(Some(token)),
            // What was denied says more than why it was not asked for again.
            (Err(_), Refusal::Denied) => Ok(None),
            (Err(error), Refusal::Unknown) => Err(error),
        }
    }

    /// Ends the token for good: nobody logs in after it.
    pub(in crate::consul) async fn end(&self, client: &Client) -> Result<(), Error> {
        let mut turn = self.turn().await;
        turn.over = true;
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        match held {
            Some(held) => log_out(client, &held.token).await,
            None => Ok(()),
        }
    }

    /// Where the token comes from and what to do about one that was refused, for people.
    pub(super) fn advice(&self) -> String {
        format!(
            "the token came of a login by the auth method {}: see the policies that its binding rules give, and whether the \
             token was deleted",
            self.method.name
        )
    }

    fn held(&self) -> Option<Arc<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn turn(&self) -> Turned {
        Arc::clone(&self.turn).lock_owned().await
    }

    fn is_old(&self, held: &Held, now: Instant) -> bool {
        // A file that cannot be read is no other word.
        let changed = self.bearer.current(now).is_ok_and(|bearer| bearer.secret != held.bearer);
        changed || held.replace_at.is_some_and(|at| at <= now)
    }

    /// Logs in, unless it is too soon after one that failed. Goes on where the caller does not wait for it any more: the
    /// token would be nobody's.
    async fn log_in(
        self: &Arc<Self>,
        client: &Client,
        turn: Turned,
        refused: bool,
    ) -> Result<Arc<Ready>, TokenError> {
        if turn.over {
            let said = "this client has logged out for good".into();
            let tried = client.tried(Operation::Login, &self.method.name);
            return Err(TokenError::Login(Box::new(Error::BadRequest { tried, said })));
        }
        if let Some(failed) = turn.failed.as_ref().filter(|_| !turn.pace.may_try(true, Instant::now())) {
            return Err(TokenError::Login(Box::new(failed.clone())));
        }
        let exchange = tokio::spawn(Arc::clone(self).exchange(client.clone(), turn, refused));
        match exchange.await {
            Ok(exchanged) => exchanged.map_err(|error| TokenError::Login(Box::new(error))),
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The runtime ends, and so do we.
            Err(_) => std::future::pending().await,
        }
    }

    /// Boxed: a login is a request like the one that waits for it.
    fn exchange(
        self: Arc<Self>,
        client: Client,
        mut turn: Turned,
        refused: bool,
    ) -> BoxFuture<'static, Result<Arc<Ready>, Error>> {
        Box::pin(async move {
            // As long as a login may take, and not as the request that happens to be the first to want it.
            let client = client.within(DEFAULT_TIMEOUT);
            let asked = self.ask(&client).await;
            let (now, share) = (Instant::now(), fastrand::f64());
            let held = match asked {
                Ok(held) => Arc::new(held),
                Err(error) => {
                    // Otherwise those who wait tell it.
                    if !refused && turn.failed.is_none() && self.held().is_some() {
                        client.observer().not_logged_in_again(&error);
                    }
                    turn.pace.failed(now, share);
                    turn.failed = Some(error.clone());
                    return Err(error);
                }
            };
            turn.pace.succeeded(refused, now, share);
            turn.failed = None;
            let token = Arc::clone(&held.token);
            let before = self.held.lock().unwrap_or_else(PoisonError::into_inner).replace(held);
            if let Some(before) = before {
                // In a task of its own, so that nobody waits for it but who logs in next, or out. Requests under way with
                // the old token are sent again with the new one. What cannot be ended now ends by its MaxTokenTTL.
                tokio::spawn(async move {
                    let _ = log_out(&client, &before.token).await;
                    drop(turn);
                });
            }
            Ok(token)
        })
    }

    async fn ask(&self, client: &Client) -> Result<Held, Error> {
        let AuthMethod { name, meta, .. } = &self.method;
        let nothing_sent = |source| Error::Token { tried: client.tried(Operation::Login, name), source };
        let sent = Instant::now();
        let bearer = self.bearer.reread(sent).map_err(nothing_sent)?.secret.clone();
        let Login { accessor, secret, lifetime } = client.anonymous().login(name, &bearer, meta).await?;
        client.observer().logged_in(name, &accessor);
        let token = Ready::new(secret.expose(), None).map_err(nothing_sent)?;
        let life = |lifetime: Duration| sent.checked_add(lifetime.mul_f64(LIFE));
        Ok(Held { token, bearer, replace_at: lifetime.and_then(life) })
    }
}

async fn log_out(client: &Client, token: &Ready) -> Result<(), Error> {
    let source = TokenSource::Value(token.secret.clone());
    let own = client
        .with_token(&source)
        .map_err(|source| Error::Token { tried: client.tried(Operation::Logout, ""), source })?;
    own.logout().await
}
