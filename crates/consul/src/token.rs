//! ACL tokens and their sources.

use std::fmt::{self, Display};
use std::path::PathBuf;
use std::sync::Arc;

use reqwest::header::HeaderValue;
use tokio::time::Instant;

use super::{Client, Error};

mod file;
mod logins;
mod pace;

use file::TokenFile;
pub use logins::AuthMethod;
use logins::Logins;

/// A text that neither `Debug` nor `Display` shows.
///
/// The time of `==` depends on the texts. Do not check the token of an untrusted client by it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself. It must not reach a log or an error.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// The source of the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenSource {
    /// The token itself. An empty text means no token.
    Value(Secret),
    /// A file. Surrounding white space is ignored. The file is read again at most once a second, and after each refusal. While it
    /// cannot be read, the last valid token is sent.
    File(PathBuf),
    /// A login, at the first request and again when the token is refused or expires: see [`AuthMethod`].
    Login(AuthMethod),
}

/// Why there is no token to send. No variant contains a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The given token, or the token file, cannot be used.
    #[error("{0}")]
    Unusable(String),
    /// The login failed.
    #[error("{0}")]
    Login(Box<Error>),
}

impl TokenError {
    fn unfit(place: impl Display) -> Self {
        Self::Unusable(format!("the token {place} contains characters that no HTTP header can carry"))
    }
}

const GIVEN: &str = "that was given";

/// A token that can be sent.
#[derive(Clone)]
pub(super) struct Ready {
    /// For its removal from texts.
    pub(super) secret: Secret,
    /// Marked sensitive.
    pub(super) header: HeaderValue,
}

impl Ready {
    /// `place`: where the token is from, for the error.
    pub(super) fn new(text: &str, place: impl Display) -> Result<Arc<Self>, TokenError> {
        let mut header = HeaderValue::from_str(text).map_err(|_| TokenError::unfit(place))?;
        header.set_sensitive(true);
        Ok(Arc::new(Self { secret: Secret::new(text), header }))
    }
}

/// The token to send now.
pub(super) enum Token {
    /// No token: the rights of the anonymous token.
    Anonymous,
    /// A token from the settings.
    Fixed(Arc<Ready>),
    /// From a file.
    File(TokenFile),
    /// From logins.
    Login(Arc<Logins>),
}

/// How Consul refuses a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Consul does not know the token.
    Unknown,
    /// The token lacks the right.
    Denied,
}

impl Token {
    pub(super) fn new(source: Option<&TokenSource>) -> Result<Self, TokenError> {
        match source {
            None => Ok(Self::Anonymous),
            Some(TokenSource::Value(secret)) if secret.expose().is_empty() => Ok(Self::Anonymous),
            Some(TokenSource::Value(secret)) => Ok(Self::Fixed(Ready::new(secret.expose(), GIVEN)?)),
            Some(TokenSource::File(path)) => Ok(Self::File(TokenFile::new(path.clone()))),
            Some(TokenSource::Login(method)) => Ok(Self::Login(Arc::new(Logins::new(method.clone())))),
        }
    }

    /// Whether both are from the same file or by the same login.
    pub(super) fn is_got_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File(own), Self::File(theirs)) => own.path() == theirs.path(),
            (Self::Login(own), Self::Login(theirs)) => own.is_by(theirs),
            (Self::Anonymous | Self::Fixed(_) | Self::File(_) | Self::Login(_), _) => false,
        }
    }

    /// The token for a request of `client`.
    pub(super) async fn current(&self, client: &Client) -> Result<Option<Arc<Ready>>, TokenError> {
        match self {
            Self::Anonymous => Ok(None),
            Self::Fixed(ready) => Ok(Some(Arc::clone(ready))),
            Self::File(file) => file.current(Instant::now()).await.map(Some),
            Self::Login(logins) => logins.current(client).await.map(Some),
        }
    }

    /// The current token; it does not log in.
    pub(super) async fn at_hand(&self) -> Option<Arc<Ready>> {
        match self {
            Self::Anonymous => None,
            Self::Fixed(ready) => Some(Arc::clone(ready)),
            Self::File(file) => file.current(Instant::now()).await.ok(),
            Self::Login(logins) => logins.at_hand(),
        }
    }

    /// After a refusal of `used`: another token, if there is one now.
    pub(super) async fn instead_of(
        &self,
        used: Option<&Ready>,
        refusal: Refusal,
        client: &Client,
    ) -> Result<Option<Arc<Ready>>, TokenError> {
        match (self, used) {
            (Self::File(file), used) => {
                let read = file.reread(Instant::now()).await.ok();
                Ok(read.filter(|read| used.map(|used| &used.secret) != Some(&read.secret)))
            }
            (Self::Login(logins), Some(used)) => logins.instead_of(used, refusal, client).await,
            (Self::Anonymous | Self::Fixed(_) | Self::Login(_), _) => Ok(None),
        }
    }

    /// The auth method of the login; empty without one.
    pub(super) fn auth_method(&self) -> &str {
        match self {
            Self::Anonymous | Self::Fixed(_) | Self::File(_) => "",
            Self::Login(logins) => logins.auth_method(),
        }
    }

    /// The source of a refused token and its `fault`, for an error.
    pub(super) fn advice(&self, fault: &str) -> String {
        match self {
            Self::Anonymous => "no token was sent".into(),
            Self::Fixed(_) => format!("the token that was given {fault}"),
            Self::File(file) => match file.failure() {
                None => format!("the token in {} {fault}", file.path().display()),
                Some(error) => format!("the token that was sent is an earlier one, since {error}"),
            },
            Self::Login(logins) => logins.advice(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_shows_nothing() {
        let secret = Secret::new("hunter2");
        assert!(!format!("{secret} {secret:?}").contains("hunter2"));
        let source = TokenSource::Value(secret);
        assert!(!format!("{source:?}").contains("hunter2"));
        let ready = Ready::new("hunter2", GIVEN).unwrap();
        assert!(!format!("{:?}", ready.header).contains("hunter2"));
    }
}
