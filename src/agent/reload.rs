//! What a new configuration changes in a running agent, and what it cannot.

use tracing::{error, info, warn};

use super::files::PATIENCE;
use super::{Agent, client, translate};
use crate::clock;
use crate::config::{Acquire, Config, Loaded, Mode, Semaphore};
use crate::status::Stage;

impl Agent {
    /// Reads the configuration again and takes over what can change.
    pub(super) async fn reload(&mut self) {
        if self.stage != Stage::Running {
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
        let is_leaving = |wanted: &Semaphore| {
            let configured = self.parts.config.semaphores.iter().any(|had| had.name == wanted.name);
            // Leases of before and of now go well together, but not with a slot that the agent itself holds.
            let lent = wanted.mode == Mode::Hold && self.leases.any_of(&wanted.name);
            !configured && (self.own.keeper.machine(&wanted.name).is_some() || lent)
        };
        let changes = compare(&self.parts.config, &mut new, is_leaving);
        match client(&new, &self.parts.metrics) {
            Ok(client) => self.client = client,
            Err(failure) => {
                self.parts.metrics.reloaded(false);
                return error!("nothing is changed: {failure:#}");
            }
        }
        for refused in &changes.refused {
            warn!("not changed: {refused}");
        }
        let is_held = |name: &String| self.own.keeper.machine(name).is_some();
        if changes.removed.iter().any(is_held) {
            // The file names what is about to be given back; it comes back without it.
            if let Some(readiness) = &self.parts.files.readiness {
                readiness.set(None);
            }
            self.unready(PATIENCE).await;
        }
        let now = clock::now();
        // What is lent stays lent, on the terms of before; only new leases go by the new ones.
        for name in &changes.removed {
            self.own.keeper.remove(&name.as_str().into(), now);
        }
        for semaphore in &changes.changed {
            self.own.keeper.reconfigure(&semaphore.name.as_str().into(), translate::settings(semaphore), now);
        }
        self.parts.log.set_level(new.log.level);
        self.parts.config = new;
        for name in &changes.removed {
            self.forget_removed(name);
        }
        for semaphore in &changes.added {
            self.add(semaphore, now);
        }
        self.parts.metrics.reloaded(true);
        let added: Vec<_> = changes.added.iter().map(|one| one.name.as_str()).collect();
        let said = |names: &[&str]| (!names.is_empty()).then(|| names.join(", "));
        let all = |names: &[String]| said(&names.iter().map(String::as_str).collect::<Vec<_>>());
        info!(
            added = said(&added),
            removed = all(&changes.removed),
            changed = all(&changes.fields),
            "configuration reloaded"
        );
    }
}

/// The difference between two configurations, split by what can be done about it.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Changes {
    /// Semaphores to be asked for.
    pub(super) added: Vec<Semaphore>,
    /// Names of semaphores to be given back.
    pub(super) removed: Vec<String>,
    /// Semaphores whose terms have changed.
    pub(super) changed: Vec<Semaphore>,
    /// The keys of everything that has changed, for people.
    pub(super) fields: Vec<String>,
    /// What differs and stays as it was until a restart, each with what to do.
    pub(super) refused: Vec<String>,
}

/// Compares, and brings `new` back to `old` in whatever cannot change, so that it is what governs from here on.
pub(super) fn compare(old: &Config, new: &mut Config, is_leaving: impl Fn(&Semaphore) -> bool) -> Changes {
    let mut changes = Changes::default();
    keep_fixed(old, new, &mut changes.refused);
    let mut kept = Vec::new();
    for mut wanted in std::mem::take(&mut new.semaphores) {
        match old.semaphores.iter().find(|had| had.name == wanted.name) {
            Some(had) => {
                if let Some(field) = fixed_field(had, &wanted) {
                    changes.refused.push(format!(
                        "semaphores: {}: {field} cannot change while it is held or waited for; remove the \
                         semaphore, reload, add it again and reload",
                        had.name
                    ));
                    wanted = had.clone();
                } else if *had != wanted {
                    changes.fields.extend(changed_fields(had, &wanted));
                    changes.changed.push(wanted.clone());
                }
                kept.push(wanted);
            }
            None if is_leaving(&wanted) => changes.refused.push(format!(
                "semaphores: {} is still being given back; reload again in a moment",
                wanted.name
            )),
            // Those that are held would have to be given back first.
            None if wanted.required && new.acquire == Acquire::Together => changes.refused.push(format!(
                "semaphores: {} cannot be acquired together with what is held already; restart, or make it not required",
                wanted.name
            )),
            None => {
                changes.added.push(wanted.clone());
                kept.push(wanted);
            }
        }
    }
    let is_kept = |had: &&Semaphore| !kept.iter().any(|wanted| wanted.name == had.name);
    changes.removed = old.semaphores.iter().filter(is_kept).map(|had| had.name.clone()).collect();
    new.semaphores = kept;
    changes.fields.extend(changed_keys(old, new));
    changes
}

