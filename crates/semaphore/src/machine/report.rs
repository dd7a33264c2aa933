//! What was reported of the limit, the record's format and a lock's leader, so that it is reported once.

use super::{Context, Machine};
use crate::SessionId;
use crate::notice::{Leader, Notice};
use crate::record::Form;
use crate::settings::LimitPolicy;
use crate::view::View;

#[derive(Clone, Debug, Default)]
pub(super) struct Reported {
    /// The stored limit that was reported as different from the configured one.
    pub(super) limit: Option<u32>,
    /// Whether a different form of the record was reported.
    form: bool,
    /// The owner of the lock that was reported last.
    leader: Option<SessionId>,
    /// The stored limit that was seen last.
    pub(super) seen_limit: Option<u32>,
}

impl Machine {
    /// Notes the owner of the lock.
    pub(super) fn observe_owner(&mut self, cx: &mut Context<'_>) {
        let Some(single) = self.view().map(View::single).map(Option::<&_>::cloned) else { return };
        let owner = single.as_ref().and_then(|single| single.owner.clone());
        if owner.is_some() {
            self.known.delayed_until = None;
        }
        // An agent that leaves follows no leader any more, and what it has for an instant yet is not its own.
        if !self.state.asks() || owner == self.reported.leader {
            return;
        }
        self.reported.leader.clone_from(&owner);
        let leader = owner.map(|session| Leader {
            mine: cx.remembered == Some(&session),
            who: single.and_then(|single| single.entry).map(|entry| entry.who.shown()),
            session,
        });
        cx.notify(Notice::Leader { name: self.name.clone(), leader });
    }

    /// Reports a limit and a form that are not the configured ones. `blocked`: that will be told next, with the limit where it is the reason.
    pub(super) fn report_limit(&mut self, view: &View, blocked: bool, cx: &mut Context<'_>) {
        let reported = self.reported.limit.take();
        let Some(record) = view.record() else { return };
        let (stored, configured, policy) = (record.limit, self.settings.limit, self.settings.limit_policy);
        let before = self.reported.seen_limit.replace(stored);
        if stored != configured && !self.set_limit && policy != LimitPolicy::Refuse {
            self.reported.limit = Some(stored);
        }
        if self.reported.limit.is_some() && self.reported.limit != reported {
            cx.notify(Notice::LimitDiffers { name: self.name.clone(), policy, stored, configured });
        } else if let Some(from) = before.filter(|before| *before != stored && !blocked) {
            cx.notify(Notice::LimitChanged { name: self.name.clone(), from, to: stored });
        }
        if stored == configured {
            self.set_limit = false;
        }
        // A list that `consul lock -n` finds ends it; so whoever joins a map should make one too where there is none.
        let differs = self.settings.form == Form::List && record.form() == Form::Map;
        if differs && !self.reported.form {
            cx.notify(Notice::FormDiffers { name: self.name.clone() });
        }
        self.reported.form = differs;
    }
}
