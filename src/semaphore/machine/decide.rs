//! What a machine makes of what it has seen: it follows the plan, and tells where that leads to.

use super::*;
use crate::semaphore::record::Form;

impl Machine {
    pub(super) fn decide(&mut self, session: &SessionId, cx: &mut Context<'_>) {
        // A doubted view still shows the world what was last seen.
        let due = self.list_at.is_some_and(|at| at <= cx.now);
        let view = match (self.need, self.view.as_ref()) {
            (Some(need @ (Need::Look | Need::Prove)), Some(view)) => {
                return self.look(view.lock_key(), view.latest(), need == Need::Prove, cx);
            }
            (None, Some(_)) if !due => self.view.take(),
            // Only a listing tells that nothing is hidden any more.
            (None, Some(_)) if self.holds() && !self.filtered || self.relies(cx) => {
                let Some(view) = self.view.take() else { return };
                self.confirm(&view, session, cx);
                self.view = Some(view);
                return;
            }
            (None, None) if self.intent == Intent::Hold => return self.come(session, cx),
            (_, _) => None,
        };
        let Some(mut view) = view else { return self.list(cx) };
        self.offers.tell(&mut view, cx.now);
        let wall = cx.wall.text(cx.now);
        if cx.resumed {
            let claim = plan::claim(&view, self.me(session, &wall, cx));
            if self.claims(&view, session, claim, cx) {
                self.view = Some(view);
                return;
            }
        }
        let me = self.me(session, &wall, cx);
        let intent = self.intent;
        match intent {
            Intent::Hold => {
                let plan = plan::hold(&view, me, cx.now);
                self.follow(&view, session, plan, cx);
            }
            Intent::Leave(farewell) => match plan::leave(&view, me, cx.now) {
                Plan { need: Some(Need::List), .. } => self.list(cx),
                Plan { need: Some(need), .. } => {
                    self.look(view.lock_key(), view.latest(), need == Need::Prove, cx);
                }
                Plan { write: Some(write), .. } => self.commit(write, cx),
                Plan { write: None, .. } if self.proved => self.gone(farewell, cx),
                Plan { write: None, .. } => self.list(cx),
            },
            Intent::Rest => {}
        }
        self.view = Some(view);
        self.confirmed = false;
        let keeps = cx.occupied || self.withheld().is_some();
        if intent != self.intent && matches!(self.flight, Flight::None) && !keeps {
            // The plan ended the asking; what is left of us in Consul goes at once.
            self.decide(session, cx);
        }
    }

    /// Comes: by one write where that is enough, else after everything was listed.
    fn come(&mut self, session: &SessionId, cx: &mut Context<'_>) {
        let wall = cx.wall.text(cx.now);
        match plan::join(&self.settings.prefix, self.me(session, &wall, cx)) {
            Some(write) => self.commit(write, cx),
            None => self.list(cx),
        }
    }

