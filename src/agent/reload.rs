//! Reload: reads a new configuration, applies its changes, and answers the callers.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::oneshot;
use tracing::{error, info, warn};

mod compare;
mod deferred;
mod entries;
mod pending;
mod read;
mod settle;
mod watch;

use super::files::FILE_TIMEOUT;
use super::{Agent, translate};
use crate::about::log_about;
use crate::clock;
use crate::config::{Entry, Mode};
use crate::control::request::{NoReload, Reloaded};
use crate::log_events::{
    CHANGE_DEFERRED, CONFIGURATION_WARNING, ENTRY_NOT_IN_GROUP, ENTRY_PENDING, FILES_CHANGED, RELOAD_FAILED,
    RELOAD_READ_DISCARDED, RELOAD_READ_STUCK, RELOADED, SETTING_NOT_CHANGED,
};
use crate::schema_version::SchemaVersion;
use crate::status::{LastReload, SignalAnswer};
#[cfg(test)]
pub(crate) use compare::is_fixed;
use compare::{Changes, compare};
pub(super) use deferred::Deferred;
use deferred::{Until, defer};
pub(super) use pending::add_series;
pub(super) use read::Reload;
use read::{Failed, Fresh, Outcome, Source};
pub use settle::Fingerprints;
use slotkeeper_semaphore::Moment;
pub use watch::fingerprints;
pub(super) use watch::tls_files;
pub(super) use watch::{Watch, changed};

/// The cause of a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Manner {
    /// Files have changed. The reload releases no slot.
    Automatic,
    /// A signal or a request. The reload applies the whole configuration.
    Explicit,
}

/// The result of a reload, for its caller.
type Answer = Result<Reloaded, NoReload>;

/// A caller that waits for the result of a reload.
#[derive(Debug)]
pub(super) enum Caller {
    /// The sender of the signal with this number.
    Signal(u64),
    /// A client of the control endpoints.
    Control(oneshot::Sender<Answer>),
}

impl Agent {
    /// Handles a SIGHUP.
    pub(super) fn sighup_received(&mut self) {
        let caller = self.configuration.signals.as_mut().map(|signals| {
            signals.received += 1;
            Caller::Signal(signals.received)
        });
        self.request_reload(Manner::Explicit, caller);
    }

    /// Handles a change of the configuration's files.
    pub(super) fn files_changed(&mut self, files: &[PathBuf]) {
        let files: Vec<_> = files.iter().map(|path| path.display().to_string()).collect();
        info!(files = files.join(", "), "{FILES_CHANGED}");
        self.request_reload(Manner::Automatic, None);
    }

    /// Starts a reload, or queues it behind the running one.
    pub(super) fn request_reload(&mut self, manner: Manner, caller: Option<Caller>) {
        if self.ending.is_decided() {
            return self.refuse_while_draining(caller);
        }
        let source = Source {
            files: self.parts.source.keys().cloned().collect(),
            read_config: Arc::clone(&self.parts.read_config),
            old: self.parts.config.clone(),
            metrics: Arc::clone(&self.parts.metrics),
        };
        let refused = self.reload.begin(manner, caller, source, clock::now());
        self.answer(refused, &Err(NoReload::Refused(RELOAD_READ_STUCK.to_owned())));
    }

    fn refuse_while_draining(&mut self, callers: impl IntoIterator<Item = Caller>) {
        warn!(error = "the agent is draining", "{RELOAD_FAILED}");
        self.answer(callers, &Err(NoReload::Draining));
    }

    fn answer(&mut self, callers: impl IntoIterator<Item = Caller>, answer: &Answer) {
        for caller in callers {
            match caller {
                // The client may have disconnected.
                Caller::Control(reply) => drop(reply.send(answer.clone())),
                Caller::Signal(number) => {
                    if let Some(signals) = &mut self.configuration.signals {
                        signals.answered = number;
                        signals.answer = Some(match answer {
                            Ok(reloaded) => SignalAnswer::Reloaded(reloaded.clone()),
                            Err(refusal) => SignalAnswer::Refused(refusal.to_string()),
                        });
                    }
                }
            }
        }
    }

    /// Fails a reload whose read has timed out.
    pub(super) fn check_reload_timeout(&mut self, now: Moment) {
        if let Some((failed, callers)) = self.reload.give_up(now) {
            self.reload_failed(&failed, callers);
        }
    }

    /// Handles the end of a reload's read.
    pub(super) async fn reload_read(&mut self, outcome: Option<Outcome>) {
        match outcome {
            Some(Outcome { manner, callers, read, seen }) => {
                match read {
                    Ok(_) if self.ending.is_decided() => self.refuse_while_draining(callers),
                    Ok(fresh) => {
                        let reloaded = self.apply_configuration(fresh, manner).await;
                        self.answer(callers, &Ok(reloaded));
                    }
                    Err(failed) => self.reload_failed(&failed, callers),
                }
                if let Some(seen) = seen {
                    self.watch(seen);
                }
            }
            None => info!("{RELOAD_READ_DISCARDED}"),
        }
        if let Some(manner) = self.reload.take_queued() {
            self.request_reload(manner, None);
        }
    }

    /// Watches the files that were read, if `reload.watch` is set.
    pub(super) fn watch(&mut self, read: Fingerprints) {
        self.watch = Some(read).filter(|_| self.parts.config.reload.watch).and_then(Watch::start);
    }

    fn reload_failed(&mut self, failed: &Failed, callers: Vec<Caller>) {
        self.parts.metrics.reloaded(false);
        self.configuration.last_reload = LastReload::Refused;
        error!(error = %failed, "{RELOAD_FAILED}");
        self.answer(callers, &Err(NoReload::Refused(failed.to_string())));
    }

