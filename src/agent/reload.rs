//! Reload: the changes of a new configuration that a running agent applies, and those that it refuses.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process;
use std::sync::Arc;

use tokio::sync::oneshot;
use tracing::{error, info, warn};

mod deferred;
mod entries;
mod pending;
mod read;
mod settle;
mod watch;

use super::files::FILE_TIMEOUT;
use super::labels::{Entry, entries as all_entries};
use super::{Agent, translate};
use crate::clock;
use crate::config::{self, Config, Http, Lock, Log, Mode, Semaphore, Session};
use crate::control::request::{NoReload, Reloaded};
use crate::files::claimant::{Claimant, SignalAnswer};
use crate::log_events::{
    CHANGE_DEFERRED, CONFIGURATION_WARNING, ENTRY_PENDING, FILES_CHANGED, RELOAD_FAILED,
    RELOAD_READ_DISCARDED, RELOAD_READ_STUCK, RELOADED, SETTING_NOT_CHANGED,
};
use crate::status::{Configuration, LastReload};
pub(super) use deferred::Deferred;
use deferred::{Until, defer};
use entries::{Difference, Report, difference};
pub(super) use read::Reload;
use read::{Failed, Fresh, Outcome, Source};
pub use settle::Fingerprints;
use slotkeeper_consul::{Settings, TokenSource};
use slotkeeper_semaphore::{Moment, Name};
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
        self.signals.asked += 1;
        self.publish_signals();
        self.request_reload(Manner::Explicit, Some(Caller::Signal(self.signals.asked)));
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
        warn!(error = "draining", "{RELOAD_FAILED}");
        self.answer(callers, &Err(NoReload::Draining));
    }

    fn answer(&mut self, callers: impl IntoIterator<Item = Caller>, answer: &Answer) {
        for caller in callers {
            match caller {
                // The client may have disconnected.
                Caller::Control(reply) => drop(reply.send(answer.clone())),
                Caller::Signal(number) => {
                    self.signals.answered = number;
                    self.signals.answer = Some(match answer {
                        Ok(reloaded) => SignalAnswer::Reloaded(reloaded.clone()),
                        Err(refusal) => SignalAnswer::Refused(refusal.to_string()),
                    });
                    self.publish_signals();
                }
            }
        }
    }

    /// Writes the agent's process id and the results of signals into its lock files, where `slotkeeper reload` reads them.
    pub(super) fn publish_signals(&self) {
        let takes_sighup = !self.is_run;
        self.parts.files.introduce(&Claimant {
            pid: process::id(),
            takes_sighup,
            signals: self.signals.clone(),
        });
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
            self.own.keeper.reconfigure(&Entry::from(semaphore).id(), translate::settings(semaphore), now);
        }
        for lock in &changes.locks.changed {
            let settings = translate::lock(lock, &new.session);
            self.own.keeper.reconfigure(&Entry::from(lock).id(), settings, now);
        }
        self.parts.log.set_level(new.log.level);
        self.pending =
            all_entries(&new).map(|entry| entry.id()).filter(|id| self.pending.contains(id)).collect();
        self.pending.extend(changes.added().map(|entry| entry.id()));
        self.parts.config = new;
        self.rename(&changes);
        for entry in changes.removed() {
            self.forget_removed(entry.name);
        }
        for entry in changes.added() {
            self.add_series(entry.name);
        }
        self.add_pending(now);
        self.parts.metrics.reloaded(true);
        self.configuration = Configuration { loaded_at: now, last_reload: LastReload::Done };
        self.log_deferred(deferred);
        self.log_reloaded(changes)
    }

    /// Logs each deferred change once.
    fn log_deferred(&mut self, deferred: Deferred) {
        let before = std::mem::replace(&mut self.deferred, deferred);
        for entry in all_entries(&self.parts.config) {
            let id = entry.id();
            if let Some(change) = self.deferred.get(&id).filter(|change| before.get(&id) != Some(change)) {
                warn!(entry = entry.name, change, "{CHANGE_DEFERRED}");
            }
        }
    }

    /// Gives renamed entries their new names. Their slots and leases stay.
    fn rename(&mut self, changes: &Changes) {
        let renamed: Vec<_> = changes.renamed().collect();
        for (_, entry) in renamed.iter().filter(|(_, entry)| entry.mode == Mode::Hold) {
            self.labels.set(entry.id(), entry.name);
        }
        self.leases.rename(renamed.iter().map(|(_, entry)| *entry));
        // Two entries may have swapped names, so all old series go first. An old name may still be that of other leases.
        let names = renamed.iter().flat_map(|(before, entry)| [*before, entry.name]);
        let configured = |name: &str| all_entries(&self.parts.config).any(|entry| entry.name == name);
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
        let names = |entry: Entry<'_>| entry.name.to_owned();
        let reasons = self.pending_reasons();
        let pending = all_entries(&self.parts.config).filter_map(|entry| {
            let reason = reasons.get(&entry.id())?;
            warn!(semaphore = entry.name, reason, "{ENTRY_PENDING}");
            Some(format!("{}: {reason}", entry.name))
        });
        let deferred = all_entries(&self.parts.config)
            .filter_map(|entry| Some(format!("{}: {}", entry.name, self.deferred.get(&entry.id())?)));
        let reloaded = Reloaded {
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

/// The difference between two configurations: the changes to apply, and the refused ones.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Changes {
    pub(super) semaphores: Difference<Semaphore>,
    pub(super) locks: Difference<Lock>,
    /// The keys of all changes, for people.
    pub(super) fields: Vec<String>,
    /// Changes that need a restart, each with what to do.
    pub(super) refused: Vec<String>,
}

impl Changes {
    /// The entries to release, or to lend no longer.
    fn removed(&self) -> impl Iterator<Item = Entry<'_>> {
        let locks = self.locks.removed.iter().map(Entry::from);
        self.semaphores.removed.iter().map(Entry::from).chain(locks)
    }

    /// The entries to add, as soon as no obstacle is left.
    fn added(&self) -> impl Iterator<Item = Entry<'_>> {
        let locks = self.locks.added.iter().map(Entry::from);
        self.semaphores.added.iter().map(Entry::from).chain(locks)
    }

    /// The renamed entries, each with its old name.
    fn renamed(&self) -> impl Iterator<Item = (&str, Entry<'_>)> {
        let locks = self.locks.renamed.iter().map(|(before, one)| (before.as_str(), Entry::from(one)));
        let semaphores = self.semaphores.renamed.iter();
        semaphores.map(|(before, one)| (before.as_str(), Entry::from(one))).chain(locks)
    }
}