/// What only a restart can change. Token and TLS files are not among it: a new client takes them.
fn keep_fixed(old: &Config, new: &mut Config, refused: &mut Vec<String>) {
    let (was, wants) = (&old.consul, &new.consul);
    let (had, asks) = (&old.session, &new.session);
    let fields = [
        ("consul.address", was.address != wants.address),
        ("consul.datacenter", was.datacenter != wants.datacenter),
        ("consul.namespace", was.namespace != wants.namespace),
        ("consul.partition", was.partition != wants.partition),
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
        ("control.listen", old.control != new.control),
        ("readiness.file", old.readiness != new.readiness),
        ("log.format", old.log.format != new.log.format),
    ];
    let differing = fields.into_iter().filter(|(_, differs)| *differs);
    refused.extend(differing.map(|(field, _)| format!("{field} takes effect only at a restart")));
    new.consul = crate::consul::Settings {
        token: new.consul.token.clone(),
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

/// The fields of a semaphore that have changed, under its name.
fn changed_fields(had: &Semaphore, wanted: &Semaphore) -> impl Iterator<Item = String> {
    let fields = [
        ("prefix", had.prefix != wanted.prefix),
        ("slots", had.slots != wanted.slots),
        ("limit", had.limit != wanted.limit),
        ("priority", had.priority != wanted.priority),
        ("required", had.required != wanted.required),
        ("wait", had.wait != wanted.wait),
        ("on_lost", had.on_lost != wanted.on_lost),
        ("limit_policy", had.limit_policy != wanted.limit_policy),
        ("prune_delay", had.prune_delay != wanted.prune_delay),
        ("format", had.format != wanted.format),
        ("body", had.body != wanted.body),
    ];
    let name = had.name.clone();
    fields.into_iter().filter(|(_, differs)| *differs).map(move |(field, _)| format!("{name}.{field}"))
}

/// The first field that differs and that a machine cannot take over. One on demand has a machine only for each lease,
/// which keeps what it was granted with.
fn fixed_field(had: &Semaphore, wanted: &Semaphore) -> Option<&'static str> {
    let on_demand = had.mode == Mode::OnDemand;
    let differs = [
        ("mode", had.mode != wanted.mode),
        ("prefix", !on_demand && had.prefix != wanted.prefix),
        ("slots", !on_demand && had.slots != wanted.slots),
    ];
    differs.into_iter().find_map(|(field, differs)| differs.then_some(field))
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
        let changes = compare(&old, &mut new, |_| false);
        assert_eq!(names(&changes.added), ["c"]);
        assert_eq!(changes.removed, ["a"]);
        assert_eq!((names(&changes.changed), changes.fields), (vec!["b"], vec!["b.limit".to_owned()]));
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
        let changes = compare(&old, &mut new, |_| false);
        let said = changes.refused.join("\n");
        let fields = [
            "consul.address ",
            "session.ttl ",
            "readiness.file ",
            "control.listen ",
            "log.format ",
            "prefix",
        ];
        for field in fields {
            assert!(said.contains(field), "{field} in {said}");
        }
        assert_eq!(new.control, old.control);
        assert_eq!(new.session, old.session);
        assert_eq!(new.consul.address, old.consul.address);
        assert_eq!(new.semaphores, old.semaphores);
        // These do change.
        let file = crate::consul::TokenSource::File(Path::new("/token").to_owned());
        assert_eq!(new.consul.token, Some(file));
        assert_ne!(new.log.level, old.log.level);
        assert_eq!(changes.fields, ["consul.token", "log.level"]);
    }

    #[test]
    fn nothing_joins_those_that_are_acquired_together() {
        let old = config("{acquire: together, semaphores: [{name: a, prefix: p/a, limit: 1}]}");
        let added = "[{name: a, prefix: p/a, limit: 1}, {name: b, prefix: p/b, limit: 1}, \
                     {name: c, prefix: p/c, limit: 1, required: false}]";
        let mut new = config(&format!("{{acquire: together, semaphores: {added}}}"));
        let changes = compare(&old, &mut new, |_| false);
        assert_eq!(names(&changes.added), ["c"]);
        assert!(changes.refused[0].contains("b cannot be acquired together"));
        let mut new = config("{semaphores: [{name: a, prefix: p/a, limit: 1}]}");
        let changes = compare(&old, &mut new, |_| false);
        assert_eq!((changes.refused.len(), new.acquire), (1, Acquire::Together));
    }

    #[test]
    fn place_in_line_and_text_for_operators_change_and_slots_do_not() {
        let one = |fields: &str| config(&format!("semaphores: [{{name: a, prefix: p/a, limit: 3{fields}}}]"));
        let old = one("");
        let mut new = one(", priority: 7, body: urgent");
        let changes = compare(&old, &mut new, |_| false);
        assert_eq!((changes.changed, changes.refused), (new.semaphores.clone(), Vec::new()));
        assert_eq!(compare(&old, &mut one(", slots: 2"), |_| false).refused.len(), 1);
    }

    #[test]
    fn one_that_is_still_being_given_back_is_not_begun_again() {
        let old = config("semaphores: [{name: a, prefix: p/a, limit: 1}]");
        let text = "semaphores: [{name: a, prefix: p/a, limit: 1}, {name: b, prefix: p/b, limit: 1}]";
        let mut new = config(text);
        let changes = compare(&old, &mut new, |one| one.name == "b");
        assert_eq!(names(&new.semaphores), ["a"]);
        assert!(changes.added.is_empty() && changes.refused[0].contains("b is still being given back"));
    }

    #[test]
    fn of_one_on_demand_everything_but_its_mode_changes_for_the_next_lease() {
        let one = |fields: &str| {
            config(&format!("control: {{listen: 'unix:/c'}}\nsemaphores: [{{name: a, limit: 3, {fields}}}]"))
        };
        let old = one("prefix: p/a, mode: on_demand");
        let mut new = one("prefix: p/b, slots: 2, mode: on_demand");
        let changes = compare(&old, &mut new, |_| false);
        assert_eq!((changes.refused, changes.fields), (vec![], vec!["a.prefix".into(), "a.slots".into()]));
        let mut new = one("prefix: p/a, mode: hold");
        let changes = compare(&old, &mut new, |_| false);
        assert!(changes.refused[0].contains("a: mode cannot change"), "{:?}", changes.refused);
        assert_eq!(new.semaphores, old.semaphores);
    }
}
