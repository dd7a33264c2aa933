//! The rules between entries, and between sections.

use std::collections::BTreeMap;
use std::time::Duration;

use super::entries::{Entry, Mode, Semaphore};
use super::{Config, Kind, Listen, Release};
use crate::config::findings::Findings;
use crate::config::path::FieldPath;
use crate::duration::show;
use slotkeeper_semaphore::Form;

/// An entry, with its field.
struct Placed<'c> {
    at: FieldPath,
    entry: &'c Entry,
    /// None for a lock.
    semaphore: Option<&'c Semaphore>,
}

/// Checks a configuration, and decides how its slots are acquired. A value that has a fault of its own is a harmless one here; an
/// empty name or key is none.
pub(in crate::config) fn check(config: &mut Config, findings: &mut Findings) {
    let place = |list: &str, index, entry, semaphore| Placed {
        at: FieldPath::of(list).index(index),
        entry,
        semaphore,
    };
    let semaphores = config.semaphores.iter().enumerate();
    let semaphores = semaphores.map(|(index, one)| place("semaphores", index, &one.entry, Some(one)));
    let locks = config.locks.iter().enumerate().map(|(index, one)| place("locks", index, one, None));
    // One that is no mapping is unknown altogether.
    let entries: Vec<_> = semaphores.chain(locks).filter(|one| !findings.is_unsure(&one.at)).collect();
    let is_required = entries.iter().any(|one| one.entry.is_required());
    let is_held = |one: &Placed<'_>| one.entry.mode == Mode::Hold;
    if config.entries().next().is_none() {
        findings.fault(
            &FieldPath::of("semaphores"),
            "nothing to hold; list at least one semaphore, or one of `locks`",
        );
    } else if !is_required && entries.iter().any(|one| is_held(one) && one.semaphore.is_some()) {
        // A follower of a lock is ready without it, by intention.
        findings.warn(&FieldPath::of("semaphores"), "none is required, so readiness waits for no slot");
    }
    names_are_unique(&entries, findings);
    keys_are_distinct(&entries, findings);
    paths_are_distinct(config, findings);
    warn_of_health_checks(config, findings);
    check_end_of_workload(config, findings);
    let stops = config.workload.as_ref().is_some_and(|workload| workload.kill_after.is_some());
    if stops && !is_required && entries.iter().any(is_held) {
        findings.fault(
            &FieldPath::of("workload.stop"),
            "no slot is required, so the agent would end the workload at once; require a slot, or remove `stop`",
        );
    }
    config.acquire.together = is_acquired_together(config.acquire.written, &entries, findings);
}

/// A name as part of a variable's name, such as `SLOTKEEPER_SLOT_WAREHOUSE_WRITERS`.
pub fn variable_part(name: &str) -> String {
    name.to_ascii_uppercase().replace(['-', '.'], "_")
}

