//! The operations and the outcomes of requests: the labels of request metrics.

use std::time::Duration;

use super::{AddressNews, Error, Tried};

/// An operation on Consul.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// The creation of a session: `PUT /v1/session/create`.
    SessionCreate,
    /// The renewal of a session: `PUT /v1/session/renew/…`.
    SessionRenew,
    /// The end of a session: `PUT /v1/session/destroy/…`.
    SessionDestroy,
    /// A read of one session: `GET /v1/session/info/…`.
    SessionInfo,
    /// A read of all sessions: `GET /v1/session/list`.
    SessionList,
    /// A read of one key: `GET /v1/kv/…`.
    KvGet,
    /// A read of several keys, by a transaction that only reads.
    KvGetMany,
    /// A read of the keys below a prefix, or of their names alone.
    KvList,
    /// A blocking query of one key or of a prefix.
    KvWatch,
    /// A transaction: `PUT /v1/txn`.
    Txn,
    /// The exchange of a bearer token for a Consul token: `POST /v1/acl/login`.
    Login,
    /// The end of a token from a login: `POST /v1/acl/logout`.
    Logout,
    /// The registration of a catalog node: `PUT /v1/catalog/register`.
    NodeRegister,
    /// The leader's address: `GET /v1/status/leader`.
    Leader,
    /// The addresses of the servers: `GET /v1/status/peers`.
    Peers,
    /// The addressed agent: `GET /v1/agent/self`.
    AgentSelf,
}

impl Operation {
    /// The label's value. Operations that cost Consul the same and need the same right share one, since each value has several
    /// series in every agent.
    pub const fn label(self) -> &'static str {
        match self {
            Self::SessionCreate | Self::SessionDestroy | Self::NodeRegister => "session_write",
            Self::SessionRenew => "session_renew",
            Self::SessionInfo | Self::SessionList => "session_read",
            Self::KvGet => "kv_get",
            Self::KvGetMany => "kv_get_many",
            Self::KvList => "kv_list",
            Self::KvWatch => "kv_watch",
            Self::Txn => "txn",
            Self::Login | Self::Logout => "login",
            Self::Leader | Self::Peers | Self::AgentSelf => "status",
        }
    }

    /// The beginning of an error message: the operation that failed. The object of the operation follows.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::SessionCreate => "cannot create a session called",
            Self::SessionRenew => "cannot renew the session",
            Self::SessionDestroy => "cannot destroy the session",
            Self::SessionInfo => "cannot read the session",
            Self::SessionList => "cannot list the sessions",
            Self::KvGet | Self::KvGetMany => "cannot read",
            Self::KvList => "cannot list",
            Self::KvWatch => "cannot watch",
            Self::Txn => "cannot commit a transaction on",
            Self::Login => "cannot log in by",
            Self::Logout => "cannot log out",
            Self::NodeRegister => "cannot register the catalog node",
            Self::Leader => "cannot ask for the leader",
            Self::Peers => "cannot ask for the servers",
            Self::AgentSelf => "cannot ask the agent about itself",
        }
    }

    /// True if the operation can change Consul's state.
    pub const fn writes(self) -> bool {
        !matches!(
            self,
            Self::SessionInfo
                | Self::SessionList
                | Self::KvGet
                | Self::KvGetMany
                | Self::KvList
                | Self::KvWatch
                | Self::Leader
                | Self::Peers
                | Self::AgentSelf
        )
    }
}

/// The outcome of a request: a status of Consul's, or the reason why none arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// 200.
    Ok,
    /// 400.
    BadRequest,
    /// 403, or an answer with parts hidden from the token.
    Forbidden,
    /// 404: for a key, that it does not exist.
    NotFound,
    /// 409: a transaction was rolled back.
    Conflict,
    /// 413.
    TooLarge,
    /// 429.
    RateLimited,
    /// 500, which is also how Consul says that it has no leader.
    ServerError,
    /// 503.
    Unavailable,
    /// Any other status.
    Other,
    /// No answer in time.
    Timeout,
    /// No connection was made.
    Unreachable,
    /// The connection broke before the answer was complete.
    Interrupted,
    /// A blocking query was cut off after it had waited.
    Cut,
    /// The answer has the status 200 but is longer than [`MAX_ANSWER`](crate::MAX_ANSWER).
    BadAnswer,
}