/// Compares two configurations, and resets in `new` each setting that cannot change. `new` is in force from then on. The
/// entries of `old` that are `pending` have not been added yet.
pub(super) fn compare(old: &Config, pending: &BTreeSet<Name>, new: &mut Config) -> Changes {
    let mut changes = Changes::default();
    let Changes { semaphores, locks, fields, refused } = &mut changes;
    keep_fixed(old, new, refused);
    let mut report = Report { fields, refused };
    let acquire = new.acquire;
    *semaphores = difference(&old.semaphores, pending, &mut new.semaphores, acquire, &mut report);
    *locks = difference(&old.locks, pending, &mut new.locks, acquire, &mut report);
    fields.extend(changed_keys(old, new));
    changes
}

/// Resets in `new` each setting that takes effect only at a restart. Token and TLS files change without one, by a new client.
/// A login does not: requests under way with its token would be refused after its logout.
///
/// The patterns have no `..`, so that no key is forgotten: here or in [`changed_keys`].
fn keep_fixed(old: &Config, new: &mut Config, refused: &mut Vec<String>) {
    let Config {
        consul,
        session,
        acquire,
        http: Http { listen },
        control,
        readiness,
        workload,
        log: Log { format, level: _ },
        // Compared entry by entry.
        semaphores: _,
        locks: _,
        // Applied without a restart.
        hooks: _,
        drain: _,
        reload: _,
        // From the environment, which does not change.
        identity: _,
    } = old;
    let Settings { address, token, datacenter, namespace, partition, max_wait: _, tls: _ } = consul;
    let Session {
        name,
        ttl,
        behavior,
        lock_delay,
        watch_grace,
        node_checks,
        service_checks,
        node,
        state_file,
    } = session;
    let logs_in = |token: &Option<TokenSource>| matches!(token, Some(TokenSource::Login(_)));
    let other_login = *token != new.consul.token && (logs_in(token) || logs_in(&new.consul.token));
    let (new_consul, new_session) = (&new.consul, &new.session);
    let fields = [
        ("consul.address", *address != new_consul.address),
        ("consul.datacenter", *datacenter != new_consul.datacenter),
        ("consul.namespace", *namespace != new_consul.namespace),
        ("consul.partition", *partition != new_consul.partition),
        ("consul.login", other_login),
        ("session.name", *name != new_session.name),
        ("session.ttl", *ttl != new_session.ttl),
        ("session.behavior", *behavior != new_session.behavior),
        ("session.lock_delay", *lock_delay != new_session.lock_delay),
        ("session.watch_grace", *watch_grace != new_session.watch_grace),
        ("session.node_checks", *node_checks != new_session.node_checks),
        ("session.service_checks", *service_checks != new_session.service_checks),
        ("session.node", *node != new_session.node),
        ("session.state_file", *state_file != new_session.state_file),
        ("acquire", *acquire != new.acquire),
        ("http.listen", *listen != new.http.listen),
        ("control", *control != new.control),
        ("readiness.file", *readiness != new.readiness),
        ("workload", *workload != new.workload),
        ("log.format", *format != new.log.format),
    ];
    let differing = fields.into_iter().filter(|(_, differs)| *differs);
    refused.extend(differing.map(|(field, _)| format!("{field} takes effect only at a restart")));
    new.consul = Settings {
        token: if other_login { token.clone() } else { new.consul.token.clone() },
        tls: new.consul.tls.clone(),
        max_wait: new.consul.max_wait,
        ..consul.clone()
    };
    new.session = session.clone();
    new.acquire = *acquire;
    new.http.listen = *listen;
    new.control.clone_from(control);
    new.readiness.clone_from(readiness);
    new.workload.clone_from(workload);
    new.log.format = *format;
}