/// Names must differ also in the variables that `slotkeeper run` sets for its child, where `a-b` and `a.b` are both `A_B`.
fn names_are_unique(entries: &[Placed<'_>], findings: &mut Findings) {
    let mut taken: BTreeMap<String, (&FieldPath, &str)> = BTreeMap::new();
    for Placed { at, entry: Entry { name, .. }, .. } in
        entries.iter().filter(|one| !one.entry.name.is_empty())
    {
        let variable = variable_part(name);
        let message = match taken.get(&variable) {
            None => {
                taken.insert(variable, (at, name));
                continue;
            }
            Some((first, other)) if other == name => {
                format!("`{name}` is the name of {first} already; write another name")
            }
            Some((first, other)) => format!(
                "has the same variable SLOTKEEPER_SLOT_{variable} as `{other}` of {first}; write another name"
            ),
        };
        findings.fault(&at.key("name"), message);
    }
}

/// Each entry needs a key of its own, outside the prefixes of all semaphores. Foreign clients count each key with a session
/// below a prefix as a contender.
fn keys_are_distinct(entries: &[Placed<'_>], findings: &mut Findings) {
    for (position, Placed { at, entry, .. }) in entries.iter().enumerate() {
        let key = &entry.key;
        let clash = entries.iter().enumerate().find_map(|(other_position, Placed { at: other_at, entry: other, .. })| {
            let rest = key.strip_prefix(&other.key).filter(|_| !other.key.is_empty())?;
            let whose = format!("the {} of {other_at}", other.key_field());
            // Of two equal keys the later one has the fault.
            if rest.is_empty() && other_position < position {
                Some(format!("`{key}` is {whose} already; write another path"))
            } else if rest.starts_with('/') && other.kind == Kind::Semaphore {
                let prefix = &other.key;
                Some(format!(
                    "lies below `{prefix}`, {whose}, and would count as its contender; write a path beside it"
                ))
            } else {
                None
            }
        });
        if let Some(clash) = clash {
            findings.fault(&at.key(entry.key_field()), clash);
        }
    }
}

/// The agent creates or replaces each of these files, and the two servers need an address each. The control address serves the
/// read-only endpoints too, so one server is enough.
fn paths_are_distinct(config: &Config, findings: &mut Findings) {
    let (token, socket) = match &config.control {
        None => (None, None),
        Some(control) => match &control.listen {
            Listen::Unix(socket) => (None, Some(socket.as_path())),
            Listen::Tcp(address) => {
                if config.http.listen == Some(*address) && address.port() != 0 {
                    findings.fault(
                        &FieldPath::of("control.listen"),
                        "is the same address as http.listen; write another port, or turn the other one off (`http: {listen: off}`)",
                    );
                }
                (Some(control.token_file.as_path()), None)
            }
        },
    };
    let files = [
        ("session.state_file", config.session.state_file.as_deref()),
        ("readiness.file", config.readiness.as_deref()),
        ("control.token_file", token),
        ("control.listen", socket),
    ];
    for (index, (field, path)) in files.iter().enumerate() {
        let same = files[..index].iter().find(|(_, other)| path.is_some() && other == path);
        if let Some((other, _)) = same {
            findings.fault(&FieldPath::of(field), format!("is the same path as {other}; write another path"));
        }
    }
}

/// A failing health check ends the session at once, while the lease of a holder that is cut off lasts for up to a TTL more.
/// Only a prune delay covers that time, and only if every client of the semaphore has it. The agent cannot know that, so this
/// is a warning.
fn warn_of_health_checks(config: &Config, findings: &mut Findings) {
    let session = &config.session;
    let lists =
        [("session.node_checks", &session.node_checks), ("session.service_checks", &session.service_checks)];
    let Some((field, _)) = lists.into_iter().find(|(_, checks)| !checks.is_empty()) else { return };
    let ttl = show(session.ttl);
    if session.lock_delay < session.ttl && !config.locks.is_empty() {
        findings.warn(
            &FieldPath::of(field),
            &format!(
                "a failing check ends the session at once, while the owner of a lock that is cut off from Consul goes on for \
                 up to {ttl}; write a session.lock_delay of at least {ttl} (at most 60s), or remove the checks"
            ),
        );
    }
    if config.semaphores.iter().any(|one| one.prune_delay < session.ttl) {
        findings.warn(
            &FieldPath::of(field),
            &format!(
                "a failing check ends the session at once, while a holder cut off from Consul goes on for up to {ttl}; \
                 write a prune_delay of at least {ttl} on every client of the semaphore, or remove the checks"
            ),
        );
    }
}

/// The agent has one way to learn that the workload is done.
fn check_end_of_workload(config: &Config, findings: &mut Findings) {
    let waits = config.drain.release == Release::AfterWorkload;
    let has_workload = config.workload.is_some();
    if waits && has_workload {
        findings.fault(
            &FieldPath::of("drain.release"),
            "with the section `workload` the agent sees when the workload is done; remove one of the two",
        );
    } else if waits && config.control.is_none() {
        findings.warn(
            &FieldPath::of("drain.release"),
            "without control.listen the workload cannot report that it is done, and each stop takes the whole drain.timeout; \
             set control.listen",
        );
    }
    if config.drain.hold > Duration::ZERO && (waits || has_workload) {
        let other = if has_workload { "the section `workload`" } else { "`release: after_workload`" };
        let message = format!(
            "has no use with {other}, by which the agent learns when the workload is done; remove one of the two"
        );
        findings.fault(&FieldPath::of("drain.hold"), message);
    }
}

/// Whether the required slots are acquired together. Where the key is absent and a group is possible, they are: two clients that
/// each hold one slot and wait for the other's would wait for ever.
fn is_acquired_together(written: Option<bool>, entries: &[Placed<'_>], findings: &mut Findings) -> bool {
    let required: Vec<_> = entries.iter().filter(|one| one.entry.is_required()).collect();
    match written {
        Some(false) => false,
        Some(true) => {
            for Obstacle { at, why, passes } in obstacles_to_group(&required) {
                if passes { findings.warn(&at, &why) } else { findings.fault(&at, why) }
            }
            true
        }
        None if required.len() < 2 => false,
        None => {
            let obstacles = obstacles_to_group(&required);
            let may_wait_forever = required.iter().any(|one| one.entry.wait.is_none());
            if let Some(Obstacle { at, why, .. }) = obstacles.first().filter(|_| may_wait_forever) {
                findings.warn(
                    &FieldPath::of("acquire"),
                    &format!(
                        "is not set, and an acquire group is not possible ({at}: {why}), so each required slot is acquired by \
                         itself; jobs that each hold one and wait for another may wait for each other for ever; follow that \
                         advice, bound each `wait`, or accept it by `acquire: independently`"
                    ),
                );
            }
            obstacles.is_empty()
        }
    }
}

/// Why the required slots cannot be acquired in one transaction.
struct Obstacle {
    at: FieldPath,
    /// The reason, and what to write instead.
    why: String,
    /// Whether it passes when enough holders release.
    passes: bool,
}

/// The semaphores of an acquire group have one wait and one priority. A transaction has at most 64 operations. A semaphore
/// needs up to four of them in a large group, and up to five in a small one.
///
/// Other clients grant the slots of a group by its contender keys, and a lock has none. A lock and a group that are acquired one
/// after the other could deadlock.
fn obstacles_to_group(required: &[&Placed<'_>]) -> Vec<Obstacle> {
    const MAX_SEMAPHORES: usize = 16;
    let obstacle = |at, why: &str| Obstacle { at, why: why.to_owned(), passes: false };
    let semaphores: Vec<_> = required.iter().filter_map(|one| Some((&one.at, one.semaphore?))).collect();
    let count = semaphores.len();
    let mut obstacles = Vec::new();
    if count > MAX_SEMAPHORES {
        let why = format!(
            "`together` allows at most {MAX_SEMAPHORES} required semaphores, not {count}; write `required: false` for some"
        );
        obstacles.push(obstacle(FieldPath::of("acquire"), &why));
    }
    if count > 1 {
        obstacles.extend(too_large_for_one_transaction(&semaphores));
    }
    for (at, one) in semaphores.iter().skip(1) {
        let (first_at, first) = semaphores[0];
        let why =
            format!("differs from that of {first_at}, which is acquired together with it; write the same");
        let differs =
            [("wait", one.entry.wait != first.entry.wait), ("priority", one.priority != first.priority)];
        let differs = differs.into_iter().filter(|(_, differs)| *differs);
        obstacles.extend(differs.map(|(field, _)| obstacle(at.key(field), &why)));
    }
    let why = "`acquire: together` does not include locks; write `required: false`, or a semaphore with a limit of 1 instead";
    let locks = required.iter().filter(|one| one.semaphore.is_none());
    obstacles.extend(locks.map(|lock| obstacle(lock.at.key("required"), why)));
    obstacles
}

/// The maximum size of a transaction in bytes: Consul's default of `txn_max_req_len`.
const MAX_TRANSACTION: usize = 512 * 1024;

/// The most bytes that a semaphore adds to the transaction of its acquire group, if its `.lock` lists so many holders.
fn bytes_in_transaction(one: &Semaphore, prefixes: &[String], holders: u32) -> usize {
    /// The names of pod, host, user and job; and the handoff list.
    const OTHER_BYTES: usize = 8 * 1024;
    const INDEX: usize = "4999,".len();
    const SESSION: usize = 36;
    let text = |text: &str| serde_json::to_string(text).map_or(text.len(), |text| text.len());
    let holder = SESSION + INDEX + if one.format == Form::Map { r#""":true,"# } else { r#""","# }.len();
    let words = one.entry.body.iter().chain(prefixes).map(|word| text(word)).sum::<usize>();
    let values = holders as usize * holder + one.slots as usize * INDEX + words + OTHER_BYTES;
    // The key is in five steps, and the values are sent in base64.
    5 * text(&one.entry.key) + values.div_ceil(3) * 4
}

/// Consul refuses a transaction of more than 512 KiB, and this one writes the `.lock` keys of the whole group.
fn too_large_for_one_transaction(required: &[(&FieldPath, &Semaphore)]) -> Option<Obstacle> {
    let prefixes: Vec<_> = required.iter().map(|(_, one)| one.entry.key.clone()).collect();
    let fits = |holders: fn(&Semaphore) -> u32| {
        let bytes = required.iter().map(|(_, one)| bytes_in_transaction(one, &prefixes, holders(one)));
        bytes.sum::<usize>() <= MAX_TRANSACTION
    };
    let obstacle =
        |why: &str, passes| Some(Obstacle { at: FieldPath::of("acquire"), why: why.to_owned(), passes });
    if !fits(|one| one.slots) {
        obstacle(
            "`together` acquires all slots in one transaction, and so many do not fit into one and could never be acquired; \
             write fewer `slots`, or `independently`",
            false,
        )
    } else if !fits(|one| one.limit) {
        obstacle(
            "`together` acquires all slots in one transaction, which lists all holders; with as many holders as the limits \
             allow, it is larger than Consul accepts and fails until some holders release; write lower limits, or \
             `independently`",
            true,
        )
    } else {
        None
    }
}