impl Code {
    /// The label's value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "200",
            Self::BadRequest => "400",
            Self::Forbidden => "403",
            Self::NotFound => "404",
            Self::Conflict => "409",
            Self::TooLarge => "413",
            Self::RateLimited => "429",
            Self::ServerError => "500",
            Self::Unavailable => "503",
            Self::Other => "other",
            Self::Timeout => "timeout",
            Self::Unreachable => "unreachable",
            Self::Interrupted => "interrupted",
            Self::Cut => "cut",
            Self::BadAnswer => "bad_answer",
        }
    }

    /// The code of an HTTP status.
    pub(super) const fn of_status(status: u16) -> Self {
        match status {
            200 => Self::Ok,
            400 => Self::BadRequest,
            403 => Self::Forbidden,
            404 => Self::NotFound,
            409 => Self::Conflict,
            413 => Self::TooLarge,
            429 => Self::RateLimited,
            500 => Self::ServerError,
            503 => Self::Unavailable,
            _ => Self::Other,
        }
    }
}

/// Receives the events of a client: requests that ended, logins, and changes of the address.
///
/// A request whose future was dropped, or that was not sent because there is no token, is not reported. The methods are called on
/// the tasks that send requests, so they must return soon.
pub trait Observer: Send + Sync {
    /// A request ended. `tried`: the operation, its object and the address. `took` includes the time that a blocking query waited.
    fn finished(&self, tried: &Tried, code: Code, took: Duration);

    /// A login by the auth method returned a token. `accessor` is the token's accessor ID, which is not secret.
    fn logged_in(&self, _method: &str, _accessor: &str) {}

    /// A login failed, with another error than the previous one. `has_token`: the client still has an earlier token and sends it.
    fn login_failed(&self, _error: &Error, _has_token: bool) {}

    /// The client uses another address, or refuses an address that does not show the session.
    fn addresses(&self, _news: &AddressNews) {}
}

/// Ignores all events.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unobserved;

impl Observer for Unobserved {
    fn finished(&self, _: &Tried, _: Code, _: Duration) {}
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const OPERATIONS: [Operation; 16] = {
        use Operation::{
            AgentSelf, KvGet, KvGetMany, KvList, KvWatch, Leader, Login, Logout, NodeRegister, Peers,
            SessionCreate, SessionDestroy, SessionInfo, SessionList, SessionRenew, Txn,
        };
        [
            SessionCreate,
            SessionRenew,
            SessionDestroy,
            SessionInfo,
            SessionList,
            KvGet,
            KvGetMany,
            KvList,
            KvWatch,
            Txn,
            Login,
            Logout,
            NodeRegister,
            Leader,
            Peers,
            AgentSelf,
        ]
    };
    const CODES: [Code; 15] = {
        use Code::{
            BadAnswer, BadRequest, Conflict, Cut, Forbidden, Interrupted, NotFound, Ok, Other, RateLimited,
            ServerError, Timeout, TooLarge, Unavailable, Unreachable,
        };
        [
            Ok,
            BadRequest,
            Forbidden,
            NotFound,
            Conflict,
            TooLarge,
            RateLimited,
            ServerError,
            Unavailable,
            Other,
            Timeout,
            Unreachable,
            Interrupted,
            Cut,
            BadAnswer,
        ]
    };

    #[test]
    fn operations_that_share_a_label_cost_the_same() {
        for one in OPERATIONS {
            for other in OPERATIONS.into_iter().filter(|other| other.label() == one.label()) {
                assert_eq!(one.writes(), other.writes(), "{one:?} and {other:?}");
            }
        }
    }

    #[test]
    fn labels_of_codes_are_distinct() {
        let codes: HashSet<_> = CODES.iter().map(|code| code.as_str()).collect();
        assert_eq!(codes.len(), CODES.len());
    }

    #[test]
    fn a_status_has_the_label_of_its_digits() {
        for status in [200, 400, 403, 404, 409, 413, 429, 500, 503] {
            assert_eq!(Code::of_status(status).as_str(), status.to_string());
        }
        assert_eq!(Code::of_status(302), Code::Other);
    }
}
