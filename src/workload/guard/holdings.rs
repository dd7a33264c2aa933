//! What a guard releases if its agent is killed. The agent sends it over their socket and in no other way, since it contains a
//! token.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use slotkeeper_consul::{AddressError, Secret, Settings, Tls, TokenSource};
use slotkeeper_semaphore::Resume;

/// What an agent holds, and how to reach Consul to release it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holdings {
    /// The session, which is destroyed.
    pub(super) session: String,
    /// The prefixes of semaphores that the session holds slots of, or waits for.
    pub(super) semaphores: Vec<String>,
    /// The keys of single-key locks.
    pub(super) locks: Vec<String>,
    /// Whether a lock's key stays when the lock is released (session behaviour `release`).
    pub(super) locks_stay: bool,
    access: Access,
}

/// The settings of a client of Consul.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Access {
    address: String,
    token: Token,
    datacenter: Option<String>,
    namespace: Option<String>,
    partition: Option<String>,
    ca_file: Option<PathBuf>,
    ca_path: Option<PathBuf>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    server_name: Option<String>,
    insecure_skip_verify: bool,
}

/// The token of the requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Token {
    Anonymous,
    Value(#[serde(with = "exposed")] Secret),
    File(PathBuf),
    /// The token of the agent's login, which the guard logs out.
    Login(#[serde(with = "exposed")] Secret),
}

impl Holdings {
    /// The holdings of an agent with these client settings, and the token of its login, if it logs in. `left` is what the agent
    /// would leave behind if it were killed now.
    pub(crate) fn new(settings: &Settings, login: Option<Secret>, left: Resume, locks_stay: bool) -> Self {
        let Tls { ca_file, ca_path, cert_file, key_file, server_name, insecure_skip_verify } =
            settings.tls.clone();
        let token = match (&settings.token, login) {
            (_, Some(token)) => Token::Login(token),
            (Some(TokenSource::Value(token)), None) => Token::Value(token.clone()),
            (Some(TokenSource::File(path)), None) => Token::File(path.clone()),
            // Before the login there is no session either.
            (Some(TokenSource::Login(_)) | None, None) => Token::Anonymous,
        };
        let access = Access {
            address: settings.address.to_string(),
            token,
            datacenter: settings.datacenter.clone(),
            namespace: settings.namespace.clone(),
            partition: settings.partition.clone(),
            ca_file,
            ca_path,
            cert_file,
            key_file,
            server_name,
            insecure_skip_verify,
        };
        Self {
            session: left.session.as_str().to_owned(),
            semaphores: left.prefixes.into_keys().collect(),
            locks: left.locks.into_keys().collect(),
            locks_stay,
            access,
        }
    }

    /// Whether the token is that of a login, and has to be logged out.
    pub(super) fn logs_out(&self) -> bool {
        matches!(self.access.token, Token::Login(_))
    }

    /// The settings of a client of Consul.
    pub(super) fn settings(&self) -> Result<Settings, AddressError> {
        let access = self.access.clone();
        Ok(Settings {
            address: access.address.parse()?,
            token: match access.token {
                Token::Anonymous => None,
                Token::Value(token) | Token::Login(token) => Some(TokenSource::Value(token)),
                Token::File(path) => Some(TokenSource::File(path)),
            },
            datacenter: access.datacenter,
            namespace: access.namespace,
            partition: access.partition,
            // A release needs no long poll.
            max_wait: None,
            tls: Tls {
                ca_file: access.ca_file,
                ca_path: access.ca_path,
                cert_file: access.cert_file,
                key_file: access.key_file,
                server_name: access.server_name,
                insecure_skip_verify: access.insecure_skip_verify,
            },
        })
    }
}

/// A secret on the socket. It is written nowhere else.
mod exposed {
    use serde::{Deserialize, Deserializer, Serializer};

    use slotkeeper_consul::Secret;

    pub(super) fn serialize<S: Serializer>(secret: &Secret, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(secret.expose())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Secret, D::Error> {
        String::deserialize(from).map(Secret::new)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn left() -> Resume {
        Resume {
            session: "s-1".into(),
            prefixes: BTreeMap::from([("p/a".to_owned(), Some(7)), ("p/b".to_owned(), None)]),
            locks: BTreeMap::from([("k/c".to_owned(), None)]),
        }
    }

    #[test]
    fn everything_that_reaches_consul_passes_the_socket_and_no_secret_is_shown() {
        let path = |name: &str| Some(PathBuf::from(name));
        let settings = Settings {
            address: "https://consul.example:8501/below".parse().unwrap(),
            token: Some(TokenSource::Value(Secret::new("hunter2"))),
            datacenter: Some("dc2".into()),
            namespace: Some("team".into()),
            partition: Some("part".into()),
            max_wait: None,
            tls: Tls {
                ca_file: path("/ca"),
                ca_path: path("/cas"),
                cert_file: path("/cert"),
                key_file: path("/key"),
                server_name: Some("server.dc1.consul".into()),
                insecure_skip_verify: true,
            },
        };
        for settings in [
            settings,
            Settings { address: "unix:///run/consul.sock".parse().unwrap(), ..Settings::default() },
            Settings { token: Some(TokenSource::File("/token".into())), ..Settings::default() },
        ] {
            let holdings = Holdings::new(&settings, None, left(), true);
            assert!(!format!("{holdings:?}").contains("hunter2"));
            let line = serde_json::to_string(&holdings).unwrap();
            let read: Holdings = serde_json::from_str(&line).unwrap();
            assert_eq!(read, holdings);
            assert_eq!(read.settings().unwrap(), settings);
            assert!(!read.logs_out() && read.semaphores == ["p/a", "p/b"] && read.locks == ["k/c"]);
        }
    }

    #[test]
    fn a_logins_token_is_ended() {
        let holdings = Holdings::new(&Settings::default(), Some(Secret::new("mine")), left(), false);
        assert!(holdings.logs_out());
        assert_eq!(holdings.settings().unwrap().token, Some(TokenSource::Value(Secret::new("mine"))));
    }
}
