//! The rules of a state, and of the step that led to it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{OVERDUE, PROMPT, State};
use crate::model::agent::{Agent, Life, START};
use crate::model::digest::digest;
use crate::model::game::Game;
use crate::rules;
use slotkeeper_semaphore::{Contender, Listing, Moment, Name, Notice, Phase, SessionId, View};

/// The history that the rules need in addition to the state.
#[derive(Clone, Debug, Default)]
pub(super) struct Judge {
    /// The index of the grant of each holder, by semaphore.
    granted: BTreeMap<(Name, SessionId), u64>,
    /// Since when a waiter could have a free slot, or an agent drains.
    pub(super) owed_since: Option<Moment>,
    /// A rule that a step broke.
    pub(super) broken: Option<String>,
    /// Whether an agent waited too long when only timers were left.
    stuck: bool,
    pub(super) step: Step,
}

/// The effect of the last step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Step {
    granted_to_waiter: bool,
    pruned: bool,
    /// By a client that lives, from one that may live.
    withdrawn: bool,
}

impl State {
    /// Records a change in Consul, and checks its rules.
    pub(super) fn changed(&mut self) {
        let view = |name: &str| {
            let Listing { pairs, index, .. } = self.consul.list(name);
            View::new(name, pairs, index)
        };
        let views: Vec<_> = self.views.iter().map(|before| view(before.prefix())).collect();
        for (place, after) in views.iter().enumerate() {
            let before = Arc::clone(&self.views[place]);
            self.keep(rules::order(&*before, after, &|_| false));
            self.note_holders(&before, after);
        }
        let groups = self.agents.iter().filter(|agent| agent.player.together);
        let kept: Vec<_> = groups
            .filter_map(|agent| agent.keeper.session())
            .map(|session| rules::together(&views, session))
            .collect();
        kept.into_iter().for_each(|kept| self.keep(kept));
        self.seen = digest(&views, START);
        self.views = views.into_iter().map(Arc::new).collect();
    }

    /// Checks a served request that acquired a slot for an agent that never waited: it passed no waiter that it knew of.
    pub(super) fn check_newcomer(&mut self, place: usize, before: &[Arc<View>]) {
        let keeper = &self.agents[place].keeper;
        let Some(session) = keeper.session() else { return };
        let kept: Vec<_> = before
            .iter()
            .zip(&self.views)
            .filter(|(before, after)| before.contender(session).is_none() && after.slots_of(session) > 0)
            .filter_map(|(_, after)| Some((keeper.machine(after.prefix())?.view()?, after)))
            .map(|(known, after)| rules::newcomer(known, &**after, session))
            .collect();
        kept.into_iter().for_each(|kept| self.keep(kept));
    }

    fn keep(&mut self, rule: Result<(), String>) {
        if let Err(broken) = rule {
            self.judge.broken.get_or_insert(broken);
        }
    }

    fn note_holders(&mut self, before: &View, after: &View) {
        let name = Name::from(after.prefix());
        let holders = after.record().map(|record| record.holders.as_slice()).unwrap_or_default();
        let Judge { granted, step, .. } = &mut self.judge;
        granted.retain(|(of, holder), _| {
            let stays = *of != name || holders.contains(holder);
            step.pruned |= !stays && before.contender(holder).is_none();
            let waits = after.contender(holder).is_some_and(Contender::is_asked);
            step.withdrawn |= !stays && waits;
            stays
        });
        for holder in holders {
            granted.entry((Name::clone(&name), holder.clone())).or_insert_with(|| {
                step.granted_to_waiter |= before.contender(holder).is_some();
                after.lock_index()
            });
        }
    }

    pub(super) fn check_token(&mut self, notice: &Notice) {
        let Notice::Acquired { name, session, token, .. } = notice else { return };
        // A holder that was removed meanwhile will notice. Every grant moves the index, so a token that is at least the index of
        // its own grant is above the tokens of all earlier holders.
        let granted = self.judge.granted.get(&(Name::clone(name), session.clone())).copied();
        if let Some(granted) = granted.filter(|granted| token < granted) {
            self.keep(Err(format!("{session} acquired its slot at {granted}, not {token}")));
        }
    }

    /// Records whether a waiter could have a free slot, or an agent drains.
    pub(super) fn note_owed(&mut self) {
        let dying = |agent: &Arc<Agent>| match &agent.life {
            Life::Crashed { session: Some(session), .. } => self.consul.has_session(session),
            Life::Crashed { .. } | Life::New | Life::Running | Life::Draining => false,
        };
        let drains = |agent: &Arc<Agent>| agent.life == Life::Draining && agent.is_alive();
        let owed = !self.agents.iter().any(dying) && (self.is_free() || self.agents.iter().any(drains));
        self.judge.owed_since = owed.then(|| self.judge.owed_since.unwrap_or(self.now));
    }

