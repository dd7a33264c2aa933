//! Compares two configurations: the changes that a running agent applies, and those that need a restart.

use std::collections::BTreeSet;

use super::entries::{Difference, Group, Report, difference};
use crate::config::{self, Config, Entry, Http, Log, Semaphore, Session};
use slotkeeper_consul::{Settings, TokenSource};
use slotkeeper_semaphore::Name;

/// The difference between two configurations: the changes to apply, and the refused ones.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Changes {
    pub(super) semaphores: Difference<Semaphore>,
    pub(super) locks: Difference<Entry>,
    /// The keys of all changes, for people.
    pub(super) fields: Vec<String>,
    /// Changes that need a restart, each with what to do.
    pub(super) refused: Vec<String>,
}

impl Changes {
    /// The entries to release, or to lend no longer.
    pub(super) fn removed(&self) -> impl Iterator<Item = &Entry> {
        self.semaphores.removed.iter().map(|one| &one.entry).chain(&self.locks.removed)
    }

    /// The entries to add, as soon as no obstacle is left.
    pub(super) fn added(&self) -> impl Iterator<Item = &Entry> {
        self.semaphores.added.iter().map(|one| &one.entry).chain(&self.locks.added)
    }

    /// The renamed entries, each with its old name.
    pub(super) fn renamed(&self) -> impl Iterator<Item = (&str, &Entry)> {
        let locks = self.locks.renamed.iter().map(|(before, one)| (before.as_str(), one));
        let semaphores = self.semaphores.renamed.iter();
        semaphores.map(|(before, one)| (before.as_str(), &one.entry)).chain(locks)
    }
}

/// Compares two configurations, and resets in `new` each setting that cannot change. `new` is in force from then on. The
/// entries of `old` that are `pending` have not been added yet.
pub(super) fn compare(old: &Config, pending: &BTreeSet<Name>, new: &mut Config) -> Changes {
    let mut changes = Changes::default();
    let Changes { semaphores, locks, fields, refused } = &mut changes;
    keep_fixed(old, new, refused);
    let mut report = Report { fields, refused };
    let terms: Vec<_> = new.semaphores.iter().filter(|one| one.entry.is_required()).collect();
    let is_even = terms
        .windows(2)
        .all(|two| (two[0].entry.wait, two[0].priority) == (two[1].entry.wait, two[1].priority));
    let group = Group { acquire: new.acquire, is_uneven: new.acquire.together && !is_even };
    *semaphores = difference(&old.semaphores, pending, &mut new.semaphores, group, &mut report);
    *locks = difference(&old.locks, pending, &mut new.locks, group, &mut report);
    fields.extend(changed_keys(old, new));
    changes
}

/// Resets in `new` each setting that takes effect only at a restart. Token and TLS files change without one, by a new client.
/// A login does not: requests under way with its token would be refused after its logout.
pub(super) fn keep_fixed(old: &Config, new: &mut Config, refused: &mut Vec<String>) {
    let differing = fixed_keys(old, new).into_iter().filter(|(_, differs)| *differs);
    refused.extend(differing.map(|(field, _)| format!("{field} takes effect only at a restart")));
    let Config { consul, session, acquire, http, control, readiness, workload, log, .. } = old;
    let token = if changes_login(consul, &new.consul) { &consul.token } else { &new.consul.token }.clone();
    new.consul =
        Settings { token, tls: new.consul.tls.clone(), max_wait: new.consul.max_wait, ..consul.clone() };
    new.session = session.clone();
    new.acquire = *acquire;
    new.http = http.clone();
    new.control.clone_from(control);
    new.readiness.clone_from(readiness);
    new.workload.clone_from(workload);
    new.log.format = log.format;
}

/// Whether a login begins, ends or changes.
fn changes_login(old: &Settings, new: &Settings) -> bool {
    let logs_in = |settings: &Settings| matches!(settings.token, Some(TokenSource::Login(_)));
    old.token != new.token && (logs_in(old) || logs_in(new))
}

/// The keys that take effect only at a restart, and whether each differs.
///
/// The patterns have no `..`, so that no key is forgotten: here or in [`changed_keys`].
fn fixed_keys(old: &Config, new: &Config) -> [(&'static str, bool); 20] {
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
        // From the environment and the command line, which do not change.
        identity: _,
        naming: _,
    } = old;
    let Settings { address, token: _, datacenter, namespace, partition, max_wait: _, tls: _ } = consul;
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
    let (new_consul, new_session) = (&new.consul, &new.session);
    [
        ("consul.address", *address != new_consul.address),
        ("consul.datacenter", *datacenter != new_consul.datacenter),
        ("consul.namespace", *namespace != new_consul.namespace),
        ("consul.partition", *partition != new_consul.partition),
        ("consul.login", changes_login(consul, new_consul)),
        ("session.name", *name != new_session.name),
        ("session.ttl", *ttl != new_session.ttl),
        ("session.behavior", *behavior != new_session.behavior),
        ("session.lock_delay", *lock_delay != new_session.lock_delay),
        ("session.watch_grace", *watch_grace != new_session.watch_grace),
        ("session.node_checks", *node_checks != new_session.node_checks),
        ("session.service_checks", *service_checks != new_session.service_checks),
        ("session.node", *node != new_session.node),
        ("session.state_file", *state_file != new_session.state_file),
        ("acquire", acquire.written != new.acquire.written),
        ("http.listen", *listen != new.http.listen),
        ("control", *control != new.control),
        ("readiness.file", *readiness != new.readiness),
        ("workload", *workload != new.workload),
        ("log.format", *format != new.log.format),
    ]
}

/// Whether a change of this key takes effect only at a restart.
#[cfg(test)]
pub(crate) fn is_fixed(key: &str, config: &Config) -> bool {
    let fixed = fixed_keys(config, config);
    fixed
        .iter()
        .any(|(fixed, _)| key == *fixed || key.strip_prefix(fixed).is_some_and(|rest| rest.starts_with('.')))
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
        naming: _,
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
    use crate::agent::reload::entries::ConfigEntry;
    use crate::config::{Environment, Overrides};

    fn config(text: &str) -> Config {
        let environment = Environment::default();
        config::parse("test", text, &Overrides::default(), &environment).unwrap().config
    }

    fn names<E: ConfigEntry>(entries: &[E]) -> Vec<&str> {
        entries.iter().map(|one| one.entry().name.as_str()).collect()
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
        let renamed: Vec<_> =
            changes.renamed().map(|(from, entry)| (from, entry.name.as_str(), entry.key.as_str())).collect();
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
                let names = |entry: &Entry| entry.name.clone();
                assert_eq!(changes.added().map(names).collect::<Vec<_>>(), ["a"], "{new:?}");
                assert_eq!(changes.removed().map(names).collect::<Vec<_>>(), ["a"], "{new:?}");
                assert_eq!((changes.fields.len(), changes.refused.len()), (0, 0), "{changes:?}");
            }
        }
    }

    #[test]
    fn a_later_configuration_replaces_a_pending_entry() {
        let old = config("semaphores: [{name: a, prefix: p/a, limit: 1}, {name: b, prefix: p/b, limit: 1}]");
        let pending = BTreeSet::from([old.semaphores[1].entry.id()]);
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
        assert_eq!(new.semaphores[0].entry.name, "b");
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
        assert_eq!((changes.refused.len(), new.acquire), (1, old.acquire));
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
        let renamed: Vec<_> = changes.renamed().map(|(from, entry)| (from, entry.name.as_str())).collect();
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