    /// Applies the new configuration, without the changes that are refused or deferred.
    async fn apply_configuration(&mut self, fresh: Fresh, manner: Manner) -> Reloaded {
        let Fresh { config: mut new, client, warnings } = fresh;
        for warning in warnings {
            warn!(%warning, "{CONFIGURATION_WARNING}");
        }
        let until = match manner {
            _ if self.is_run => Some(Until::CommandEnds),
            Manner::Automatic => Some(Until::Asked),
            // A running workload keeps its slots also in an explicit reload.
            Manner::Explicit if self.sees_workload() => Some(Until::WorkloadEnds),
            Manner::Explicit => None,
        };
        let defer = |until| defer(until, &self.parts.config, &self.pending, &mut new);
        let deferred = until.map(defer).unwrap_or_default();
        let changes = compare(&self.parts.config, &self.pending, &mut new);
        self.client = client.in_place_of(&self.client);
        for refused in &changes.refused {
            warn!(%refused, "{SETTING_NOT_CHANGED}");
        }
        if changes.removed().any(|entry| self.own.keeper.machine(&entry.id()).is_some()) {
            // The readiness file goes before a slot is released, and is written again without its name.
            if let Some(readiness) = &self.parts.files.readiness {
                readiness.set(None);
            }
            self.unready(FILE_TIMEOUT).await;
        }
        let now = clock::now();
        // Existing leases keep their settings. New leases have the new ones.
        for entry in changes.removed() {
            self.own.keeper.remove(&entry.id(), now);
        }
        for semaphore in &changes.semaphores.changed {
            self.own.keeper.reconfigure(&semaphore.entry.id(), translate::settings(semaphore), now);
        }
        for lock in &changes.locks.changed {
            let settings = translate::lock(lock, &new.session);
            self.own.keeper.reconfigure(&lock.id(), settings, now);
        }
        self.parts.log.set_level(new.log.level);
        self.pending = new.entries().map(|entry| entry.id()).filter(|id| self.pending.contains(id)).collect();
        self.pending.extend(changes.added().map(|entry| entry.id()));
        // The agent does not release the slots that it has to acquire them again together with a new one.
        let by_default = new.acquire.written.is_none() && new.required().nth(1).is_some();
        let added = changes.semaphores.added.iter().map(|one| &one.entry);
        for entry in added.filter(|entry| by_default && entry.is_required()) {
            log_about!(warn, &entry.subject(), "{ENTRY_NOT_IN_GROUP}");
        }
        self.parts.config = new;
        self.rename(&changes);
        for entry in changes.removed() {
            self.forget_removed(&entry.name);
        }
        for entry in changes.added() {
            self.add_series(&entry.name);
        }
        self.add_pending(now);
        self.parts.metrics.reloaded(true);
        (self.configuration.loaded_at, self.configuration.last_reload) = (now, LastReload::Done);
        self.log_deferred(deferred);
        self.log_reloaded(changes)
    }

    /// Logs each deferred change once.
    fn log_deferred(&mut self, deferred: Deferred) {
        let before = std::mem::replace(&mut self.deferred, deferred);
        for entry in self.parts.config.entries() {
            let id = entry.id();
            if let Some(change) = self.deferred.get(&id).filter(|change| before.get(&id) != Some(change)) {
                log_about!(warn, &entry.subject(), change, "{CHANGE_DEFERRED}");
            }
        }
    }

    /// Gives renamed entries their new names. Their slots and leases stay.
    fn rename(&mut self, changes: &Changes) {
        let renamed: Vec<_> = changes.renamed().collect();
        for (_, entry) in renamed.iter().filter(|(_, entry)| entry.mode == Mode::Hold) {
            self.labels.set(entry.id(), &entry.name);
        }
        self.leases.rename(renamed.iter().map(|(_, entry)| *entry));
        // Two entries may have swapped names, so all old series go first. An old name may still be that of other leases.
        let names = renamed.iter().flat_map(|(before, entry)| [*before, entry.name.as_str()]);
        let configured = |name: &str| self.parts.config.entries().any(|entry| entry.name == name);
        let names: BTreeSet<&str> =
            names.filter(|name| configured(name) || !self.leases.any_of(name)).collect();
        for name in &names {
            self.parts.metrics.remove_semaphore(name);
        }
        for name in names {
            self.add_series(name);
        }
    }

    fn log_reloaded(&self, changes: Changes) -> Reloaded {
        let names = |entry: &Entry| entry.name.clone();
        let reasons = self.pending_reasons();
        let pending = self.parts.config.entries().filter_map(|entry| {
            let reason = reasons.get(&entry.id())?;
            log_about!(warn, &entry.subject(), reason, "{ENTRY_PENDING}");
            Some(format!("{}: {reason}", entry.name))
        });
        let deferred = self
            .parts
            .config
            .entries()
            .filter_map(|entry| Some(format!("{}: {}", entry.name, self.deferred.get(&entry.id())?)));
        let reloaded = Reloaded {
            schema_version: SchemaVersion::default(),
            added: changes.added().map(names).collect(),
            removed: changes.removed().map(names).collect(),
            renamed: changes.renamed().map(|(before, entry)| format!("{before} to {}", entry.name)).collect(),
            pending: pending.collect(),
            deferred: deferred.collect(),
            changed: changes.fields,
            refused: changes.refused,
        };
        let all = |names: &[String]| (!names.is_empty()).then(|| names.join(", "));
        info!(
            added = all(&reloaded.added),
            removed = all(&reloaded.removed),
            renamed = all(&reloaded.renamed),
            changed = all(&reloaded.changed),
            "{RELOADED}"
        );
        reloaded
    }
}