/// The keys of changes outside the semaphores and locks.
fn changed_keys(old: &Config, new: &Config) -> impl Iterator<Item = String> {
    let Config {
        consul: Settings { token, max_wait, tls, address: _, datacenter: _, namespace: _, partition: _ },
        hooks,
        drain,
        reload: config::Reload { watch },
        log: Log { level, format: _ },
        // Fixed, or compared entry by entry.
        session: _,
        semaphores: _,
        locks: _,
        acquire: _,
        http: _,
        control: _,
        readiness: _,
        workload: _,
        identity: _,
    } = old;
    let fields = [
        ("consul.token", *token != new.consul.token),
        ("consul.max_wait", *max_wait != new.consul.max_wait),
        ("consul.tls", *tls != new.consul.tls),
        ("hooks", *hooks != new.hooks),
        ("drain", *drain != new.drain),
        ("reload.watch", *watch != new.reload.watch),
        ("log.level", *level != new.log.level),
    ];
    fields.into_iter().filter(|(_, differs)| *differs).map(|(field, _)| field.to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{Acquire, Environment, Overrides};

    fn config(text: &str) -> Config {
        let environment = Environment::default();
        config::parse("test", text, &Overrides::default(), &environment).unwrap().config
    }

    fn names<'a, E: 'a>(entries: &'a [E]) -> Vec<&'a str>
    where
        Entry<'a>: From<&'a E>,
    {
        entries.iter().map(|one| Entry::from(one).name).collect()
    }

    fn compared(old: &Config, new: &mut Config) -> Changes {
        compare(old, &BTreeSet::new(), new)
    }

    #[test]
    fn semaphores_are_added_removed_and_changed() {
        let old = config("semaphores: [{name: a, prefix: p/a, limit: 1}, {name: b, prefix: p/b, limit: 1}]");
        let mut new =
            config("semaphores: [{name: b, prefix: p/b, limit: 2}, {name: c, prefix: p/c, limit: 1}]");
        let changes = compared(&old, &mut new);
        assert_eq!(names(&changes.semaphores.added), ["c"]);
        assert_eq!(names(&changes.semaphores.removed), ["a"]);
        assert_eq!(
            (names(&changes.semaphores.changed), &changes.fields),
            (vec!["b"], &vec!["b.limit".to_owned()])
        );
        assert_eq!((changes.renamed().count(), changes.refused), (0, vec![]));
        assert_eq!(names(&new.semaphores), ["b", "c"]);
    }

    #[test]
    fn a_prefix_or_key_identifies_an_entry() {
        let old = config(
            "semaphores: [{name: a, prefix: p/a, limit: 1}, {name: b, prefix: p/b, limit: 1}]\nlocks: [{name: l, key: k}]",
        );
        let mut new = config(
            "semaphores: [{name: b, prefix: p/a, limit: 3}, {name: a, prefix: p/b, limit: 1}]\nlocks: [{name: m, key: k}]",
        );
        let changes = compared(&old, &mut new);
        let renamed: Vec<_> = changes.renamed().map(|(from, entry)| (from, entry.name, entry.key)).collect();
        assert_eq!(renamed, [("a", "b", "p/a"), ("b", "a", "p/b"), ("l", "m", "k")]);
        assert_eq!((changes.added().count(), changes.removed().count()), (0, 0));
        assert_eq!((names(&changes.semaphores.changed), changes.fields), (vec!["b"], vec!["b.limit".into()]));
        assert_eq!(changes.refused, [""; 0]);
    }

    #[test]
    fn the_maximum_wait_of_long_polls_changes_without_a_restart() {
        let entry = "semaphores: [{name: a, prefix: p, limit: 1}]";
        let (old, mut new) = (config(entry), config(&format!("consul: {{max_wait: 25s}}\n{entry}")));
        let changes = compared(&old, &mut new);
        assert_eq!((changes.fields, changes.refused), (vec!["consul.max_wait".to_owned()], vec![]));
        assert_eq!(new.consul.max_wait, Some(std::time::Duration::from_secs(25)));
    }

    #[test]
    fn watching_changes_without_a_restart_and_is_reported() {
        let entry = "semaphores: [{name: a, prefix: p, limit: 1}]";
        let (old, mut new) = (config(entry), config(&format!("reload: {{watch: false}}\n{entry}")));
        let changes = compared(&old, &mut new);
        assert_eq!((changes.fields, changes.refused), (vec!["reload.watch".to_owned()], vec![]));
        assert!(!new.reload.watch);
    }

    #[test]
    fn another_prefix_kind_or_mode_is_another_entry() {
        let control = "control: {listen: 'unix:/c'}\n";
        let held = format!("{control}semaphores: [{{name: a, prefix: p, limit: 1}}]");
        for new in [
            "semaphores: [{name: a, prefix: q, limit: 1}]",
            "semaphores: [{name: a, prefix: p, limit: 1, mode: on_demand}]",
            "locks: [{name: a, key: p}]",
        ] {
            let new = format!("{control}{new}");
            for (old, new) in [(&held, &new), (&new, &held)] {
                let (old, mut new) = (config(old), config(new));
                let changes = compared(&old, &mut new);
                let names = |entry: Entry<'_>| entry.name.to_owned();
                assert_eq!(changes.added().map(names).collect::<Vec<_>>(), ["a"], "{new:?}");
                assert_eq!(changes.removed().map(names).collect::<Vec<_>>(), ["a"], "{new:?}");
                assert_eq!((changes.fields.len(), changes.refused.len()), (0, 0), "{changes:?}");
            }
        }
    }

    #[test]
    fn a_later_configuration_replaces_a_pending_entry() {
        let old = config("semaphores: [{name: a, prefix: p/a, limit: 1}, {name: b, prefix: p/b, limit: 1}]");
        let pending = BTreeSet::from([Entry::from(&old.semaphores[1]).id()]);
        let mut new = config("semaphores: [{name: a, prefix: p/a, limit: 1}]");
        let changes = compare(&old, &pending, &mut new);
        assert_eq!((changes.added().count(), changes.removed().count()), (0, 0));
        let mut new = config("semaphores: [{name: c, prefix: p/b, limit: 1, slots: 1}]");
        let changes = compare(&old, &pending, &mut new);
        assert_eq!(names(&changes.semaphores.added), ["c"]);
        assert_eq!((names(&changes.semaphores.removed), changes.renamed().count()), (vec!["a"], 0));
    }

    #[test]
    fn fixed_keys_stay_and_are_reported() {
        let old = config("semaphores: [{name: a, prefix: p/a, limit: 2}]");
        let mut new = config(
            "semaphores: [{name: b, prefix: p/a, limit: 3, slots: 2}]\nsession: {ttl: 60s}\n\
             consul: {address: 'http://127.0.0.2:8500', token_file: /token}\nreadiness: {file: /tmp/r}\n\
             control: {listen: 'unix:/tmp/c'}\nlog: {format: json, level: debug}\nworkload: {volume: /run/v}",
        );
        let changes = compared(&old, &mut new);
        let said = changes.refused.join("\n");
        let fields = [
            "consul.address ",
            "session.ttl ",
            "readiness.file ",
            "control takes",
            "workload takes",
            "log.format ",
            "b: slots cannot",
        ];
        for field in fields {
            assert!(said.contains(field), "{field} in {said}");
        }
        assert_eq!((&new.control, &new.workload), (&old.control, &old.workload));
        assert_eq!(new.session, old.session);
        assert_eq!(new.consul.address, old.consul.address);
        assert_eq!((new.semaphores[0].slots, new.semaphores[0].limit), (1, 2));
        // The remaining keys change.
        assert_eq!(new.semaphores[0].name, "b");
        let file = TokenSource::File(Path::new("/token").to_owned());
        assert_eq!(new.consul.token, Some(file));
        assert_ne!(new.log.level, old.log.level);
        assert_eq!(changes.fields, ["consul.token", "log.level"]);
    }

    #[test]
    fn a_change_of_the_login_needs_a_restart() {
        let of = |consul: &str| {
            config(&format!("consul: {consul}\nsemaphores: [{{name: a, prefix: p, limit: 1}}]"))
        };
        let login = "{login: {auth_method: kube, bearer_token_file: /jwt}}";
        let other = "{login: {auth_method: kube, bearer_token_file: /jwt, meta: {pod: a}}}";
        let file = "{token_file: /t}";
        for (was, wants, refused) in
            [(login, other, 1), (login, file, 1), (file, login, 1), (login, login, 0), (file, "{}", 0)]
        {
            let (old, mut new) = (of(was), of(wants));
            let changes = compared(&old, &mut new);
            assert_eq!(changes.refused.len(), refused, "{was} {wants}: {:?}", changes.refused);
            assert_eq!(new.consul.token == old.consul.token, was != file || wants == login, "{was} {wants}");
        }
    }

    #[test]
    fn a_change_of_acquire_needs_a_restart() {
        let old = config("{acquire: together, semaphores: [{name: a, prefix: p/a, limit: 1}]}");
        let mut new = config("{semaphores: [{name: a, prefix: p/a, limit: 1}]}");
        let changes = compared(&old, &mut new);
        assert_eq!((changes.refused.len(), new.acquire), (1, Acquire::Together));
    }

    #[test]
    fn a_change_of_the_acquire_group_needs_a_restart() {
        let of = |acquire: &str, b: &str| {
            let [a, b] = [("a", ""), ("b", b)]
                .map(|(name, rest)| format!("{{name: {name}, prefix: p/{name}, limit: 1{rest}}}"));
            config(&format!("{{acquire: {acquire}, semaphores: [{a}, {b}]}}"))
        };
        let optional = ", required: false, body: x";
        for (was, wants) in [("", optional), (optional, "")] {
            let (old, mut new) = (of("together", was), of("together", wants));
            let changes = compared(&old, &mut new);
            let said = "semaphores: b: required cannot change under `acquire: together`; restart the agent";
            assert_eq!((changes.refused, changes.fields), (vec![said.to_owned()], vec![]));
            assert_eq!(new.semaphores, old.semaphores);
            let changes = compared(&of("independently", was), &mut of("independently", wants));
            assert_eq!((changes.refused, changes.fields.len()), (vec![], 2));
        }
    }

    #[test]
    fn priority_and_body_change_and_slots_do_not() {
        let one = |fields: &str| config(&format!("semaphores: [{{name: a, prefix: p/a, limit: 3{fields}}}]"));
        let old = one("");
        let mut new = one(", priority: 7, body: urgent");
        let changes = compared(&old, &mut new);
        assert_eq!((changes.semaphores.changed, changes.refused), (new.semaphores.clone(), Vec::new()));
        assert_eq!(compared(&old, &mut one(", slots: 2")).refused.len(), 1);
    }

    #[test]
    fn settings_on_demand_change_for_the_next_lease() {
        let one = |fields: &str| {
            config(&format!(
                "control: {{listen: 'unix:/c'}}\nsemaphores: [{{limit: 3, mode: on_demand, {fields}}}]"
            ))
        };
        let old = one("name: a, prefix: p/a");
        let mut new = one("name: a, prefix: p/b, slots: 2");
        let changes = compared(&old, &mut new);
        assert_eq!((changes.added().count(), changes.removed().count()), (0, 0));
        assert_eq!((changes.refused, changes.fields), (vec![], vec!["a.prefix".into(), "a.slots".into()]));
        let mut new = one("name: b, prefix: p/a");
        let changes = compared(&old, &mut new);
        let renamed: Vec<_> = changes.renamed().map(|(from, entry)| (from, entry.name)).collect();
        assert_eq!((renamed, changes.added().count()), (vec![("a", "b")], 0));
    }

    #[test]
    fn locks_are_added_removed_and_changed() {
        let old = config("locks: [{name: a, key: k/a}, {name: b, key: k/b}, {name: d, key: k/d}]");
        let mut new = config(
            "locks: [{name: b, key: k/b, required: false, wait: 5s}, {name: c, key: k/c}, {name: e, key: k/d}]",
        );
        let changes = compared(&old, &mut new);
        assert_eq!((names(&changes.locks.added), names(&changes.locks.removed)), (vec!["c"], vec!["a"]));
        assert_eq!(
            (names(&changes.locks.changed), &changes.fields),
            (vec!["b"], &vec!["b.required".to_owned(), "b.wait".to_owned()])
        );
        assert_eq!(changes.renamed().map(|(from, _)| from).collect::<Vec<_>>(), ["d"]);
    }
}
