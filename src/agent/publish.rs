//! Publishes the agent's state: one snapshot, from which endpoints, files and gauges read.

use std::sync::Arc;
use std::time::Duration;

use super::Agent;
use super::driver::Owner;
use super::snapshot::{self, Entries};
use crate::about::log_about;
use crate::clock;
use crate::log_events::{NOT_READY, READY};
use crate::status::{Configuration, ConsulReport, Event, Id, LastReload, Snapshot, Stage};
use crate::waiting::Awaited;
use slotkeeper_semaphore::{Identity, Moment};

/// A snapshot for changes of leases alone is published at most this often: building it for hundreds of leases takes longer
/// than one change.
pub(super) const PUBLISH_INTERVAL: Duration = Duration::from_millis(50);

/// Changes that no snapshot contains yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Unpublished {
    Nothing,
    /// Changes of leases, or by the passage of time.
    Leases,
    All,
}

/// The snapshot that the endpoints serve before the first round.
pub fn before_start(now: Moment) -> Snapshot {
    // Event ids of two processes must not be confused.
    let (id, changes) = (Id::first(fastrand::u64(..)), Arc::default());
    let (stage, started_up) = (Stage::Starting, false);
    let (consul, session, semaphores, locks) = (ConsulReport::default(), None, Vec::new(), Vec::new());
    let configuration = Configuration { loaded_at: now, last_reload: LastReload::None, signals: None };
    Snapshot {
        id,
        changes,
        stage,
        who: Identity::default(),
        started_at: now,
        started_up,
        configuration,
        consul,
        session,
        semaphores,
        locks,
    }
}

impl Agent {
    /// What the agent waits for, as of the last snapshot.
    pub(super) fn awaited(&self) -> Option<Awaited> {
        let shown = Arc::clone(&self.parts.status.borrow());
        let report = (shown.stage == Stage::Running).then(|| shown.report(clock::now(), clock::wall()))?;
        Awaited::of(&report, self.parts.config.naming)
    }

    /// Tells the wait of `run`, unless it may be hopeless: then its end tells it.
    pub(super) fn tell_wait(&mut self, may_be_hopeless: bool, now: Moment) {
        if self.wait.as_ref().is_some_and(|wait| wait.next() <= now) {
            let awaited = self.awaited().filter(|_| !may_be_hopeless);
            self.wait.iter_mut().for_each(|wait| wait.tell(awaited.as_ref(), now));
        }
    }

    /// Whether the next snapshot may wait. It never waits longer than a client's answer.
    pub(super) fn may_publish_later(&self, now: Moment) -> bool {
        match self.unpublished {
            Unpublished::All => false,
            Unpublished::Leases => !self.leases.has_answers() && now < self.published_at + PUBLISH_INTERVAL,
            Unpublished::Nothing => !self.leases.has_answers(),
        }
    }

    /// Publishes what the snapshots do not say: that the agent ends.
    pub(super) fn publish_stop(&self) {
        let stopping = self.ending.stop_was_requested() || self.ending.is_decided();
        self.parts.stopping.send_if_modified(|shown| stopping != std::mem::replace(shown, stopping));
    }

    /// Publishes a snapshot.
    pub(super) fn publish(&mut self, now: Moment) {
        self.published_at = now;
        let (unpublished, changed) =
            (std::mem::replace(&mut self.unpublished, Unpublished::Nothing), self.leases.take_unshown());
        let (leases, holds) = (&self.leases, self.holds());
        let is_there = |owner| match owner {
            Owner::Agent => true,
            Owner::Lease(key) => leases.is_running(key),
        };
        let is_told = self.tells_failures();
        let own = self.own.keeper.failures().filter(|_| !is_told);
        self.outage.follow(own.chain(leases.failures()), is_there, holds, now);
        let pending = self.pending_reasons();
        let shown = Arc::clone(&self.parts.status.borrow());
        let before = snapshot::Before {
            shown: &shown,
            // Any change may be what a pending entry waits for.
            changed: (unpublished < Unpublished::All && pending.is_empty()).then_some(&changed),
        };
        let mut snapshot = snapshot::snapshot(
            &self.own.keeper,
            &self.leases,
            &Entries {
                config: &self.parts.config,
                labels: &self.labels,
                pending: &pending,
                deferred: &self.deferred,
            },
            &before,
            // While the workload lives, the agent holds its slots as before.
            if self.ending.is_decided() && !self.workload_lives() { Stage::Draining } else { Stage::Running },
            self.started_at,
        );
        let ready = snapshot.is_ready(now);
        self.started_up |= ready;
        snapshot.started_up = self.started_up;
        snapshot.consul = ConsulReport {
            addresses: snapshot::addresses(&self.client),
            session_node_refusal: self.sessions.refusal().map(str::to_owned),
        };
        snapshot.configuration = self.configuration.clone();
        if let Some(session) = &mut snapshot.session {
            session.created_at = self.session_created_at;
        }
        if ready != self.ready {
            self.ready = ready;
            let (event, text) = if ready { (Event::Ready, READY) } else { (Event::NotReady, NOT_READY) };
            log_about!(info, event, "{text}");
            self.journal.note(event, None, None);
        }
        if let Some(readiness) = &self.parts.files.readiness {
            // Text and numbers always serialise.
            let text = || serde_json::to_string(&snapshot.readiness()).unwrap_or_default();
            readiness.set(ready.then(|| format!("{}\n", text())));
        }
        if let Some(state) = self.parts.files.state.as_ref().filter(|_| self.ending.drain().is_none()) {
            state.save(&self.own.keeper);
        }
        snapshot.changes = self.journal.changes();
        self.parts.status.send_if_modified(|shown| {
            let changed = **shown != snapshot;
            if changed {
                snapshot.id = self.journal.next_id();
                *shown = Arc::new(snapshot);
            }
            changed
        });
    }
}
