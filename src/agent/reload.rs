//! What a new configuration changes in a running agent, and what it cannot.

use tracing::{error, info, warn};

mod entries;

use super::files::PATIENCE;
use super::{Agent, client, translate};
use crate::clock;
use crate::config::{Acquire, Config, Loaded, Lock, Mode, Semaphore};
use crate::consul::TokenSource;
use crate::semaphore::{Machine, Moment, Settings};
use entries::{Difference, Told, difference};

impl Agent {
    /// Reads the configuration again and takes over what can change.
    pub(super) async fn reload(&mut self) {
        if self.ending.is_some() {
            return warn!("not reloading: draining");
        }
        let Loaded { config: mut new, warnings } = match (self.parts.read_config)() {
            Ok(loaded) => loaded,
            Err(faults) => {
                self.parts.metrics.reloaded(false);
                return error!("nothing is changed, since the configuration is wrong:\n{faults}");
            }
        };
        for warning in warnings {
            warn!("{warning}");
        }
        let is_leaving = |name: &str, key: &str, mode| {
            // Leases of before and of now go well together, but not with a slot that the agent itself holds.
            let lent = mode == Mode::Hold && self.leases.any_of(name);
            // Under another name it would take for its own what is about to be given back.
            let held = |machine: &Machine| **machine.name() == *name || machine.settings().prefix == key;
            self.own.keeper.machines().any(held) || lent
        };
        let changes = compare(&self.parts.config, &mut new, is_leaving);
        match client(&new, &self.parts.metrics) {
            Ok(client) => self.client = client.keeping_login_of(&self.client),
            Err(failure) => {
                self.parts.metrics.reloaded(false);
                return error!("nothing is changed: {failure:#}");
            }
        }
        for refused in &changes.refused {
            warn!("not changed: {refused}");
        }
        if changes.removed().any(|name| self.own.keeper.machine(name).is_some()) {
            // The file names what is about to be given back; it comes back without it.
            if let Some(readiness) = &self.parts.files.readiness {
                readiness.set(None);
            }
            self.unready(PATIENCE).await;
        }
        let now = clock::now();
        // What is lent stays lent, on the terms of before; only new leases go by the new ones.
        for name in changes.removed() {
            self.own.keeper.remove(&name.into(), now);
        }
        for semaphore in &changes.semaphores.changed {
            self.own.keeper.reconfigure(&semaphore.name.as_str().into(), translate::settings(semaphore), now);
        }
        for lock in &changes.locks.changed {
            let settings = translate::lock(lock, &new.session);
            self.own.keeper.reconfigure(&lock.name.as_str().into(), settings, now);
        }
        self.parts.log.set_level(new.log.level);
        self.parts.config = new;
        for name in changes.removed() {
            self.forget_removed(name);
        }
        for semaphore in &changes.semaphores.added {
            self.parts.metrics.add_semaphore(&semaphore.name);
            self.begin(&semaphore.name, semaphore.mode, translate::settings(semaphore), now);
        }
        for lock in &changes.locks.added {
            self.parts.metrics.add_lock(&lock.name, lock.mode == Mode::Hold);
            let settings = translate::lock(lock, &self.parts.config.session);
            self.begin(&lock.name, lock.mode, settings, now);
        }
        self.parts.metrics.reloaded(true);
        let all = |names: Vec<&str>| (!names.is_empty()).then(|| names.join(", "));
        info!(
            added = all(changes.added().collect()),
            removed = all(changes.removed().collect()),
            changed = all(changes.fields.iter().map(String::as_str).collect()),
            "configuration reloaded"
        );
    }

    /// Asks for one more, unless it is for clients to ask.
    fn begin(&mut self, name: &str, mode: Mode, settings: Settings, now: Moment) {
        if mode == Mode::Hold {
            self.own.keeper.add(name.into(), settings, now);
        }
    }
}

