//! What is asked and how it ended: the labels of the request metrics.

use std::time::Duration;

use super::{AddressNews, Error};

/// What was asked of Consul.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// A new session.
    SessionCreate,
    /// One more TTL for a session.
    SessionRenew,
    /// The end of a session.
    SessionDestroy,
    /// One session.
    SessionInfo,
    /// All sessions.
    SessionList,
    /// One key.
    KvGet,
    /// Several keys, by a transaction that only reads.
    KvGetMany,
    /// The keys under a prefix, or their names alone.
    KvList,
    /// A read of one key or of a prefix that waits for news.
    KvWatch,
    /// A write of one key.
    KvPut,
    /// A removal of one key.
    KvDelete,
    /// A transaction.
    Txn,
    /// A token in exchange for someone else's word.
    Login,
    /// The end of such a token.
    Logout,
    /// The leader's address.
    Leader,
    /// The addresses of the servers.
    Peers,
}

impl Operation {
    /// All of them, so that every series can exist from the start.
    pub const ALL: [Self; 16] = [
        Self::SessionCreate,
        Self::SessionRenew,
        Self::SessionDestroy,
        Self::SessionInfo,
        Self::SessionList,
        Self::KvGet,
        Self::KvGetMany,
        Self::KvList,
        Self::KvWatch,
        Self::KvPut,
        Self::KvDelete,
        Self::Txn,
        Self::Login,
        Self::Logout,
        Self::Leader,
        Self::Peers,
    ];

    /// The label's value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SessionCreate => "session_create",
            Self::SessionRenew => "session_renew",
            Self::SessionDestroy => "session_destroy",
            Self::SessionInfo => "session_info",
            Self::SessionList => "session_list",
            Self::KvGet => "kv_get",
            Self::KvGetMany => "kv_get_many",
            Self::KvList => "kv_list",
            Self::KvWatch => "kv_watch",
            Self::KvPut => "kv_put",
            Self::KvDelete => "kv_delete",
            Self::Txn => "txn",
            Self::Login => "login",
            Self::Logout => "logout",
            Self::Leader => "leader",
            Self::Peers => "peers",
        }
    }

    /// What was to be done, for people; what it was to be done with follows.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::SessionCreate => "cannot create a session called",
            Self::SessionRenew => "cannot renew the session",
            Self::SessionDestroy => "cannot destroy the session",
            Self::SessionInfo => "cannot look at the session",
            Self::SessionList => "cannot list the sessions",
            Self::KvGet | Self::KvGetMany => "cannot read",
            Self::KvList => "cannot list",
            Self::KvWatch => "cannot watch",
            Self::KvPut => "cannot write",
            Self::KvDelete => "cannot delete",
            Self::Txn => "cannot commit a transaction on",
            Self::Login => "cannot log in by",
            Self::Logout => "cannot log out",
            Self::Leader => "cannot ask for the leader",
            Self::Peers => "cannot ask for the servers",
        }
    }

    /// True where Consul's state can be another one afterwards.
    pub const fn writes(self) -> bool {
        match self {
            Self::SessionCreate
            | Self::SessionRenew
            | Self::SessionDestroy
            | Self::KvPut
            | Self::KvDelete
            | Self::Txn
            | Self::Login
            | Self::Logout => true,
            Self::SessionInfo
            | Self::SessionList
            | Self::KvGet
            | Self::KvGetMany
            | Self::KvList
            | Self::KvWatch
            | Self::Leader
            | Self::Peers => false,
        }
    }
}

/// How a request ended: a status that Consul gives, or what came instead of one.
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
    /// No connection.
    Unreachable,
    /// The connection broke before the answer was there.
    Interrupted,
    /// A blocking read that was cut off after it had waited.
    Cut,
    /// An answer of 200 that was too long to take in.
    BadAnswer,
}

impl Code {
    /// All of them, so that every series can exist from the start.
    pub const ALL: [Self; 15] = [
        Self::Ok,
        Self::BadRequest,
        Self::Forbidden,
        Self::NotFound,
        Self::Conflict,
        Self::TooLarge,
        Self::RateLimited,
        Self::ServerError,
        Self::Unavailable,
        Self::Other,
        Self::Timeout,
        Self::Unreachable,
        Self::Interrupted,
        Self::Cut,
        Self::BadAnswer,
    ];

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

    /// The one for an HTTP status.
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

/// Told of every request that ended, and of logins. One whose future was dropped, and one that could not be sent for want of a
/// token, is not counted.
pub trait Observer: Send + Sync {
    /// A request ended. `took` includes the time that a blocking read waited.
    fn finished(&self, operation: Operation, code: Code, took: Duration);

    /// A login by the auth method gave a token. `accessor` is the token's name, which is not secret.
    fn logged_in(&self, _method: &str, _accessor: &str) {}

    /// A login failed, otherwise than the one before it, and no request need tell of it. `serves_on`: there is a token
    /// that still may do something.
    fn not_logged_in(&self, _error: &Error, _serves_on: bool) {}

    /// Another address is used, or one is not used since it may belong to another cluster.
    fn addresses(&self, _news: &AddressNews) {}
}

/// Observes nothing: for commands that serve no metrics.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unobserved;

impl Observer for Unobserved {
    fn finished(&self, _: Operation, _: Code, _: Duration) {}
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn labels_are_distinct() {
        let operations: HashSet<_> = Operation::ALL.iter().map(|operation| operation.as_str()).collect();
        assert_eq!(operations.len(), Operation::ALL.len());
        let codes: HashSet<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(codes.len(), Code::ALL.len());
    }

    #[test]
    fn a_status_has_the_label_of_its_digits() {
        for status in [200, 400, 403, 404, 409, 413, 429, 500, 503] {
            assert_eq!(Code::of_status(status).as_str(), status.to_string());
        }
        assert_eq!(Code::of_status(302), Code::Other);
    }
}
