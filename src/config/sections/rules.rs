//! The rules between entries, and between sections.
//!
//! They read the raw values: an entry with a fault of its own still has a name that another entry must not have.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::RawConfig;
use super::acquire::{Acquire, RawAcquire};
use super::drain::Release;
use super::http::DEFAULT_LISTEN;
use super::resource::{Format, MAX_ENTRIES, Mode, RawSemaphore, Wait, is_required};
use super::session::DEFAULT_LOCK_DELAY;
use crate::config::findings::Findings;
use crate::config::path::FieldPath;
use crate::config::scalar::DurationString;
use crate::duration::show;
use slotkeeper_semaphore::{Acquisition, DEFAULT_TTL, Form, MAX_LIMIT};

pub(super) fn check(raw: &RawConfig, findings: &mut Findings) {
    let contended = contended(raw);
    if contended.is_empty() {
        findings.fault(
            &FieldPath::of("semaphores"),
            "nothing to hold; list at least one semaphore, or one of `locks`",
        );
    } else if any_semaphore_is_held(raw) && !contended.iter().any(|one| is_required(one.mode, one.required)) {
        // A follower of a lock is ready without it, by intention.
        findings.warn(&FieldPath::of("semaphores"), "none is required, so readiness waits for no slot");
    }
    names_are_unique(&contended, findings);
    keys_are_distinct(&contended, findings);
    files_are_distinct(raw, findings);
    listeners_are_distinct(raw, findings);
    check_health_checks(raw, findings);
    warn_of_release_without_control(raw, findings);
    check_end_of_workload(raw, findings);
    check_workload_stop(raw, &contended, findings);
    check_on_demand(raw, &contended, findings);
}

fn any_held(contended: &[Contended<'_>]) -> bool {
    contended.iter().any(|one| one.mode != Some(Mode::OnDemand))
}

fn any_semaphore_is_held(raw: &RawConfig) -> bool {
    let mut semaphores = raw.semaphores.iter().flatten().flatten();
    semaphores.any(|one| one.mode != Some(Mode::OnDemand))
}

/// What semaphores and locks have in common.
struct Contended<'r> {
    at: FieldPath,
    name: Option<&'r str>,
    key: Option<&'r str>,
    key_field: &'static str,
    required: Option<bool>,
    mode: Option<Mode>,
    wait: Option<Wait>,
    sets_on_lost: bool,
}

fn contended(raw: &RawConfig) -> Vec<Contended<'_>> {
    let semaphores =
        raw.semaphores.iter().flatten().take(MAX_ENTRIES).enumerate().map(|(index, one)| Contended {
            at: FieldPath::of("semaphores").index(index),
            name: one.as_ref().and_then(|one| one.name.as_deref()),
            key: one.as_ref().and_then(|one| one.prefix.as_deref()),
            key_field: "prefix",
            required: one.as_ref().and_then(|one| one.required),
            mode: one.as_ref().and_then(|one| one.mode),
            wait: one.as_ref().and_then(|one| one.wait),
            sets_on_lost: one.as_ref().is_some_and(|one| one.on_lost.is_some()),
        });
    let locks = raw.locks.iter().flatten().take(MAX_ENTRIES).enumerate().map(|(index, one)| Contended {
        at: FieldPath::of("locks").index(index),
        name: one.as_ref().and_then(|one| one.name.as_deref()),
        key: one.as_ref().and_then(|one| one.key.as_deref()),
        key_field: "key",
        required: one.as_ref().and_then(|one| one.required),
        mode: one.as_ref().and_then(|one| one.mode),
        wait: one.as_ref().and_then(|one| one.wait),
        sets_on_lost: one.as_ref().is_some_and(|one| one.on_lost.is_some()),
    });
    semaphores.chain(locks).collect()
}

/// A name as part of a variable's name, such as `SLOTKEEPER_SLOT_WAREHOUSE_WRITERS`.
pub fn variable_part(name: &str) -> String {
    name.to_ascii_uppercase().replace(['-', '.'], "_")
}

