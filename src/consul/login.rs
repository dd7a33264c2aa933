//! Login by an auth method: a token in exchange for someone else's word, such as Kubernetes'.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::kv::shown;
use super::request::Request;
use super::{Client, Error, Operation, Secret};

/// What a login gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// The token's name, which is not secret.
    pub accessor: String,
    /// The token, for [`Client::with_token`].
    pub secret: Secret,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Word<'a> {
    auth_method: &'a str,
    bearer_token: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    meta: &'a BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Token {
    #[serde(rename = "AccessorID")]
    accessor: String,
    #[serde(rename = "SecretID")]
    secret: String,
}

impl Client {
    /// Exchanges `bearer` for a token, by the auth method `method`. `meta` goes into the token's description.
    ///
    /// # Errors
    ///
    /// [`Error::Denied`] where the bearer token is not believed or no binding rule fits it. Where the outcome is
    /// unknown there may be a token that nobody has; the auth method's `MaxTokenTTL` ends it.
    pub async fn login(
        &self,
        method: &str,
        bearer: &Secret,
        meta: &BTreeMap<String, String>,
    ) -> Result<Login, Error> {
        let refuse =
            |said: String| Error::BadRequest { tried: self.tried(Operation::Login, &shown(method)), said };
        // A mounted token file may end in a newline.
        let bearer = Secret::new(bearer.expose().trim());
        let word = Word { auth_method: method, bearer_token: bearer.expose(), meta };
        let body = serde_json::to_vec(&word).map_err(|error| refuse(error.to_string()))?;
        let request = Request::post(Operation::Login, "acl/login", shown(method)).body(body).hiding(bearer);
        let answer = self.send(request).await?;
        // Not by `Answer::json`, whose words may quote what it found: here, a token.
        match serde_json::from_slice(&answer.body) {
            Ok(Token { accessor, secret }) => Ok(Login { accessor, secret: Secret::new(secret) }),
            Err(_) => Err(Error::BadAnswer { tried: answer.tried, why: "it is no token".into() }),
        }
    }

    /// Ends this client's own token, which must have come of a login.
    ///
    /// # Errors
    ///
    /// As any request's.
    pub async fn logout(&self) -> Result<(), Error> {
        self.send(Request::post(Operation::Logout, "acl/logout", "")).await.map(drop)
    }
}
