//! The rights of the restricted token.

use hyper::StatusCode;

use super::App;
use super::answer::Refusal;
use super::params::Params;
use crate::options::Restricted;
use crate::store::txn::Op;

/// The rights of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rights<'a> {
    app: &'a App,
    /// `None`: all rights.
    restricted: Option<&'a Restricted>,
}

impl App {
    /// The rights of a request with this token.
    pub(super) fn rights(&self, params: &Params) -> Rights<'_> {
        let restricted = self.options.restricted.as_ref();
        Rights { app: self, restricted: restricted.filter(|one| params.token() == Some(&one.token)) }
    }
}

impl Rights<'_> {
    /// Whether the request may read a key.
    pub(super) fn sees_key(&self, key: &str) -> bool {
        self.hidden_keys().all(|hidden| !key.starts_with(hidden))
    }

    /// Whether the request may read and create sessions.
    pub(super) fn sees_sessions(&self) -> bool {
        self.restricted.is_none_or(|one| !one.hides_sessions)
    }

    /// Refuses the read of a hidden key.
    pub(super) fn read_key(&self, key: &str) -> Result<(), Refusal> {
        if self.sees_key(key) { Ok(()) } else { Err(self.denied("key:read", key)) }
    }

    /// Refuses the write of a hidden key.
    pub(super) fn write_key(&self, key: &str) -> Result<(), Refusal> {
        if self.sees_key(key) { Ok(()) } else { Err(self.denied("key:write", key)) }
    }

    /// Refuses a write below a prefix if a key there is hidden.
    pub(super) fn write_below(&self, prefix: &str) -> Result<(), Refusal> {
        if self.sees_below(prefix) { Ok(()) } else { Err(self.denied("key:write", prefix)) }
    }

    /// Refuses the write of a session if sessions are hidden.
    pub(super) fn write_sessions(&self) -> Result<(), Refusal> {
        if self.sees_sessions() { Ok(()) } else { Err(self.denied("session:write", &self.app.options.node)) }
    }

    /// Why an operation of a transaction is refused. What is read alone is left out of the answer instead.
    pub(super) fn refuses(&self, op: &Op) -> Option<String> {
        let (what, key) = match op {
            Op::Get(_) | Op::GetTree(_) | Op::Refused(_) | Op::Fails(_) => return None,
            Op::CheckSession(key, _) | Op::CheckIndex(key, _) => ("key:read", key),
            Op::Set(write) | Op::Cas(write, _) | Op::Lock(write, _) | Op::Unlock(write, _) => {
                ("key:write", &write.key)
            }
            Op::Delete(key) | Op::DeleteCas(key, _) | Op::CheckNotExists(key) => ("key:write", key),
            Op::DeleteTree(prefix) => {
                return (!self.sees_below(prefix)).then(|| self.app.dialect().denied("key:write", prefix));
            }
        };
        (!self.sees_key(key)).then(|| self.app.dialect().denied(what, key))
    }

    fn sees_below(&self, prefix: &str) -> bool {
        self.hidden_keys().all(|hidden| !prefix.starts_with(hidden) && !hidden.starts_with(prefix))
    }

    fn hidden_keys(&self) -> impl Iterator<Item = &String> {
        self.restricted.into_iter().flat_map(|one| &one.hidden_keys)
    }

    fn denied(&self, what: &str, target: &str) -> Refusal {
        Refusal::Status(StatusCode::FORBIDDEN, self.app.dialect().denied(what, target))
    }
}