    /// Who plans.
    pub(super) fn me<'a>(&'a self, session: &'a SessionId, wall: &'a str, cx: &'a Context<'_>) -> Me<'a> {
        Me {
            session,
            settings: &self.settings,
            who: cx.who,
            wall,
            set_limit: self.set_limit,
            dead_since: &self.dead_since,
            crowded: self.crowded,
            patience: self.patience,
            follows_up: self.follows_up,
            confirmed: self.confirmed,
            free_since: self.free_since,
            stood: self.stood,
            delayed_until: self.hindsight.delayed_until(),
            held: self.slot.as_ref().map(|slot| slot.indexes.as_slice()),
            together: cx.together,
            holds: cx.holds,
            nonce: cx.resumed.then_some(cx.nonce),
        }
    }

    /// Goes by a plan to hold.
    fn follow(&mut self, view: &View, session: &SessionId, plan: Plan, cx: &mut Context<'_>) {
        self.recheck_at = plan.recheck;
        if let Some(owner) = plan.inquire.filter(|owner| self.hindsight.inquires(owner)) {
            cx.out.push_back(Command::ReadDelay { name: self.name.clone(), session: owner });
        }
        if self.stood.0 != plan.role {
            self.stood = (plan.role, cx.now);
            self.list_at = None;
        }
        self.tell_limit(view, matches!(plan.stand, Stand::Blocked(_)), cx);
        if let Stand::Evicted(by) = plan.stand {
            return self.evicted(by, view, session, cx);
        }
        let held = matches!(self.phase, Phase::Held { .. });
        if cx.ending && !held && plan.stand != Stand::Holding {
            return self.depart(Farewell::Released);
        }
        let contender_stands = view.contender(session).is_some();
        self.session_lives &= !contender_stands;
        if held && plan.stand != Stand::Holding {
            // With the contender gone, that the session has ended is the likely cause.
            if !self.proved || !contender_stands && !self.session_lives {
                return self.verify(view, session, cx);
            }
            let in_record =
                view.record().is_some_and(|record| record.slots_of(session) == self.settings.slots);
            let reason =
                if in_record && !contender_stands { LossReason::ContenderGone } else { LossReason::Evicted };
            self.lose(reason, cx);
            if self.intent != Intent::Hold {
                return;
            }
        }
        match plan.stand {
            // A waiter renews less often than a holder: what begins by an old lease would end early in an outage.
            Stand::Holding if !held && !cx.lease_is_fresh() => {
                self.unproved = true;
                self.room_since = self.room_since.or(Some(cx.now));
                return self.watch(plan.watch, cx);
            }
            // The token of what an earlier process was given is not known: it is that of `.lock` as it is by now, or another
            // process of the same session might have told a higher one.
            Stand::Holding if !held && cx.resumed && self.needs_token(cx) => {
                return self.confirm(view, session, cx);
            }
            Stand::Holding if cx.together.is_some() && !held => {
                self.found = true;
                return self.watch(plan.watch, cx);
            }
            Stand::Holding => self.hold(view, session, cx),
            Stand::Apart { room: true } => self.room_since = self.room_since.or(Some(cx.now)),
            // Whether there is room is not known before that is read.
            Stand::Apart { room: false } if self.settings.try_once() && plan.need.is_none() => {
                return self.give_up(cx);
            }
            Stand::Apart { room: false } => self.room_since = None,
            // Seen to above.
            Stand::Evicted(_) => return,
            Stand::Blocked(why) => {
                self.block(why, plan.watch, cx);
                match plan.need.filter(|_| self.intent == Intent::Hold) {
                    Some(Need::List) => return self.list(cx),
                    Some(need) => return self.look(view.lock_key(), view.latest(), need == Need::Prove, cx),
                    None => {}
                }
                if let Some(write) = plan.write.filter(|_| self.intent == Intent::Hold) {
                    self.commit(write, cx);
                }
                return;
            }
        }
        match plan.need {
            Some(need @ (Need::Look | Need::Prove)) => {
                return self.look(view.lock_key(), view.latest(), need == Need::Prove, cx);
            }
            Some(Need::List) => return self.list(cx),
            None => {}
        }
        if plan.write.is_none() && self.write_fails {
            self.write_works(cx);
        }
        match plan.write {
            Some(write) if write.joint => self.offer = Some(write),
            Some(write) if !write.tidy => return self.commit(write, cx),
            Some(write) => match self.tidy_at {
                Some(at) if at <= cx.now => return self.commit(write, cx),
                Some(_) => {}
                None => self.tidy_at = Some(cx.now + jittered(TIDY, 0.9, cx.rng)),
            },
            None => (self.tidy_at, self.follows_up) = (None, false),
        }
        // One that has found free slots and leaves others their time does not wait for a slot yet.
        let finds = self.patience.is_some() && self.room_since.is_some();
        if !finds && !matches!(self.phase, Phase::Held { .. } | Phase::Waiting) {
            self.wait(view, session, cx);
        }
        self.watch(plan.watch, cx);
    }

    /// Watches the keys, and sees to it that everything is listed now and then, whatever they tell.
    pub(super) fn watch(&mut self, keys: Vec<plan::Watch>, cx: &mut Context<'_>) {
        self.watches.want(keys, POLL, &self.name, cx);
        let list = match self.stood.0 {
            Role::Holding if self.holds() => CONFIRM,
            Role::Head | Role::Entering | Role::Holding => half(cx.ttl),
            // Once soon, in case that all whom `.lock` names have died together.
            Role::Behind if self.listed_at.is_none() => cx.ttl * 2,
            Role::Behind => SELDOM,
        };
        let share = if self.stood.0 == Role::Behind { 0.5 } else { 0.3 };
        self.list_at = self.list_at.or_else(|| Some(cx.now + jittered(list, share, cx.rng)));
    }

    /// Before a loss is concluded from what a watch brought: a consistent read of `.lock`, and where the contender key is
    /// missing a look at the session first, which is the likely cause, and then at everything.
    fn verify(&mut self, view: &View, session: &SessionId, cx: &mut Context<'_>) {
        if view.contender(session).is_none() {
            self.check_session = true;
            self.flight = Flight::Checking;
            self.need = Some(Need::List);
        } else {
            self.look(view.lock_key(), view.latest(), true, cx);
        }
    }

    fn needs_token(&self, cx: &Context<'_>) -> bool {
        !self.confirmed && self.token.is_none() && cx.together.is_none() && !self.settings.is_lock()
    }

    pub(super) fn hold(&mut self, view: &View, session: &SessionId, cx: &mut Context<'_>) {
        if matches!(self.phase, Phase::Held { .. }) {
            return;
        }
        // A grant that was seen on our own contender has that index on `.lock` too.
        let contender = view.contender(session);
        let granted = contender.filter(|_| view.was_granted(session)).map(|one| one.modify_index);
        let stored = granted.unwrap_or(view.lock_index());
        // One that an earlier process of ours held has been ours all along: its token still orders us rightly.
        let resumed = self.token.take().filter(|token| *token <= stored);
        let entry = view.entry_of(session);
        let indexes = entry.map(|entry| entry.indexes.clone()).unwrap_or_default();
        let since = resumed.and_then(|_| cx.wall.moment(&entry?.since));
        let (token, since) = (resumed.unwrap_or(stored), since.unwrap_or(cx.now).min(cx.now));
        if let Primitive::Lock { delay, .. } = self.settings.primitive {
            self.hindsight.inquires(session);
            self.hindsight.learn(session, Some(delay));
        }
        self.stopping = None;
        self.phase = Phase::Held { since, token, indexes: indexes.clone() };
        self.slot = Some(Slot { since, session: session.clone(), token, indexes: indexes.clone() });
        let took = cx.now.since(self.asked_at);
        // Whoever was let in by the one that left has seen the release and the grant in one.
        let room_since = self.room_since.take().unwrap_or(cx.now);
        let handoff = self.waited.then(|| cx.now.since(room_since));
        self.waited = false;
        let (name, session) = (self.name.clone(), session.clone());
        cx.tell(Notice::Acquired {
            name,
            session,
            token,
            indexes,
            resumed: resumed.is_some(),
            took,
            handoff,
        });
    }

    fn wait(&mut self, view: &View, session: &SessionId, cx: &mut Context<'_>) {
        self.phase = Phase::Waiting;
        self.waited = true;
        if self.settings.is_lock() {
            // Who has it is told as it is seen, and who else waits nobody knows.
            return;
        }
        let (taken, limit) =
            view.record().map_or((0, self.settings.limit), |record| (record.taken(), record.limit));
        // Of one that is about to come: where it will stand.
        let ahead = view.waiters().into_iter().filter(|one| one.priority() >= self.settings.priority).count();
        let coming = u32::try_from(ahead).unwrap_or(u32::MAX).saturating_add(1);
        let position = view.position(session).unwrap_or(coming);
        cx.tell(Notice::Waiting { name: self.name.clone(), position, taken, limit });
    }

    fn block(&mut self, why: String, keys: Vec<plan::Watch>, cx: &mut Context<'_>) {
        let blocked = Phase::Blocked { why };
        if self.phase != blocked {
            if let Phase::Blocked { why } = &blocked {
                cx.tell(Notice::Blocked { name: self.name.clone(), why: why.clone() });
            }
            self.phase = blocked;
        }
        if self.settings.try_once() {
            return self.give_up(cx);
        }
        self.watch(keys, cx);
    }

    pub(in crate::semaphore) fn lose(&mut self, reason: LossReason, cx: &mut Context<'_>) {
        if self.intent != Intent::Hold {
            // It is being given back: that it is gone already ends the same way.
            return;
        }
        let Some(token) = self.tell_lost(reason, cx) else { return };
        if matches!(reason, LossReason::LeaseExpired | LossReason::WatchFailed) {
            self.need = Some(Need::List);
            self.stopping = Some(token).filter(|_| !cx.occupied);
        }
        match self.settings.on_lost {
            OnLost::Reacquire if !cx.occupied && !cx.ending => self.ask_again(cx.now),
            OnLost::Reacquire | OnLost::Exit => self.depart(Farewell::Lost),
        }
    }

    /// Tells of a loss, if there is anything to lose: its token.
    pub(super) fn tell_lost(&mut self, reason: LossReason, cx: &mut Context<'_>) -> Option<u64> {
        let Slot { since, session, token, indexes } = self.slot.take()?;
        let (name, held) = (self.name.clone(), cx.now.since(since));
        cx.tell(Notice::Lost { name, session, token, indexes, reason, held });
        self.watch_failing_since = None;
        Some(token)
    }

    pub(super) fn give_up(&mut self, cx: &mut Context<'_>) {
        let trouble = self.failing.as_ref().or(cx.trouble).map(|failure| failure.text.clone());
        cx.tell(Notice::GaveUp { name: self.name.clone(), reached: cx.reached, trouble });
        self.depart(Farewell::GaveUp);
    }

    fn gone(&mut self, farewell: Farewell, cx: &mut Context<'_>) {
        if let Some(Slot { since, session, .. }) = self.slot.take() {
            cx.tell(Notice::Released { name: self.name.clone(), session, held: cx.now.since(since) });
        }
        self.stop_watches(cx);
        self.intent = Intent::Rest;
        self.stopping = None;
        self.phase = match farewell {
            Farewell::Again if !cx.ending => return self.ask_again(cx.now),
            Farewell::Released | Farewell::Again => Phase::Released,
            Farewell::GaveUp => Phase::GaveUp,
            Farewell::Lost => Phase::Lost,
        };
    }

    /// Without a session nothing of ours can be in Consul but what is dead already.
    pub(super) fn without_session(&mut self, cx: &mut Context<'_>) {
        match self.intent {
            Intent::Leave(farewell) => self.gone(farewell, cx),
            Intent::Hold => {
                if !matches!(self.phase, Phase::Starting | Phase::Blocked { .. }) {
                    self.phase = Phase::Starting;
                }
            }
            Intent::Rest => {}
        }
    }

    /// `blocked`: that will be told next, with the limit where it is the reason.
    fn tell_limit(&mut self, view: &View, blocked: bool, cx: &mut Context<'_>) {
        let stored = view.record().map(|record| record.limit);
        let before = stored.and_then(|stored| self.seen_limit.replace(stored));
        let governs = !self.set_limit && self.settings.limit_policy != LimitPolicy::Refuse;
        let differs = stored.filter(|stored| *stored != self.settings.limit && governs);
        if let Some(stored) = differs
            && self.told_limit != differs
        {
            let (configured, policy) = (self.settings.limit, self.settings.limit_policy);
            cx.tell(Notice::LimitDiffers { name: self.name.clone(), policy, stored, configured });
        } else if let (Some(from), Some(to)) = (before, stored)
            && from != to
            && !blocked
        {
            cx.tell(Notice::LimitChanged { name: self.name.clone(), from, to });
        }
        self.told_limit = differs;
        if stored == Some(self.settings.limit) {
            self.set_limit = false;
        }
        self.tell_form(view, cx);
    }

    /// A list that `consul lock -n` finds ends it; so whoever joins a map should make one too where there is none.
    fn tell_form(&mut self, view: &View, cx: &mut Context<'_>) {
        let Some(record) = view.record() else { return };
        let differs = self.settings.form == Form::List && record.form() == Form::Map;
        if differs && !self.told_form {
            cx.tell(Notice::FormDiffers { name: self.name.clone() });
        }
        self.told_form = differs;
    }
}
