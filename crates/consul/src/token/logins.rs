//! The token that comes of a login: when to log in, and which token to send meanwhile.
//!
//! It is logged in at the first request, and anew when Consul refuses the token, when the bearer token's file changes and
//! before the token expires. There is one login at a time, whatever waits for it, and another one beside it only where it
//! gets no answer; the token before it serves on where it can, and is ended once its successor is there.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Notify, OwnedMutexGuard};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use super::file::TokenFile;
use super::pace::Pace;
use super::{Ready, Refusal, Secret, TokenError, TokenSource};
use crate::{Client, DEFAULT_TIMEOUT, Error, Login, Operation};

/// The share of its life after which a token is replaced: from here on, and within so much. What began together does not
/// go on together.
const LIFE: (f64, f64) = (0.7, 0.15);

/// How long a login is waited for before another one is sent beside it, give or take a quarter; doubled by each. A
/// connection that has gone dead so leaves time for another login within a short lease, and within a drain; a Consul that
/// has to ask elsewhere whether to believe us still has as long as any request.
const ALONE: Duration = Duration::from_secs(2);

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
pub(crate) struct Logins {
    method: AuthMethod,
    bearer: TokenFile,
    kept: Mutex<Kept>,
    /// Whoever has it logs in, nobody else.
    turn: Arc<tokio::sync::Mutex<Turn>>,
    /// Another token is sent.
    changed: Notify,
}

#[derive(Default)]
struct Kept {
    held: Option<Arc<Held>>,
    /// It was logged out for good.
    over: bool,
    /// They end tokens that nobody sends any more.
    farewells: JoinSet<()>,
}

impl Kept {
    fn bid(&mut self, farewell: impl Future<Output = ()> + Send + 'static) {
        // Those that are done need not be kept.
        while self.farewells.try_join_next().is_some() {}
        self.farewells.spawn(farewell);
    }
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

    /// The token that is sent now, if there is one, to send it.
    pub(super) fn at_hand(&self) -> Option<Arc<Ready>> {
        self.held().map(|held| Arc::clone(&held.token))
    }

    /// The token that is sent now, if there is one.
    pub(crate) fn token(&self) -> Option<Secret> {
        self.held().map(|held| held.token.secret.clone())
    }

    /// Waits until another token is sent, for one who waits. May be dropped and called again.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Whether these are logins by the same auth method with the same word.
    pub(crate) fn is_by(&self, other: &Self) -> bool {
        self.method == other.method
    }