/// The difference between two configurations, split by what can be done about it.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Changes {
    pub(super) semaphores: Difference<Semaphore>,
    pub(super) locks: Difference<Lock>,
    /// The keys of everything that has changed, for people.
    pub(super) fields: Vec<String>,
    /// What differs and stays as it was until a restart, each with what to do.
    pub(super) refused: Vec<String>,
}

impl Changes {
    /// The names of all that is to be given back.
    fn removed(&self) -> impl Iterator<Item = &str> {
        self.semaphores.removed.iter().chain(&self.locks.removed).map(String::as_str)
    }

    /// The names of all that is new.
    fn added(&self) -> impl Iterator<Item = &str> {
        let semaphores = self.semaphores.added.iter().map(|one| one.name.as_str());
        semaphores.chain(self.locks.added.iter().map(|one| one.name.as_str()))
    }
}

/// Compares, and brings `new` back to `old` in whatever cannot change, so that it is what governs from here on.
/// `is_leaving`: something of that name or key, which is to be taken so, is still being given back.
pub(super) fn compare(
    old: &Config,
    new: &mut Config,
    is_leaving: impl Fn(&str, &str, Mode) -> bool,
) -> Changes {
    let mut changes = Changes::default();
    let Changes { semaphores, locks, fields, refused } = &mut changes;
    keep_fixed(old, new, refused);
    let mut told = Told { fields, refused };
    let together = new.acquire == Acquire::Together;
    *semaphores = difference(&old.semaphores, &mut new.semaphores, together, &is_leaving, &mut told);
    *locks = difference(&old.locks, &mut new.locks, together, &is_leaving, &mut told);
    fields.extend(changed_keys(old, new));
    changes
}

/// What only a restart can change. Token and TLS files are not among it: a new client takes them. A login is, since requests
/// under way with its token would be refused once it is ended.
fn keep_fixed(old: &Config, new: &mut Config, refused: &mut Vec<String>) {
    let (was, wants) = (&old.consul, &new.consul);
    let logs_in = |token: &Option<TokenSource>| matches!(token, Some(TokenSource::Login(_)));
    let other_login = was.token != wants.token && (logs_in(&was.token) || logs_in(&wants.token));
    let (had, asks) = (&old.session, &new.session);
    let fields = [
        ("consul.address", was.address != wants.address),
        ("consul.datacenter", was.datacenter != wants.datacenter),
        ("consul.namespace", was.namespace != wants.namespace),
        ("consul.partition", was.partition != wants.partition),
        ("consul.login", other_login),
        ("session.name", had.name != asks.name),
        ("session.ttl", had.ttl != asks.ttl),
        ("session.behavior", had.behavior != asks.behavior),
        ("session.lock_delay", had.lock_delay != asks.lock_delay),
        ("session.watch_grace", had.watch_grace != asks.watch_grace),
        ("session.node_checks", had.node_checks != asks.node_checks),
        ("session.service_checks", had.service_checks != asks.service_checks),
        ("session.node", had.node != asks.node),
        ("session.state_file", had.state_file != asks.state_file),
        ("acquire", old.acquire != new.acquire),
        ("http.listen", old.http != new.http),
        ("control", old.control != new.control),
        ("readiness.file", old.readiness != new.readiness),
        ("log.format", old.log.format != new.log.format),
    ];
    let differing = fields.into_iter().filter(|(_, differs)| *differs);
    refused.extend(differing.map(|(field, _)| format!("{field} takes effect only at a restart")));
    new.consul = crate::consul::Settings {
        token: if other_login { old.consul.token.clone() } else { new.consul.token.clone() },
        tls: new.consul.tls.clone(),
        ..old.consul.clone()
    };
    new.session = old.session.clone();
    new.acquire = old.acquire;
    new.http = old.http.clone();
    new.control.clone_from(&old.control);
    new.readiness.clone_from(&old.readiness);
    new.log.format = old.log.format;
}

