//! A session that an earlier process created, and that the process may still use: see [`plan::claim`].

use super::{Context, InFlight, Machine};
use crate::command::{Command, Failure, FailureKind, Part};
use crate::plan;
use crate::plan::{Refresh, Write};
use crate::timing::contest;
use crate::view::View;
use crate::{Moment, SessionId};

/// How far a resumed session is known to be this process's alone, by what it has under one prefix or key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Nothing was seen yet.
    Unknown,
    /// The nonce is being written; `again`: it was there before, and was overwritten.
    Writing {
        /// Whether another nonce belongs to a later process.
        again: bool,
    },
    /// The session has no key here that could bear the nonce and tell another process.
    Bare,
    /// The nonce was written. Another process may take the slot for its own until then.
    Settling {
        /// [`contest`] after the write.
        until: Moment,
    },
    /// The session is this process's alone.
    Ours,
}

impl Claim {
    /// When another process has had its time to read the nonce.
    pub(super) fn settles_at(self) -> Option<Moment> {
        match self {
            Self::Settling { until } => Some(until),
            Self::Unknown | Self::Writing { .. } | Self::Bare | Self::Ours => None,
        }
    }
}

impl Machine {
    /// Whether nothing may be decided yet: a key of the session lacks this process's nonce, or another process may still take
    /// the slots for its own.
    pub(super) fn settle_claim(
        &mut self,
        view: &View,
        session: &SessionId,
        claim: Option<Write>,
        cx: &mut Context<'_>,
    ) -> bool {
        let Some(write) = claim else {
            self.claim = match (self.claim, cx.contested) {
                (Claim::Writing { .. }, Some(ttl)) => Claim::Settling { until: cx.now + contest(ttl) },
                (Claim::Settling { until }, _) if cx.now < until => Claim::Settling { until },
                // Until it is known whether the other process was told under another prefix or key.
                (Claim::Unknown | Claim::Bare, Some(_)) => Claim::Bare,
                (Claim::Unknown | Claim::Writing { .. } | Claim::Bare, None)
                | (Claim::Settling { .. } | Claim::Ours, _) => Claim::Ours,
            };
            if self.claim != Claim::Ours {
                self.watch(plan::claimed(view, session), cx);
            }
            return self.claim != Claim::Ours;
        };
        if view.was_granted(session) {
            self.read(Refresh::LockKeyConsistent, view.lock_key(), view.latest(), cx);
            return true;
        }
        let again = match self.claim {
            Claim::Unknown => false,
            Claim::Writing { again } => again,
            Claim::Bare | Claim::Settling { .. } | Claim::Ours => true,
        };
        self.claim = Claim::Writing { again };
        let ops = write.ops.clone();
        // What is found keeps its token: nothing is asked for.
        self.in_flight = InFlight::Committing { write, sent: cx.now };
        cx.out.push_back(Command::Commit { parts: vec![Part { name: self.name.clone(), ops }] });
        true
    }

    /// How far a resumed session is known to be this process's alone.
    pub(crate) fn claim(&self) -> Claim {
        self.claim
    }

    /// Whether it is not known what the session has here, or our nonce cannot be written, since Consul refuses it.
    pub(crate) fn is_refused_claim(&self) -> bool {
        let refuses = |failure: &Failure| match failure.kind {
            FailureKind::Denied
            | FailureKind::InvalidKey
            | FailureKind::NoToken
            | FailureKind::Misconfigured
            | FailureKind::NotConsul
            | FailureKind::Rejected
            | FailureKind::NotFound => true,
            FailureKind::NoLeader
            | FailureKind::Unavailable
            | FailureKind::RateLimited
            | FailureKind::Mismatch
            | FailureKind::Cut => false,
        };
        matches!(self.claim, Claim::Unknown | Claim::Writing { .. })
            && self.failures.current().is_some_and(|failing| refuses(&failing.failure))
    }

    /// The session is this process's alone, or a new one. From here on new slots may be acquired.
    pub(crate) fn contest_is_over(&mut self, now: Moment) {
        if let Some(acquiring) = self.state.acquiring_mut() {
            acquiring.since = now;
        }
    }

    /// Whether a key bears the nonce of a later process, which has taken the session over. True once.
    pub(crate) fn take_displaced(&mut self) -> bool {
        std::mem::take(&mut self.displaced)
    }

    /// Checks whether a later process has written its nonce. A nonce that was there before the own one is an earlier process's.
    /// So is a known nonce that comes late, by a request that was under way when its process was killed.
    pub(super) fn check_nonce(&mut self, cx: &Context<'_>) {
        let own = cx.remembered.zip(self.view.as_ref());
        let nonce = own.and_then(|(session, view)| view.entry_of(session)?.nonce.as_deref());
        let is_present =
            !cx.resumed || !matches!(self.claim, Claim::Unknown | Claim::Writing { again: false });
        let is_known = |nonce: &str| nonce == cx.nonce || cx.past.iter().any(|past| past == nonce);
        self.displaced |= is_present && nonce.is_some_and(|nonce| !is_known(nonce));
    }
}
