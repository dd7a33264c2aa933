//! What must be true of a state, and of the step that led to it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{OVERDUE, PROMPT, State};
use crate::model::agent::{Agent, Life, START};
use crate::model::digest::digest;
use crate::model::game::Game;
use crate::rules::{self, Sight};
use slotkeeper_semaphore::{Listing, Moment, Name, Notice, Phase, SessionId, View};

/// What the rules go by beside the state itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Judge {
    /// The index at which each holder was let in, by semaphore.
    granted: BTreeMap<(Name, SessionId), u64>,
    /// Since when somebody waits for a free slot, or to be gone.
    pub(super) owed_since: Option<Moment>,
    /// A rule that a step broke.
    pub(super) broken: Option<String>,
    /// Nothing but the clock was left, and yet somebody waited.
    stuck: bool,
    pub(super) step: Step,
}

/// What the last step did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Step {
    handed_on: bool,
    pruned: bool,
}

impl State {
    /// What stands in Consul has changed.
    pub(super) fn changed(&mut self) {
        let view = |name: &str| {
            let Listing { pairs, index, .. } = self.consul.list(name);
            View::new(name, pairs, index)
        };
        let views: Vec<_> = self.views.iter().map(|before| view(before.prefix())).collect();
        for (place, after) in views.iter().enumerate() {
            let before = Arc::clone(&self.views[place]);
            self.keep(rules::order(&*before, after));
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

    /// An agent's request has been served: if that let it in although it did not stand in line, it went by what it knew.
    pub(super) fn judge_newcomer(&mut self, place: usize, before: &[Arc<View>]) {
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
            stays
        });
        for holder in holders {
            granted.entry((Name::clone(&name), holder.clone())).or_insert_with(|| {
                step.handed_on |= before.contender(holder).is_some();
                after.lock_index()
            });
        }
    }

    pub(super) fn told(&mut self, notice: &Notice) {
        let Notice::Acquired { name, session, token, .. } = notice else { return };
        // One that has been taken out meanwhile will notice. Every grant moves the index, so that a token which is not
        // below the own grant's is above that of whoever was out by then.
        let granted = self.judge.granted.get(&(Name::clone(name), session.clone())).copied();
        if let Some(granted) = granted.filter(|granted| token < granted) {
            self.keep(Err(format!("{session} was let in at {granted}, not {token}")));
        }
    }

    /// Whether somebody of ours waits for a slot that is there, or to be gone.
    pub(super) fn note_owed(&mut self) {
        let dying = |agent: &Arc<Agent>| match &agent.life {
            Life::Crashed { session: Some(session), .. } => self.consul.has_session(session),
            Life::Crashed { .. } | Life::New | Life::Running | Life::Draining => false,
        };
        let drains = |agent: &Arc<Agent>| agent.life == Life::Draining && agent.is_alive();
        let owed = !self.agents.iter().any(dying) && (self.is_free() || self.agents.iter().any(drains));
        self.judge.owed_since = owed.then(|| self.judge.owed_since.unwrap_or(self.now));
    }

    /// Whether somebody could be let in: the first in line, or an acquire group that is the first in all of its lines. Where nobody
    /// holds anything there is always one.
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
        let nobody_holds = self.views.iter().all(|view| live(view) == 0);
        firsts.values().any(|(session, together)| {
            nobody_holds || together.iter().all(|prefix| is_first(session, prefix))
        })
    }

    /// Nothing but the clock was left.
    pub(super) fn waited(&mut self, game: &Game) {
        let calm = self.is_calm(game);
        let owed = self.judge.owed_since.map(|since| self.now.since(since));
        self.judge.stuck = owed.is_some_and(|owed| owed > if calm { PROMPT } else { OVERDUE });
    }

    pub(super) fn begin_step(&mut self) {
        self.judge.step = Step::default();
        self.judge.stuck = false;
    }

    /// What tells it from other states.
    pub(super) fn judged(&self) -> u64 {
        let owed = self.judge.owed_since.map(|since| self.now.since(since).as_secs());
        digest(&(&self.judge.granted, owed, &self.judge.broken, self.judge.stuck), self.now)
    }

    /// Whether no more slots are believed to be held than there are.
    pub(in crate::model) fn believes_no_more_than(&self, limit: u32) -> bool {
        self.views.iter().all(|view| {
            let believers = self.agents.iter().filter(|agent| agent.believes(view.prefix()));
            believers.map(|agent| agent.player.slots).sum::<u32>() <= limit
        })
    }

    pub(in crate::model) fn lists_no_more_than(&self, limit: u32) -> bool {
        self.views.iter().all(|view| view.record().is_none_or(|record| record.taken() <= limit))
    }

    pub(super) fn nobody_is_listed(&self) -> bool {
        self.lists_no_more_than(0)
    }

    pub(in crate::model) fn numbers_are_unique(&self) -> bool {
        self.views.iter().all(|view| {
            let believers = self.agents.iter().filter(|agent| agent.believes(view.prefix()));
            let mut believed: Vec<u32> = Vec::new();
            for agent in believers {
                if let Some(Phase::Held { indexes, .. }) = agent.phase(view.prefix()) {
                    believed.extend(indexes);
                }
            }
            believed.sort_unstable();
            rules::numbers(&**view).is_ok() && believed.windows(2).all(|pair| pair[0] != pair[1])
        })
    }

    pub(in crate::model) fn is_broken(&self) -> bool {
        self.judge.broken.is_some()
    }

    pub(in crate::model) fn is_stuck(&self) -> bool {
        self.judge.stuck
    }

    /// Whether nothing has gone wrong.
    pub(super) fn is_calm(&self, game: &Game) -> bool {
        self.crashes == game.crashes && self.losses == game.losses
    }

    pub(in crate::model) fn is_at_rest(&self, game: &Game) -> bool {
        self.actions(game).is_empty()
    }

    /// Whether everybody is gone and nothing is left.
    pub(in crate::model) fn is_clean(&self) -> bool {
        self.agents.iter().all(|agent| !agent.is_alive())
            && self.nobody_is_listed()
            && self.views.iter().all(|view| view.contenders.is_empty())
            && self.consul.store.sessions().found.is_empty()
    }

    pub(in crate::model) fn handed_on(&self) -> bool {
        self.judge.step.handed_on
    }

    pub(in crate::model) fn pruned(&self) -> bool {
        self.judge.step.pruned
    }
}
