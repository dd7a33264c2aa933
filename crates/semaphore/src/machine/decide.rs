//! What a machine makes of what it has seen: it follows the plan, and tells where that leads to.

use super::*;

impl Machine {
    pub(super) fn decide(&mut self, session: &SessionId, cx: &mut Context<'_>) {
        // A doubted view still shows the world what was last seen.
        let due = self.timers.is_due(Timer::Read, cx.now);
        let view = match (self.need, self.view.as_ref()) {
            (Some(need @ (Need::Look | Need::Prove)), Some(view)) => {
                return self.look(view.lock_key(), view.latest(), need == Need::Prove, cx);
            }
            (None, Some(_)) if !due => self.view.take(),
            // Only a listing tells that nothing is hidden any more.
            (None, Some(_)) if self.confirms(cx) => {
                let Some(view) = self.view.take() else { return };
                self.confirm(&view, session, cx);
                self.view = Some(view);
                return;
            }
            (None, None) if self.intent() == Intent::Hold => return self.come(session, cx),
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
        let intent = self.intent();
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
        if intent != self.intent() && matches!(self.flight, Flight::None) && !keeps {
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
            patience: self.timers.at(Timer::Patience),
            follows_up: self.follows_up,
            confirmed: self.confirmed,
            free_since: self.free_since,
            stood: self.stood,
            delayed_until: self.hindsight.delayed_until(),
            held: self.stay.slot().map(|slot| slot.indexes.as_slice()),
            together: cx.together,
            holds: cx.holds,
            nonce: cx.resumed.then_some(cx.nonce),
        }
    }

    /// Goes by a plan to hold.
    fn follow(&mut self, view: &View, session: &SessionId, plan: Plan, cx: &mut Context<'_>) {
        self.timers.set(Timer::Recheck, plan.recheck);
        if let Some(owner) = plan.inquire.filter(|owner| self.hindsight.inquires(owner)) {
            cx.out.push_back(Command::ReadDelay { name: self.name.clone(), session: owner });
        }
        if self.stood.0 != plan.role {
            self.stood = (plan.role, cx.now);
            self.timers.clear(Timer::Read);
        }
        self.tell_limit(view, matches!(plan.stand, Stand::Blocked(_)), cx);
        if let Stand::Evicted(by) = plan.stand {
            return self.evicted(by, view, session, cx);
        }
        let held = self.holds();
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
            if self.intent() != Intent::Hold {
                return;
            }
        }
        match plan.stand {
            // A waiter renews less often than a holder: what begins by an old lease would end early in an outage.
            Stand::Holding if !held && !cx.lease_is_fresh() => {
                self.finds(Finds::SlotsUnproved);
                self.finds_room(cx.now);
                return self.watch(plan.watch, cx);
            }
            // The token of what an earlier process was given is not known: it is that of `.lock` as it is by now, or another
            // process of the same session might have told a higher one.
            Stand::Holding if !held && cx.resumed && self.needs_token(cx) => {
                return self.confirm(view, session, cx);
            }
            Stand::Holding if cx.together.is_some() && !held => {
                self.finds(Finds::Slots);
                return self.watch(plan.watch, cx);
            }
            Stand::Holding => self.hold(view, session, cx),
            Stand::Apart { room: true } => self.finds_room(cx.now),
            // Whether there is room is not known before that is read.
            Stand::Apart { room: false } if self.settings.try_once() && plan.need.is_none() => {
                return self.give_up(cx);
            }
            Stand::Apart { room: false } => {
                if let Some(asking) = self.stay.asking_mut() {
                    asking.room_since = None;
                }
            }
            // Seen to above.
            Stand::Evicted(_) => return,
            Stand::Blocked(why) => {
                self.block(why, plan.watch, cx);
                match plan.need.filter(|_| self.intent() == Intent::Hold) {
                    Some(Need::List) => return self.list(cx),
                    Some(need) => return self.look(view.lock_key(), view.latest(), need == Need::Prove, cx),
                    None => {}
                }
                if let Some(write) = plan.write.filter(|_| self.intent() == Intent::Hold) {
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
        if plan.write.is_none() && self.trouble.is_of_writes() {
            self.write_works(cx);
        }
        match plan.write {
            Some(write) if write.joint => self.finds(Finds::Offer(write)),
            Some(write) if !write.tidy => return self.commit(write, cx),
            Some(write) => match self.timers.at(Timer::Tidy) {
                Some(at) if at <= cx.now => return self.commit(write, cx),
                Some(_) => {}
                None => self.timers.set(Timer::Tidy, cx.now + jittered(TIDY, 0.9, cx.rng)),
            },
            None => {
                self.timers.clear(Timer::Tidy);
                self.follows_up = false;
            }
        }
        // One that has found free slots and leaves others their time does not wait for a slot yet.
        let patient = self.timers.is_set(Timer::Patience);
        let told =
            |asking: &Asking| asking.keeps_out == KeepsOut::Others || patient && asking.room_since.is_some();
        if self.stay.asking().is_some_and(|asking| !told(asking)) {
            self.wait(view, session, cx);
        }
        self.watch(plan.watch, cx);
    }

    /// Watches the keys, and sees to it that everything is listed now and then, whatever they tell.
    pub(super) fn watch(&mut self, keys: Vec<plan::Watch>, cx: &mut Context<'_>) {
        self.watches.want(keys, POLL, &self.name, cx);
        let list = match self.stood.0 {
            // Of a lock there is nothing that could be read together with others.
            Role::Holding if self.holds() && self.settings.is_lock() => rounds::CONFIRM,
            Role::Holding if self.holds() => {
                return self.timers.set_once(Timer::Read, || rounds::next(cx.who, cx.now));
            }
            Role::Head | Role::Entering | Role::Holding => half(cx.ttl),
            // Once soon, in case that all whom `.lock` names have died together.
            Role::Behind if self.listed_at.is_none() => cx.ttl * 2,
            Role::Behind if self.relies(cx) => SELDOM.min(cx.ttl * 8),
            Role::Behind => SELDOM,
        };
        let share = if self.stood.0 == Role::Behind { 0.5 } else { 0.3 };
        self.timers.set_once(Timer::Read, || cx.now + jittered(list, share, cx.rng));
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
        let Some(Asking { since: asked_at, room_since, waited, .. }) = self.stay.asking().cloned() else {
            return;
        };
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
        self.timers.clear(Timer::Patience);
        self.stopping = None;
        // Its watch begins anew.
        self.watch_failing_since = None;
        self.stay = Stay::Held(Slot { since, session: session.clone(), token, indexes: indexes.clone() });
        let took = cx.now.since(asked_at);
        // Whoever was let in by the one that left has seen the release and the grant in one.
        let handoff = waited.then(|| cx.now.since(room_since.unwrap_or(cx.now)));
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
        if let Some(asking) = self.stay.asking_mut() {
            asking.keeps_out = KeepsOut::Others;
            asking.waited = true;
        }
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
        let fault = KeepsOut::Fault(why.clone());
        if let Some(asking) = self.stay.asking_mut().filter(|asking| asking.keeps_out != fault) {
            asking.keeps_out = fault;
            cx.tell(Notice::Blocked { name: self.name.clone(), why });
        }
        if self.settings.try_once() {
            return self.give_up(cx);
        }
        self.watch(keys, cx);
    }

    pub(crate) fn lose(&mut self, reason: LossReason, cx: &mut Context<'_>) {
        if self.intent() != Intent::Hold {
            // It is being given back: that it is gone already ends the same way.
            return;
        }
        let Some(slot) = self.stay.take_slot(cx.now) else { return };
        let token = self.tell_lost(slot, reason, cx);
        if matches!(reason, LossReason::LeaseExpired | LossReason::WatchFailed) {
            self.need = Some(Need::List);
            self.stopping = Some(token).filter(|_| !cx.occupied);
        }
        match self.settings.on_lost {
            OnLost::Reacquire if !cx.occupied && !cx.ending => self.ask_again(cx.now),
            OnLost::Reacquire | OnLost::Exit => self.depart(Farewell::Lost),
        }
    }

    /// Tells of the loss of a slot: its token.
    pub(super) fn tell_lost(&mut self, slot: Slot, reason: LossReason, cx: &mut Context<'_>) -> u64 {
        let Slot { since, session, token, indexes } = slot;
        let (name, held) = (self.name.clone(), cx.now.since(since));
        cx.tell(Notice::Lost { name, session, token, indexes, reason, held });
        self.watch_failing_since = None;
        token
    }

    pub(super) fn give_up(&mut self, cx: &mut Context<'_>) {
        let trouble = self.trouble.failure().or(cx.trouble).map(|failure| failure.text.clone());
        cx.tell(Notice::GaveUp { name: self.name.clone(), reached: cx.reached, trouble });
        self.depart(Farewell::GaveUp);
    }

    fn gone(&mut self, farewell: Farewell, cx: &mut Context<'_>) {
        if let Some(Slot { since, session, .. }) = self.stay.slot() {
            let (session, held) = (session.clone(), cx.now.since(*since));
            cx.tell(Notice::Released { name: self.name.clone(), session, held });
        }
        self.stop_watches(cx);
        self.stopping = None;
        self.stay = Stay::Over(match farewell {
            Farewell::Again if !cx.ending => return self.ask_again(cx.now),
            Farewell::Released | Farewell::Again => End::Released,
            Farewell::GaveUp => End::GaveUp,
            Farewell::Lost => End::Lost,
        });
    }

    /// Without a session nothing of ours can be in Consul but what is dead already.
    pub(super) fn without_session(&mut self, cx: &mut Context<'_>) {
        match &mut self.stay {
            Stay::Leaving { farewell, .. } => {
                let farewell = *farewell;
                self.gone(farewell, cx);
            }
            Stay::Asking(asking) if asking.keeps_out == KeepsOut::Others => {
                asking.keeps_out = KeepsOut::Unknown;
            }
            Stay::Asking(_) | Stay::Held(_) | Stay::Over(_) => {}
        }
    }

    fn finds_room(&mut self, now: Moment) {
        if let Some(asking) = self.stay.asking_mut() {
            asking.finds_room(now);
        }
    }
}
