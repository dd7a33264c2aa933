//! Login by an auth method: the exchange of a bearer token, such as Kubernetes', for a Consul token.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::kv::shown;
use super::request::Request;
use super::{Client, Error, Operation, Secret};

/// The result of a login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// The token's accessor ID, which is not secret.
    pub accessor: String,
    /// The token, for [`Client::with_token`].
    pub secret: Secret,
    /// The lifetime; `None`: until a logout.
    pub lifetime: Option<Duration>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct LoginBody<'a> {
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
    #[serde(rename = "CreateTime")]
    created: Option<String>,
    #[serde(rename = "ExpirationTime")]
    expires: Option<String>,
}

impl Token {
    /// By the server's own clock, which need not be ours.
    fn lifetime(&self) -> Option<Duration> {
        let [created, expires] = [&self.created, &self.expires].map(|time| instant(time.as_deref()?));
        expires?.checked_sub(created?)
    }
}

/// Seconds and more since 1970, of a time as Go's JSON has it: RFC 3339, in whatever time zone the server is.
fn instant(text: &str) -> Option<Duration> {
    let time = text.get(..19)?;
    let rest = text.get(19..)?;
    let zone = rest.find(['Z', '+', '-'])?;
    let utc = humantime::parse_rfc3339(&format!("{time}{}Z", &rest[..zone])).ok()?;
    let since = utc.duration_since(UNIX_EPOCH).ok()?;
    let (ahead, offset) = match rest[zone..].split_at(1) {
        ("Z", "") => return Some(since),
        (sign, offset) => (sign == "+", offset.split_once(':')?),
    };
    let [hours, minutes] = [offset.0, offset.1].map(|part| part.parse::<u8>().map(u64::from));
    let offset = Duration::from_secs((hours.ok()? * 60 + minutes.ok()?) * 60);
    if ahead { since.checked_sub(offset) } else { since.checked_add(offset) }
}

/// What to do about a refused login, for an error.
pub(super) fn advice(said: &str) -> &'static str {
    if said.contains("ACL support disabled") {
        "this Consul has its ACLs turned off, and no auth method: log in to none there"
    } else if said.contains("ACL not found") {
        "there is no auth method of this name (`consul acl auth-method list`)"
    } else if said.contains("Permission denied") {
        "no binding rule of the auth method fits this bearer token (`consul acl binding-rule list`)"
    } else {
        "the auth method does not believe the bearer token: is it too old, meant for another \
         audience, or another cluster's?"
    }
}

impl Client {
    /// Exchanges `bearer` for a token, by the auth method `method`. `meta` goes into the token's description.
    ///
    /// # Errors
    ///
    /// [`Kind::Denied`](crate::Kind::Denied) if the auth method rejects the bearer token or no binding rule matches it. If the outcome is unknown, Consul
    /// may have created a token; the auth method's `MaxTokenTTL` ends it.
    pub async fn login(
        &self,
        method: &str,
        bearer: &Secret,
        meta: &BTreeMap<String, String>,
    ) -> Result<Login, Error> {
        let refuse = |said: String| Error::refused(self.tried(Operation::Login, &shown(method)), said);
        // A mounted token file may end in a newline.
        let bearer = Secret::new(bearer.expose().trim());
        let body = LoginBody { auth_method: method, bearer_token: bearer.expose(), meta };
        let body = serde_json::to_vec(&body).map_err(|error| refuse(error.to_string()))?;
        let request = Request::post(Operation::Login, "acl/login", shown(method)).body(body).hiding(bearer);
        let answer = self.send(request).await?;
        // Not by `Answer::json`: its error must not describe a body that contains a token.
        match serde_json::from_slice::<Token>(&answer.body) {
            Ok(token) => {
                let lifetime = token.lifetime();
                Ok(Login { accessor: token.accessor, secret: Secret::new(token.secret), lifetime })
            }
            Err(_) => Err(Error::undecodable(answer.tried, "it is not a token")),
        }
    }

    /// Ends this client's own token, which must be from a login. A token that Consul does not know counts as ended.
    ///
    /// # Errors
    ///
    /// As for any request.
    pub async fn logout(&self) -> Result<(), Error> {
        match self.send(Request::post(Operation::Logout, "acl/logout", "")).await {
            Err(error) if error.is_unknown_token() => Ok(()),
            answer => answer.map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lifetime(created: &str, expires: Option<&str>) -> Option<Duration> {
        let token = Token {
            accessor: String::new(),
            secret: String::new(),
            created: Some(created.to_owned()),
            expires: expires.map(str::to_owned),
        };
        token.lifetime()
    }

    #[test]
    fn a_lifetime_is_the_difference_of_two_times_in_any_zone() {
        let minute = Some(Duration::from_secs(60));
        for (created, expires, told) in [
            ("2026-11-21T11:00:00.5Z", "2026-11-21T11:01:00.5Z", minute),
            ("2026-11-21T11:00:00.123456789+02:00", "2026-11-21T09:01:00.123456789Z", minute),
            ("2026-11-20T23:59:30-05:30", "2026-11-21T05:30:30Z", minute),
            ("2026-11-21T11:01:00Z", "2026-11-21T11:00:00Z", None),
            ("yesterday", "2026-11-21T11:00:00Z", None),
            ("2026-11-21T11:00:00", "2026-11-21T11:01:00+x", None),
        ] {
            assert_eq!(lifetime(created, Some(expires)), told, "{created} {expires}");
        }
        assert_eq!(lifetime("2026-11-21T11:00:00Z", None), None);
    }
}
