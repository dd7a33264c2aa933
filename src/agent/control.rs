//! Handles the requests of the control endpoints.

use tokio::sync::mpsc;

use super::driver::Owner;
use super::labels::{self, id_of, named};
use super::leases::{self, Bounds, Wanted};
use super::reload::{Caller, Manner};
use super::{Agent, announce, translate};
use crate::clock;
use crate::config::{Config, Mode};
use crate::control::request::{Grant, Kind, NoLease, Refusal, Request};
use crate::status::{Event, Subject};
use slotkeeper_semaphore::{Keeper, Moment, Name, Notice, Settings, Start};

/// The limits of leases. Without control endpoints there are none.
pub(super) fn bounds(config: &Config) -> Bounds {
    let control = config.control.as_ref();
    control.map_or(Bounds { waits: 0, leases: 0 }, |control| Bounds {
        waits: control.max_waits,
        leases: control.max_leases,
    })
}

/// The next request. Without control endpoints it never resolves.
pub(super) async fn next(requests: &mut Option<mpsc::Receiver<Request>>) -> Option<Request> {
    match requests {
        Some(requests) => requests.recv().await,
        None => std::future::pending().await,
    }
}

impl Agent {
    /// Handles a request.
    pub(super) fn asked(&mut self, request: Request) {
        let now = clock::now();
        // The answer reflects the state now, not that of the last round.
        self.leases.tick(now);
        self.advance_leases(now);
        match request {
            Request::Drain => self.workload_is_done(),
            Request::Reload { reply } => self.request_reload(Manner::Explicit, Some(Caller::Control(reply))),
            Request::Acquire { kind, name, wait, present, reply } => match self.terms(kind, &name) {
                Ok(terms) => {
                    let config = &self.parts.config;
                    let keeper = |id, terms| {
                        let start = translate::start(config, vec![(id, terms)], None);
                        // The client knows when its lease expires, and learns nothing before its next request: a failed
                        // watch is no reason to release the slot.
                        Keeper::new(Start { watch_grace: None, ..start }, now)
                    };
                    let wanted = Wanted { kind, name: Name::from(name), wait, present, reply };
                    self.leases.acquire(wanted, terms, keeper, now);
                }
                Err(refusal) => leases::tell(reply, Err(refusal)),
            },
            Request::Renew { lease, reply } => leases::tell(reply, self.lease(&lease, true, now)),
            Request::Show { lease, reply } => leases::tell(reply, self.lease(&lease, false, now)),
            Request::Release { lease, reply } => self.leases.release(&lease, reply, now),
        }
    }

    fn lease(&mut self, lease: &str, renews: bool, now: Moment) -> Result<Grant, NoLease> {
        let draining = self.ending.draining(now);
        self.leases.show(lease, renews, now).map(|grant| Grant { draining, ..grant })
    }

    /// The settings of a new lease.
    fn terms(&self, kind: Kind, name: &str) -> Result<Settings, Refusal> {
        let (mode, settings) = find(&self.parts.config, kind, name)?;
        if self.ending.is_decided() {
            return Err(Refusal::Draining);
        }
        let pending = self.pending_reasons().remove(&labels::id(kind, &settings.prefix));
        match (pending, mode) {
            (Some(reason), _) => Err(Refusal::Pending(reason)),
            (None, Mode::OnDemand) => Ok(settings),
            (None, Mode::Hold) => Err(Refusal::NotOnDemand),
        }
    }

    /// Executes the commands of the leases' keepers, and ends leases that are due.
    pub(super) fn advance_leases(&mut self, now: Moment) {
        self.carry_out_leases(now);
        for subject in self.leases.end_overdue(now) {
            self.parts.metrics.lease_expired(&subject.name);
            self.journal.note(Event::LeaseExpired, Some(subject), None);
        }
        self.carry_out_leases(now);
        for name in self.leases.sweep() {
            self.forget_removed(&name);
        }
    }

    /// Removes the metrics of an entry that has left the configuration and has no slot or lease any more.
    pub(super) fn forget_removed(&mut self, name: &str) {
        let configured = self.parts.config.entries().any(|entry| entry.name == name);
        if !configured && !self.leases.any_of(name) && !self.labels.has(name) {
            self.parts.metrics.remove_semaphore(name);
        }
        let configured = self.parts.config.entries().map(|entry| entry.id()).collect();
        self.leases.forget_limits(&configured);
    }

    fn carry_out_leases(&mut self, now: Moment) {
        let client = self.client_for_now();
        while let Some(key) = self.leases.next_touched() {
            loop {
                let notices = self.leases.carry_out(key, &client, &self.sessions, &mut self.requests, now);
                if notices.is_empty() {
                    break;
                }
                for notice in notices {
                    let is_logged = self.outage.logs(Owner::Lease(key), &notice);
                    if let Some(name) = self.leases.name_of(key) {
                        let subject = id_of(&notice).and_then(|id| labels::subject(&id, &name));
                        self.tell_of_lease(&named(&notice, |_| name), subject, is_logged);
                    }
                    self.leases.noticed(key, &notice, now);
                }
            }
        }
    }

    /// Logs and counts a notice. Leases have no hooks: clients may come and go faster than hooks run.
    fn tell_of_lease(&mut self, notice: &Notice, subject: Option<Subject>, is_logged: bool) {
        if is_logged {
            announce::log_lease(notice, subject.as_ref());
        }
        self.journal.follow_lease(notice, subject);
        // All waiters of a lock see the same change of its leader, and without waiters it is not followed.
        if matches!(notice, Notice::Leader { .. }) {
            return;
        }
        self.parts.metrics.observe(notice);
    }
}

/// The entry of that name.
fn find(config: &Config, kind: Kind, name: &str) -> Result<(Mode, Settings), Refusal> {
    let mut found = translate::all(config).filter(|(entry, _)| entry.kind == kind && entry.name == name);
    let found = found.next().map(|(entry, settings)| (entry.mode, settings));
    found.ok_or_else(|| {
        let known = config.entries().filter(|entry| entry.kind == kind);
        Refusal::UnknownName { known: known.map(|entry| entry.name.clone()).collect() }
    })
}