    /// Whether a waiter could acquire a slot: the head of the queue, or an acquire group that is the head of all its queues. If no
    /// slot is held, there is always such a waiter.
    fn is_free(&self) -> bool {
        let live = |view: &View| {
            let holders = view.record().map(|record| record.holders.as_slice()).unwrap_or_default();
            holders.iter().filter(|holder| view.contender(holder).is_some()).count()
        };
        let first = |view: &View| {
            let one = *view.waiters().first()?;
            let entry = one.entry.as_ref()?;
            let limit = view.record().map_or(usize::MAX, |record| record.limit as usize);
            let fits = live(view) + entry.slots as usize <= limit;
            fits.then(|| (one.session.clone(), entry.together.clone()))
        };
        let firsts: BTreeMap<_, _> =
            self.views.iter().filter_map(|view| Some((view.prefix(), first(view)?))).collect();
        let is_first = |session: &SessionId, prefix: &String| {
            firsts.get(prefix.as_str()).is_some_and(|one| one.0 == *session)
        };
        let is_unheld = self.views.iter().all(|view| live(view) == 0);
        firsts
            .values()
            .any(|(session, together)| is_unheld || together.iter().all(|prefix| is_first(session, prefix)))
    }

    /// Checks the time that passed while only timers were left.
    pub(super) fn waited(&mut self, game: &Game) {
        let calm = self.is_calm(game);
        let owed = self.judge.owed_since.map(|since| self.now.since(since));
        self.judge.stuck = owed.is_some_and(|owed| owed > if calm { PROMPT } else { OVERDUE });
    }

    pub(super) fn begin_step(&mut self) {
        self.judge.step = Step::default();
        self.judge.stuck = false;
    }

    /// The hash of the history.
    pub(super) fn judged(&self) -> u64 {
        let owed = self.judge.owed_since.map(|since| self.now.since(since).as_secs());
        digest(&(&self.judge.granted, owed, &self.judge.broken, self.judge.stuck), self.now)
    }

    /// Whether agents consider at most `limit` slots of each semaphore held.
    pub(in crate::model) fn holds_no_more_than(&self, limit: u32) -> bool {
        self.views.iter().all(|view| {
            let holders = self.agents.iter().filter(|agent| agent.holds(view.prefix()));
            holders.map(|agent| agent.player.slots).sum::<u32>() <= limit
        })
    }

    pub(in crate::model) fn lists_no_more_than(&self, limit: u32) -> bool {
        self.views.iter().all(|view| view.record().is_none_or(|record| record.taken() <= limit))
    }

    pub(super) fn has_no_holders(&self) -> bool {
        self.lists_no_more_than(0)
    }

    pub(in crate::model) fn numbers_are_unique(&self) -> bool {
        self.views.iter().all(|view| {
            let holders = self.agents.iter().filter(|agent| agent.holds(view.prefix()));
            let mut held: Vec<u32> = Vec::new();
            for agent in holders {
                if let Some(Phase::Held { indexes, .. }) = agent.phase(view.prefix()) {
                    held.extend(indexes);
                }
            }
            held.sort_unstable();
            rules::numbers(&**view).is_ok() && held.windows(2).all(|pair| pair[0] != pair[1])
        })
    }

    pub(in crate::model) fn is_broken(&self) -> bool {
        self.judge.broken.is_some()
    }

    pub(in crate::model) fn is_stuck(&self) -> bool {
        self.judge.stuck
    }

    /// Whether there was no fault.
    pub(super) fn is_calm(&self, game: &Game) -> bool {
        self.crashes == game.crashes && self.losses == game.losses
    }

    pub(in crate::model) fn is_at_rest(&self, game: &Game) -> bool {
        self.actions(game).is_empty()
    }

    /// Whether all agents have left, and no key and no session remains.
    pub(in crate::model) fn is_clean(&self) -> bool {
        self.agents.iter().all(|agent| !agent.is_alive())
            && self.has_no_holders()
            && self.views.iter().all(|view| view.contenders.is_empty())
            && self.consul.store.sessions().found.is_empty()
    }

    pub(in crate::model) fn granted_to_waiter(&self) -> bool {
        self.judge.step.granted_to_waiter
    }

    pub(in crate::model) fn withdrawn(&self) -> bool {
        self.judge.step.withdrawn
    }

    pub(in crate::model) fn pruned(&self) -> bool {
        self.judge.step.pruned
    }
}