    /// The token for a request: the one that there is, or one of a login, for which the request waits.
    pub(super) async fn current(self: &Arc<Self>, client: &Client) -> Result<Arc<Ready>, TokenError> {
        let Some(held) = self.held() else {
            let turn = self.turn().await;
            return match self.held() {
                Some(held) => Ok(Arc::clone(&held.token)),
                None => self.log_in(client, turn, None).await,
            };
        };
        let now = Instant::now();
        // Nobody waits for this one: the old token serves until the new one is there, and if none is to be had.
        if self.is_old(&held, now).await
            && let Ok(turn) = Arc::clone(&self.turn).try_lock_owned()
            && !self.is_over()
            && turn.pace.may_try(false, now)
        {
            tokio::spawn(Arc::clone(self).exchange(client.clone(), turn, None));
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
        if self.is_over()
            || !turn.pace.may_replace(refusal, now)
            || !(needed || turn.pace.may_try(false, now))
        {
            return Ok(None);
        }
        self.log_in(client, turn, Some(refusal)).await.map(Some)
    }

    /// Ends the token for good: nobody logs in after it. A login that is under way and what ends older tokens are waited
    /// for beside it, as long as this client waits for an answer.
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
            move |_| Error::Timeout { tried, after: within }
        };
        let others = async {
            let until = Instant::now() + within;
            let turn = timeout_at(until, self.turn()).await;
            drop(turn.map_err(late(Operation::Login, &self.method.name))?);
            let mut farewells = self.keep(|kept| std::mem::take(&mut kept.farewells));
            let all = async { while farewells.join_next().await.is_some() {} };
            timeout_at(until, all).await.map_err(late(Operation::Logout, ""))
        };
        let (own, others) = tokio::join!(own, others);
        own.and(others)
    }

    /// Where the token comes from and what to do about one that was refused, for people.
    pub(super) fn advice(&self) -> String {
        format!(
            "the token came of a login by the auth method {}: see the policies that its binding rules give, and whether the \
             token was deleted",
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
        // A file that cannot be read is no other word.
        let changed = self.bearer.current(now).await.is_ok_and(|bearer| bearer.secret != held.bearer);
        changed || held.replace_at.is_some_and(|at| at <= now)
    }

    /// Logs in, unless it is too soon after one that failed. Goes on where the caller does not wait for it any more: the
    /// token would be nobody's.
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
            // The runtime ends, and so do we.
            Err(_) => std::future::pending().await,
        }
    }

    fn over(&self, client: &Client) -> Error {
        let tried = client.tried(Operation::Login, &self.method.name);
        Error::BadRequest { tried, said: "this client has logged out for good".into() }
    }

    /// Boxed: a login is a request like the one that waits for it. `refused`: how the token before it was.
    fn exchange(
        self: Arc<Self>,
        client: Client,
        mut turn: Turned,
        refused: Option<Refusal>,
    ) -> BoxFuture<'static, Result<Arc<Ready>, Error>> {
        Box::pin(async move {
            // As long as a login may take, and not as the request that happens to be the first to want it.
            let client = client.within(DEFAULT_TIMEOUT);
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
                    // What is no news is not told again, and the first to want a token tell themselves why there is none.
                    if before.as_ref() != Some(&error) && (before.is_some() || has_token) {
                        let serves_on = has_token && refused != Some(Refusal::Unknown);
                        client.observer().not_logged_in(&error, serves_on);
                    }
                    Err(error)
                }
            }
        })
    }

    /// The token of the login that first gives one. Those that are answered later give theirs back.
    async fn ask(self: &Arc<Self>, client: &Client) -> Result<Held, Error> {
        let once = || Arc::clone(self).ask_once(client.clone());
        let mut asked = FuturesUnordered::from_iter([once()]);
        let mut alone = ALONE.mul_f64(0.75 + fastrand::f64() / 2.0);
        let mut silence = pin!(sleep(alone));
        loop {
            tokio::select! {
                Some(answer) = asked.next() => {
                    if asked.is_empty() {
                        return answer;
                    }
                    // Another one may still be believed: what fails is the last one's to tell.
                    if answer.is_ok() {
                        self.keep(|kept| kept.bid(give_back(client.clone(), asked)));
                        return answer;
                    }
                }
                () = &mut silence => {
                    alone *= 2;
                    silence.set(sleep(alone));
                    // Nobody logs in after the end, which may have come meanwhile.
                    if !self.is_over() {
                        asked.push(once());
                    }
                }
            }
        }
    }

    async fn ask_once(self: Arc<Self>, client: Client) -> Result<Held, Error> {
        let AuthMethod { name, meta, .. } = &self.method;
        let nothing_sent = |source| Error::Token { tried: client.tried(Operation::Login, name), source };
        let sent = Instant::now();
        let bearer = self.bearer.reread(sent).await.map_err(nothing_sent)?.secret.clone();
        let Login { accessor, secret, lifetime } = client.anonymous().login(name, &bearer, meta).await?;
        client.observer().logged_in(name, &accessor);
        let token = Ready::new(secret.expose(), None).map_err(nothing_sent)?;
        let share = LIFE.0 + LIFE.1 * fastrand::f64();
        let life = |lifetime: Duration| sent.checked_add(lifetime.mul_f64(share));
        Ok(Held { token, bearer, replace_at: lifetime.and_then(life) })
    }

    /// Has the token sent, and the one before it ended: nobody waits for that but who logs out for good. Requests under
    /// way with the old token are sent again with the new one. What cannot be ended now ends by its MaxTokenTTL.
    fn send_from_now_on(&self, client: &Client, held: Held) -> Result<Arc<Ready>, Error> {
        let token = Arc::clone(&held.token);
        let sent = self.keep(|kept| {
            let useless = if kept.over { Some(Arc::new(held)) } else { kept.held.replace(Arc::new(held)) };
            if let Some(useless) = useless {
                let client = client.clone();
                kept.bid(async move {
                    let _ = log_out(&client, &useless.token).await;
                });
            }
            if kept.over { Err(self.over(client)) } else { Ok(token) }
        });
        self.changed.notify_one();
        sent
    }
}

/// Ends the tokens of logins that are answered late.
async fn give_back(
    client: Client,
    mut late: FuturesUnordered<impl Future<Output = Result<Held, Error>> + Send + 'static>,
) {
    while let Some(answer) = late.next().await {
        if let Ok(held) = answer {
            let _ = log_out(&client, &held.token).await;
        }
    }
}

async fn log_out(client: &Client, token: &Ready) -> Result<(), Error> {
    let source = TokenSource::Value(token.secret.clone());
    let own = client
        .with_token(&source)
        .map_err(|source| Error::Token { tried: client.tried(Operation::Logout, ""), source })?;
    own.logout().await
}
