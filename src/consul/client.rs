//! The client: who is asked, with which token, how long, and what is made of the answer.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue};
use reqwest::redirect::Policy;
use tokio::time::Instant;

use super::request::{Answer, Request};
use super::token::{Ready, Token};
use super::{
    Address, Code, Error, Observer, Operation, Settings, TlsError, TokenError, TokenSource, Tried, fault, tls,
};

/// The time that an answer may take, if [`Client::within`] does not say otherwise. Consul itself waits 7 s for a
/// leader before it says that there is none.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest answer that is taken in, in bytes.
pub const MAX_ANSWER: usize = 16 * 1024 * 1024;

/// The longest answer that is looked at where it is a refusal. Of more, the beginning is enough.
const MAX_REFUSAL: usize = 1024 * 1024;

/// A connection that takes longer is not going to be. Less than [`DEFAULT_TIMEOUT`], so that a host which drops
/// packets is known to have got nothing.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

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
    http: reqwest::Client,
    /// Ends in `/v1/`.
    base: Url,
    headers: HeaderMap,
    /// `dc`, `ns`, `partition`.
    scope: Vec<(&'static str, String)>,
    /// For errors.
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
        let (base, pinned) = endpoint(settings)?;
        let mut headers = HeaderMap::new();
        let mut http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls::config(&settings.tls, settings.address.is_https())?)
            .user_agent(concat!("slotkeeper/", env!("CARGO_PKG_VERSION")))
            .no_proxy()
            .redirect(Policy::none())
            .referer(false)
            .http1_only()
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_max_idle_per_host(4)
            .pool_idle_timeout(Duration::from_secs(60))
            .tcp_nodelay(true)
            // A blocking read is silent for minutes; this is how it learns that the other side is gone.
            .tcp_keepalive(Duration::from_secs(15))
            .tcp_keepalive_interval(Duration::from_secs(5))
            .tcp_keepalive_retries(3);
        if let Address::Unix(path) = &settings.address {
            http = http.unix_socket(path.as_path());
        }
        if let Some(pinned) = pinned {
            let authority = format!("{}:{}", pinned.host, pinned.port);
            let authority = HeaderValue::from_str(&authority).map_err(|error| unfit(settings, &error))?;
            headers.insert(HOST, authority);
            http = http.dns_resolver(pinned);
        }
        let http = http.build().map_err(|error| SetupError::Http(describe(&error)))?;
        let scope =
            [("dc", &settings.datacenter), ("ns", &settings.namespace), ("partition", &settings.partition)];
        let scope = scope.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect();
        let token = Arc::new(Token::new(settings.token.as_ref())?);
        let address = settings.address.to_string().into();
        let shared = Shared { http, base, headers, scope, address, observer };
        Ok(Self { shared: Arc::new(shared), token, within: DEFAULT_TIMEOUT })
    }

    /// The same client, whose answers may take `within` and no longer: from the connection to the answer's last byte,
    /// on top of what a blocking read waits. One shorter than the 5 s that a connection may take ends as
    /// [`Error::Timeout`] where a longer one ends as [`Error::Unreachable`].
    #[must_use]
    pub fn within(&self, within: Duration) -> Self {
        Self { within, ..self.clone() }
    }

    /// The same client with another token, such as one that came of a [`login`](Self::login).
    ///
    /// # Errors
    ///
    /// [`TokenError::NotAHeader`].
    pub fn with_token(&self, source: &TokenSource) -> Result<Self, TokenError> {
        Ok(Self { token: Arc::new(Token::new(Some(source))?), ..self.clone() })
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

    /// What was tried, for an error that this client gives before anything is sent.
    pub(super) fn tried(&self, operation: Operation, target: &str) -> Tried {
        Tried { operation, target: target.into(), address: Arc::clone(&self.shared.address) }
    }

    /// Sends `request`, and once more with the token file's new token where the old one was refused. Returns what the
    /// endpoint has as an answer: 200, the 404 of a missing key, the 409 of a transaction.
    pub(super) async fn send(&self, request: Request) -> Result<Answer, Error> {
        let tried = self.tried(request.operation, &request.target);
        let after = self.within.saturating_add(request.waits);
        let Some(until) = Instant::now().checked_add(after) else {
            return Err(Error::BadRequest { tried, said: "the time-out is longer than time itself".into() });
        };
        let token = &self.token;
        let mut used = token.current().map_err(|source| Error::Token { tried: tried.clone(), source })?;
        let mut answer = self.attempt(&request, &tried, used.as_deref(), until, after).await?;
        // A refusal has changed nothing, so asking again is safe.
        if refused(&answer)
            && let Some(newer) = token.instead_of(used.as_deref())
        {
            answer = self.attempt(&request, &tried, Some(&newer), until, after).await?;
            used = Some(newer);
        }
        if accepted(&answer) {
            return Ok(answer);
        }
        let secrets: Vec<_> = used.iter().map(|used| &used.secret).chain(request.secret.as_ref()).collect();
        let said = fault::excerpt(&String::from_utf8_lossy(&answer.body), &secrets);
        Err(fault::of_answer(answer.tried, answer.status, said, || {
            if request.operation == Operation::Login {
                "see the bearer token, the auth method and its binding rules".into()
            } else {
                token.advice()
            }
        }))
    }

    async fn attempt(
        &self,
        request: &Request,
        tried: &Tried,
        token: Option<&Ready>,
        until: Instant,
        after: Duration,
    ) -> Result<Answer, Error> {
        let started = Instant::now();
        // Boxed: the library's futures are large, and callers hold many of these.
        let exchange = Box::pin(self.exchange(request, tried, token));
        let result = match tokio::time::timeout_at(until, exchange).await {
            Ok(result) => result,
            Err(_) => Err(Error::Timeout { tried: tried.clone(), after }),
        };
        let code = result.as_ref().map_or_else(Error::code, |answer| Code::of_status(answer.status));
        self.shared.observer.finished(request.operation, code, started.elapsed());
        result
    }

    async fn exchange(
        &self,
        request: &Request,
        tried: &Tried,
        token: Option<&Ready>,
    ) -> Result<Answer, Error> {
        let shared = &self.shared;
        let refuse = |said: String| Error::BadRequest { tried: tried.clone(), said };
        let mut url = shared.base.join(&request.path).map_err(|error| refuse(error.to_string()))?;
        url.query_pairs_mut().extend_pairs(&shared.scope).extend_pairs(&request.query);
        let mut sent = shared.http.request(request.method.clone(), url).headers(shared.headers.clone());
        if let Some(token) = token {
            sent = sent.header("X-Consul-Token", token.header.clone());
        }
        if let Some(body) = &request.body {
            sent = sent.header(CONTENT_TYPE, "application/json").body(body.clone());
        }
        let sent = sent.build().map_err(|error| refuse(describe(&error)))?;
        let mut response =
            shared.http.execute(sent).await.map_err(|error| fault::of_transport(tried.clone(), &error))?;
        let status = response.status().as_u16();
        if header(&response, "X-Consul-Results-Filtered-By-ACLs") == Some("true") {
            // What is hidden would look as if it did not exist, and its owner as if it were dead.
            let said = "parts of the answer are hidden from this token".into();
            return Err(Error::Denied { tried: tried.clone(), said, advice: self.token.advice() });
        }
        let index = header(&response, "X-Consul-Index").and_then(|index| index.parse().ok());
        let bound = if status == 200 { MAX_ANSWER } else { MAX_REFUSAL };
        let mut body = Vec::new();
        while let Some(chunk) =
            response.chunk().await.map_err(|error| fault::of_transport(tried.clone(), &error))?
        {
            if body.len() + chunk.len() > bound {
                if status == 200 {
                    let why = format!("it is longer than {MAX_ANSWER} bytes");
                    return Err(Error::BadAnswer { tried: tried.clone(), why });
                }
                break;
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Answer { status, index, body, tried: tried.clone() })
    }
}

fn header<'a>(response: &'a reqwest::Response, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}