/// Names must differ also in the variables that `slotkeeper run` sets for its child, where `a-b` and `a.b` are both `A_B`.
fn names_are_unique(contended: &[Contended<'_>], findings: &mut Findings) {
    let mut taken: BTreeMap<String, (&str, &FieldPath)> = BTreeMap::new();
    for one in contended {
        let Some(name) = one.name else { continue };
        let suffix = variable_part(name);
        match taken.get(&suffix) {
            None => {
                taken.insert(suffix, (name, &one.at));
            }
            Some((other, at)) if *other == name => {
                findings.fault(
                    &one.at.key("name"),
                    format!("`{name}` is the name of {at} already; write another name"),
                );
            }
            Some((other, at)) => findings.fault(
                &one.at.key("name"),
                format!(
                    "has the same variable SLOTKEEPER_SLOT_{suffix} as `{other}` of {at}; write another name"
                ),
            ),
        }
    }
}

/// Each entry needs a key of its own, outside the prefixes of all semaphores. Foreign clients count each key with a session
/// below a prefix as a contender.
fn keys_are_distinct(contended: &[Contended<'_>], findings: &mut Findings) {
    for (position, one) in contended.iter().enumerate() {
        let Some(key) = one.key.map(normalised) else { continue };
        let clash = contended.iter().enumerate().find_map(|(other_position, other)| {
            let other_key = other.key.map(normalised)?;
            let whose = format!("the {} of {}", other.key_field, other.at);
            // Of two equal keys the later one has the fault.
            if key == other_key && other_position < position {
                Some(format!("`{key}` is {whose} already; write another path"))
            } else if other.key_field == "prefix" && lies_below(key, other_key) {
                Some(format!(
                    "lies below `{other_key}`, {whose}, and would count as its contender; write a path beside it"
                ))
            } else {
                None
            }
        });
        if let Some(clash) = clash {
            findings.fault(&one.at.key(one.key_field), clash);
        }
    }
}

fn normalised(key: &str) -> &str {
    key.trim_matches('/')
}

fn lies_below(key: &str, prefix: &str) -> bool {
    key.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'))
}

/// How the required slots are acquired. Where the key is absent and a group is possible, they are acquired together: two clients
/// that each hold one slot and wait for the other's would wait for ever.
pub(super) fn acquire(raw: &RawConfig, findings: &mut Findings) -> Acquire {
    let obstacles = obstacles_to_group(raw);
    let mut together = raw.acquire == Some(RawAcquire::Together);
    if together {
        for Obstacle { at, why, passes } in obstacles {
            if passes { findings.warn(&at, &why) } else { findings.fault(&at, why) }
        }
    } else if raw.acquire.is_none() {
        let contended = contended(raw);
        let required = contended.iter().filter(|one| is_required(one.mode, one.required));
        let waits: Vec<_> = required.map(|one| one.wait.unwrap_or_default()).collect();
        let may_wait_forever = waits.len() > 1 && waits.contains(&Wait::Forever);
        if let Some(Obstacle { at, why, .. }) = obstacles.first().filter(|_| may_wait_forever) {
            findings.warn(
                &FieldPath::of("acquire"),
                &format!(
                    "is not set, and an acquire group is not possible ({at}: {why}), so each required slot is acquired by itself; \
                     jobs that each hold one and wait for another may wait for each other for ever; follow that advice, bound \
                     each `wait`, or accept it by `acquire: independently`"
                ),
            );
        }
        together = waits.len() > 1 && obstacles.is_empty();
    }
    Acquire { written: raw.acquire, together }
}

/// Why the required slots cannot be acquired in one transaction.
struct Obstacle {
    at: FieldPath,
    /// The reason, and what to write instead.
    why: String,
    /// Whether it passes when enough holders release.
    passes: bool,
}

impl Obstacle {
    fn new(at: FieldPath, why: impl Into<String>) -> Self {
        Self { at, why: why.into(), passes: false }
    }
}

/// The semaphores of an acquire group have one wait and one priority. A transaction has at most 64 operations. A semaphore
/// needs up to four of them in a large group, and up to five in a small one.
fn obstacles_to_group(raw: &RawConfig) -> Vec<Obstacle> {
    const MAX_SEMAPHORES: usize = 16;
    let semaphores = raw.semaphores.iter().flatten().enumerate();
    let required: Vec<_> = semaphores
        .filter_map(|(index, one)| Some((FieldPath::of("semaphores").index(index), one.as_ref()?)))
        .filter(|(_, one)| is_required(one.mode, one.required))
        .collect();
    let mut obstacles = Vec::new();
    if required.len() > MAX_SEMAPHORES {
        obstacles.push(Obstacle::new(
            FieldPath::of("acquire"),
            format!(
                "`together` allows at most {MAX_SEMAPHORES} required semaphores, not {}; write `required: false` for some",
                required.len()
            ),
        ));
    }
    if required.len() > 1 {
        obstacles.extend(too_large_for_one_transaction(&required));
    }
    for (at, one) in required.iter().skip(1) {
        let (first_at, first) = &required[0];
        let differs = [
            ("wait", one.wait.unwrap_or_default() != first.wait.unwrap_or_default()),
            ("priority", one.priority.unwrap_or(0) != first.priority.unwrap_or(0)),
        ];
        for (field, _) in differs.into_iter().filter(|(_, differs)| *differs) {
            let why = format!(
                "differs from that of {first_at}, which is acquired together with it; write the same"
            );
            obstacles.push(Obstacle::new(at.key(field), why));
        }
    }
    obstacles.extend(required_locks(raw));
    obstacles
}

/// Consul refuses a transaction of more than 512 KiB, and this one writes the `.lock` keys of the whole group.
fn too_large_for_one_transaction(required: &[(FieldPath, &RawSemaphore)]) -> Option<Obstacle> {
    let number = |number: Option<i64>| u32::try_from(number.unwrap_or(1)).unwrap_or(1).min(MAX_LIMIT);
    let prefixes: Vec<_> = required
        .iter()
        .filter_map(|(_, one)| one.prefix.as_deref().map(|prefix| normalised(prefix).to_owned()))
        .collect();
    let part = |one: &RawSemaphore| {
        let form = match one.format.unwrap_or_default() {
            Format::List => Form::List,
            Format::Map => Form::Map,
        };
        let prefix = one.prefix.as_deref().map(normalised).unwrap_or_default();
        Acquisition::configured(form, prefix, one.body.as_deref(), &prefixes)
    };
    let fits = |holders: fn(&RawSemaphore) -> Option<i64>| {
        let parts = required.iter().map(|(_, one)| (part(one), number(holders(one)), number(one.slots)));
        Acquisition::fit_together(parts)
    };
    let at = FieldPath::of("acquire");
    if !fits(|one| one.slots) {
        Some(Obstacle::new(
            at,
            "`together` acquires all slots in one transaction, and so many do not fit into one and could never be acquired; \
             write fewer `slots`, or `independently`",
        ))
    } else if !fits(|one| one.limit) {
        let why = "`together` acquires all slots in one transaction, which lists all holders; with as many holders as the limits \
                   allow, it is larger than Consul accepts and fails until some holders release; write lower limits, or \
                   `independently`";
        Some(Obstacle { passes: true, ..Obstacle::new(at, why) })
    } else {
        None
    }
}

/// Other clients grant the slots of an acquire group by its contender keys, and a lock has none. A lock and a group that are
/// acquired one after the other could deadlock.
fn required_locks(raw: &RawConfig) -> impl Iterator<Item = Obstacle> {
    let locks = raw.locks.iter().flatten().enumerate();
    let required =
        locks.filter(|(_, lock)| lock.as_ref().is_some_and(|lock| is_required(lock.mode, lock.required)));
    required.map(|(index, _)| {
        Obstacle::new(
            FieldPath::of("locks").index(index).key("required"),
            "`acquire: together` does not include locks; write `required: false`, or a semaphore with a limit of 1 instead",
        )
    })
}

/// The agent creates or replaces each of these files.
fn files_are_distinct(raw: &RawConfig, findings: &mut Findings) {
    let readiness = raw.readiness.as_ref().and_then(|readiness| readiness.file.as_deref());
    let state = raw.session.as_ref().and_then(|session| session.state_file.as_deref());
    let token = raw.control.as_ref().and_then(|control| control.token_file.as_deref());
    let listen = raw.control.as_ref().and_then(|control| control.listen.as_deref());
    let socket = listen.and_then(|listen| listen.strip_prefix("unix:")).map(Path::new);
    let files = [
        ("session.state_file", state),
        ("readiness.file", readiness),
        ("control.token_file", token),
        ("control.listen", socket),
    ];
    // An empty path turns the file off.
    let files = files.map(|(field, path)| (field, path.filter(|path| !path.as_os_str().is_empty())));
    for (index, (field, path)) in files.iter().enumerate() {
        let same = files[..index].iter().find(|(_, other)| path.is_some() && other == path);
        if let Some((other, _)) = same {
            findings.fault(&FieldPath::of(field), format!("is the same path as {other}; write another path"));
        }
    }
}

/// The two servers need an address each. The control address serves the read-only endpoints too, so one server is enough.
fn listeners_are_distinct(raw: &RawConfig, findings: &mut Findings) {
    let http = raw
        .http
        .as_ref()
        .and_then(|http| http.listen.as_ref())
        .map_or(DEFAULT_LISTEN, |listen| listen.0.as_str());
    let control = raw.control.as_ref().and_then(|control| control.listen.as_deref());
    if control == Some(http) && !http.ends_with(":0") {
        findings.fault(
            &FieldPath::of("control.listen"),
            "is the same address as http.listen; write another port, or turn the other one off (`http: {listen: off}`)",
        );
    }
}

/// The workload reports at the control endpoints that it is done.
fn warn_of_release_without_control(raw: &RawConfig, findings: &mut Findings) {
    let release = raw.drain.as_ref().and_then(|drain| drain.release);
    if release == Some(Release::AfterWorkload) && raw.control.is_none() {
        findings.warn(
            &FieldPath::of("drain.release"),
            "without control.listen the workload cannot report that it is done, and each stop takes the whole drain.timeout; \
             set control.listen",
        );
    }
}

/// The agent has one way to learn that the workload is done.
fn check_end_of_workload(raw: &RawConfig, findings: &mut Findings) {
    let Some(drain) = &raw.drain else { return };
    let waits = drain.release == Some(Release::AfterWorkload);
    let has_workload = raw.workload.is_some();
    if waits && has_workload {
        findings.fault(
            &FieldPath::of("drain.release"),
            "with the section `workload` the agent sees when the workload is done; remove one of the two",
        );
    }
    let holds = drain.hold.is_some_and(|DurationString(hold)| hold > Duration::ZERO);
    if holds && (waits || has_workload) {
        let other = if has_workload { "the section `workload`" } else { "`release: after_workload`" };
        let message = format!(
            "has no use with {other}, by which the agent learns when the workload is done; remove one of the two"
        );
        findings.fault(&FieldPath::of("drain.hold"), message);
    }
}

/// `workload.stop` ends a workload that runs without a required slot.
fn check_workload_stop(raw: &RawConfig, contended: &[Contended<'_>], findings: &mut Findings) {
    let stops = raw.workload.as_ref().is_some_and(|workload| workload.stop == Some(true));
    if stops && any_held(contended) && !contended.iter().any(|one| is_required(one.mode, one.required)) {
        findings.fault(
            &FieldPath::of("workload.stop"),
            "no slot is required, so the agent would end the workload at once; require a slot, or remove `stop`",
        );
    }
}

/// A slot on demand needs the control endpoints. Each request has its own wait, and readiness does not depend on it.
fn check_on_demand(raw: &RawConfig, contended: &[Contended<'_>], findings: &mut Findings) {
    for one in contended.iter().filter(|one| one.mode == Some(Mode::OnDemand)) {
        if raw.control.is_none() {
            findings.fault(
                &one.at.key("mode"),
                "`on_demand` needs the control endpoints; set control.listen, or write `hold`",
            );
        }
        if one.required == Some(true) {
            findings.fault(
                &one.at.key("required"),
                "readiness cannot wait for a slot on demand; remove `required`, or write `mode: hold`",
            );
        }
        if one.wait.is_some() {
            findings.warn(
                &one.at.key("wait"),
                "has no effect with `on_demand`, where each request has its own wait; remove it",
            );
        }
        if one.sets_on_lost {
            findings.warn(
                &one.at.key("on_lost"),
                "has no effect with `on_demand`, where a lost slot is not acquired again; remove it",
            );
        }
    }
}

/// A failing health check ends the session at once, while the lease of a holder that is cut off lasts for up to a TTL more.
/// Only a prune delay covers that time, and only if every client of the semaphore has it. The agent cannot know that, so this
/// is a warning.
fn check_health_checks(raw: &RawConfig, findings: &mut Findings) {
    let Some(session) = &raw.session else { return };
    let lists =
        [("session.node_checks", &session.node_checks), ("session.service_checks", &session.service_checks)];
    let Some((field, _)) = lists.into_iter().find(|(_, checks)| checks.iter().flatten().next().is_some())
    else {
        return;
    };
    let ttl = session.ttl.map_or(DEFAULT_TTL, |DurationString(ttl)| ttl);
    let prune_delay =
        |one: &RawSemaphore| one.prune_delay.map_or(Duration::ZERO, |DurationString(delay)| delay);
    let lock_delay = session.lock_delay.map_or(DEFAULT_LOCK_DELAY, |DurationString(delay)| delay);
    if lock_delay < ttl && raw.locks.iter().flatten().next().is_some() {
        let ttl = show(ttl);
        findings.warn(
            &FieldPath::of(field),
            &format!(
                "a failing check ends the session at once, while the owner of a lock that is cut off from Consul goes on for \
                 up to {ttl}; write a session.lock_delay of at least {ttl} (at most 60s), or remove the checks"
            ),
        );
    }
    let has_short_delay = raw.semaphores.iter().flatten().flatten().any(|one| prune_delay(one) < ttl);
    if has_short_delay {
        let ttl = show(ttl);
        findings.warn(
            &FieldPath::of(field),
            &format!(
                "a failing check ends the session at once, while a holder cut off from Consul goes on for up to {ttl}; \
                 write a prune_delay of at least {ttl} on every client of the semaphore, or remove the checks"
            ),
        );
    }
}