/// The keys of what has changed beside the semaphores.
fn changed_keys(old: &Config, new: &Config) -> impl Iterator<Item = String> {
    let fields = [
        ("consul.token", old.consul.token != new.consul.token),
        ("consul.tls", old.consul.tls != new.consul.tls),
        ("hooks", old.hooks != new.hooks),
        ("drain", old.drain != new.drain),
        ("log.level", old.log.level != new.log.level),
    ];
    fields.into_iter().filter(|(_, differs)| *differs).map(|(field, _)| field.to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{self, Environment, Overrides};

    fn config(text: &str) -> Config {
        let environment = Environment::default();
        config::parse("test", text, &Overrides::default(), &environment).unwrap().config
    }

    fn names(semaphores: &[Semaphore]) -> Vec<&str> {
        semaphores.iter().map(|one| one.name.as_str()).collect()
    }

    #[test]
    fn semaphores_come_go_and_change() {
        let old = config("semaphores: [{name: a, prefix: p/a, limit: 1}, {name: b, prefix: p/b, limit: 1}]");
        let mut new =
            config("semaphores: [{name: b, prefix: p/b, limit: 2}, {name: c, prefix: p/c, limit: 1}]");
        let changes = compare(&old, &mut new, |_, _, _| false);
        assert_eq!(names(&changes.semaphores.added), ["c"]);
        assert_eq!(changes.semaphores.removed, ["a"]);
        assert_eq!(
            (names(&changes.semaphores.changed), changes.fields),
            (vec!["b"], vec!["b.limit".to_owned()])
        );
        assert_eq!(changes.refused, [""; 0]);
        assert_eq!(names(&new.semaphores), ["b", "c"]);
    }

    #[test]
    fn what_cannot_change_stays_as_it_was_and_is_said() {
        let old = config("semaphores: [{name: a, prefix: p/a, limit: 2}]");
        let mut new = config(
            "semaphores: [{name: a, prefix: p/other, limit: 2}]\nsession: {ttl: 60s}\n\
             consul: {address: 'http://127.0.0.2:8500', token_file: /token}\nreadiness: {file: /tmp/r}\n\
             control: {listen: 'unix:/tmp/c'}\nlog: {format: json, level: debug}",
        );
        let changes = compare(&old, &mut new, |_, _, _| false);
        let said = changes.refused.join("\n");
        let fields =
            ["consul.address ", "session.ttl ", "readiness.file ", "control takes", "log.format ", "prefix"];
        for field in fields {
            assert!(said.contains(field), "{field} in {said}");
        }
        assert_eq!(new.control, old.control);
        assert_eq!(new.session, old.session);
        assert_eq!(new.consul.address, old.consul.address);
        assert_eq!(new.semaphores, old.semaphores);
        // These do change.
        let file = TokenSource::File(Path::new("/token").to_owned());
        assert_eq!(new.consul.token, Some(file));
        assert_ne!(new.log.level, old.log.level);
        assert_eq!(changes.fields, ["consul.token", "log.level"]);
    }

    #[test]
    fn a_login_takes_a_restart_to_come_go_or_change() {
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
            let changes = compare(&old, &mut new, |_, _, _| false);
            assert_eq!(changes.refused.len(), refused, "{was} {wants}: {:?}", changes.refused);
            assert_eq!(new.consul.token == old.consul.token, was != file || wants == login, "{was} {wants}");
        }
    }

    #[test]
    fn nothing_joins_those_that_are_acquired_together() {
        let old = config("{acquire: together, semaphores: [{name: a, prefix: p/a, limit: 1}]}");
        let added = "[{name: a, prefix: p/a, limit: 1}, {name: b, prefix: p/b, limit: 1}, \
                     {name: c, prefix: p/c, limit: 1, required: false}]";
        let mut new = config(&format!("{{acquire: together, semaphores: {added}}}"));
        let changes = compare(&old, &mut new, |_, _, _| false);
        assert_eq!(names(&changes.semaphores.added), ["c"]);
        assert!(changes.refused[0].contains("b cannot be acquired together"));
        let mut new = config("{semaphores: [{name: a, prefix: p/a, limit: 1}]}");
        let changes = compare(&old, &mut new, |_, _, _| false);
        assert_eq!((changes.refused.len(), new.acquire), (1, Acquire::Together));
    }

    #[test]
    fn place_in_line_and_text_for_operators_change_and_slots_do_not() {
        let one = |fields: &str| config(&format!("semaphores: [{{name: a, prefix: p/a, limit: 3{fields}}}]"));
        let old = one("");
        let mut new = one(", priority: 7, body: urgent");
        let changes = compare(&old, &mut new, |_, _, _| false);
        assert_eq!((changes.semaphores.changed, changes.refused), (new.semaphores.clone(), Vec::new()));
        assert_eq!(compare(&old, &mut one(", slots: 2"), |_, _, _| false).refused.len(), 1);
    }

    #[test]
    fn one_that_is_still_being_given_back_is_not_begun_again() {
        let old = config("semaphores: [{name: a, prefix: p/a, limit: 1}]");
        let text = "semaphores: [{name: a, prefix: p/a, limit: 1}, {name: b, prefix: p/b, limit: 1}]";
        let mut new = config(text);
        let changes = compare(&old, &mut new, |name, _, _| name == "b");
        assert_eq!(names(&new.semaphores), ["a"]);
        assert!(
            changes.semaphores.added.is_empty() && changes.refused[0].contains("b is still being given back")
        );
    }

    #[test]
    fn of_one_on_demand_everything_but_its_mode_changes_for_the_next_lease() {
        let one = |fields: &str| {
            config(&format!("control: {{listen: 'unix:/c'}}\nsemaphores: [{{name: a, limit: 3, {fields}}}]"))
        };
        let old = one("prefix: p/a, mode: on_demand");
        let mut new = one("prefix: p/b, slots: 2, mode: on_demand");
        let changes = compare(&old, &mut new, |_, _, _| false);
        assert_eq!((changes.refused, changes.fields), (vec![], vec!["a.prefix".into(), "a.slots".into()]));
        let mut new = one("prefix: p/a, mode: hold");
        let changes = compare(&old, &mut new, |_, _, _| false);
        assert!(changes.refused[0].contains("a: mode cannot change"), "{:?}", changes.refused);
        assert_eq!(new.semaphores, old.semaphores);
    }

    #[test]
    fn locks_come_go_and_change_as_semaphores_do() {
        let old = config("locks: [{name: a, key: k/a}, {name: b, key: k/b}, {name: d, key: k/d}]");
        let mut new = config(
            "locks: [{name: b, key: k/b, required: false, wait: 5s}, {name: c, key: k/c}, {name: d, key: k/e}]",
        );
        let changes = compare(&old, &mut new, |_, _, _| false);
        let names = |locks: &[Lock]| locks.iter().map(|one| one.name.clone()).collect::<Vec<_>>();
        assert_eq!(
            (names(&changes.locks.added), &changes.locks.removed),
            (vec!["c".into()], &vec!["a".into()])
        );
        assert_eq!(
            (names(&changes.locks.changed), changes.fields),
            (vec!["b".into()], vec!["b.required".into(), "b.wait".into()])
        );
        assert!(changes.refused[0].contains("locks: d: key cannot change"), "{:?}", changes.refused);
        assert_eq!(new.locks[2].key, "k/d");
        // What was a semaphore of that name goes first.
        let old = config("semaphores: [{name: a, prefix: p/a, limit: 1}]");
        let mut new = config("locks: [{name: a, key: k/a}]");
        let changes = compare(&old, &mut new, |name, _, _| name == "a");
        assert_eq!(changes.semaphores.removed, ["a"]);
        assert!(changes.locks.added.is_empty() && changes.refused[0].contains("a is still being given back"));
    }
}