/// A 404 is the answer "there is no such key" only where Consul itself gives it, which an index proves: a gateway's
/// 404 must not pass for a contender that is gone.
fn accepted(answer: &Answer) -> bool {
    match answer.tried.operation {
        Operation::Txn => matches!(answer.status, 200 | 409),
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

/// True where another token might have been let through. A transaction says so by a rollback.
fn refused(answer: &Answer) -> bool {
    let says = |what: &str| String::from_utf8_lossy(&answer.body).contains(what);
    answer.status == 403 || (answer.status == 409 && (says("Permission denied") || says("ACL not found")))
}

fn describe(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |error| error.source())
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

fn unfit(settings: &Settings, error: &dyn fmt::Display) -> SetupError {
    SetupError::Address(settings.address.to_string(), error.to_string())
}

/// The URL that all requests begin with, and where its host really is if that is not what it says.
fn endpoint(settings: &Settings) -> Result<(Url, Option<Pinned>), SetupError> {
    let address = match &settings.address {
        address @ Address::Http { .. } => address.to_string(),
        // The host is for the header only.
        Address::Unix(_) => "http://localhost".into(),
    };
    let mut base = Url::parse(&format!("{address}/v1/")).map_err(|error| unfit(settings, &error))?;
    let Some(name) = tls::name_to_ask_for(settings) else { return Ok((base, None)) };
    let host = base.host_str().unwrap_or_default().to_owned();
    let port = base.port_or_known_default().unwrap_or(443);
    base.set_host(Some(&name)).map_err(|error| unfit(settings, &error))?;
    Ok((base, Some(Pinned { host, port })))
}

/// Resolves every name to one host: TLS asks for the server's name, TCP goes to the address.
struct Pinned {
    /// IPv6 hosts in brackets.
    host: String,
    port: u16,
}

impl Resolve for Pinned {
    fn resolve(&self, _: Name) -> Resolving {
        let place = (self.host.trim_matches(['[', ']']).to_owned(), self.port);
        Box::pin(async move {
            let found: Vec<SocketAddr> =
                tokio::net::lookup_host((place.0.as_str(), place.1)).await?.collect();
            if found.is_empty() {
                return Err(io::Error::other(format!("{} has no address", place.0)).into());
            }
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}
