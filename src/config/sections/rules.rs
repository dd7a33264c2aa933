//! The rules between entries, and between sections.
//!
//! They look at the raw values: an entry with a fault of its own still has a name that another must not bear.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::RawConfig;
use super::acquire::Acquire;
use super::drain::Release;
use super::http::DEFAULT_LISTEN;
use super::resource::{Format, MAX_ENTRIES, MAX_SLOTS, Mode, RawSemaphore, is_required};
use super::session::DEFAULT_LOCK_DELAY;
use crate::config::findings::Findings;
use crate::config::path::FieldPath;
use crate::config::scalar::DurationString;
use crate::duration::show;
use slotkeeper_semaphore::{Acquisition, DEFAULT_TTL, Form};

pub(super) fn check(raw: &RawConfig, findings: &mut Findings) {
    let contended = contended(raw);
    if contended.is_empty() {
        findings.fault(
            &FieldPath::of("semaphores"),
            "nothing to hold; list at least one semaphore, or one of `locks`",
        );
    } else if any_held(&contended) && !contended.iter().any(|one| is_required(one.mode, one.required)) {
        let list = if raw.semaphores.iter().flatten().next().is_some() { "semaphores" } else { "locks" };
        findings.warn(&FieldPath::of(list), "none is required: readiness waits for nothing");
    }
    names_are_unique(&contended, findings);
    keys_are_apart(&contended, findings);
    together_is_as_one(raw, findings);
    no_lock_is_taken_together(raw, findings);
    files_are_apart(raw, findings);
    listeners_are_apart(raw, findings);
    checks_leave_time(raw, findings);
    somebody_can_say_it(raw, findings);
    one_thing_says_it(raw, findings);
    what_is_ended_runs_on_something(raw, &contended, findings);
    what_is_on_demand_can_be_asked_for(raw, &contended, findings);
}

fn any_held(contended: &[Contended<'_>]) -> bool {
    contended.iter().any(|one| one.mode != Some(Mode::OnDemand))
}

/// What semaphores and locks have in common.
struct Contended<'r> {
    at: FieldPath,
    name: Option<&'r str>,
    key: Option<&'r str>,
    key_field: &'static str,
    required: Option<bool>,
    mode: Option<Mode>,
    waits: bool,
    says_on_lost: bool,
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
            waits: one.as_ref().is_some_and(|one| one.wait.is_some()),
            says_on_lost: one.as_ref().is_some_and(|one| one.on_lost.is_some()),
        });
    let locks = raw.locks.iter().flatten().take(MAX_ENTRIES).enumerate().map(|(index, one)| Contended {
        at: FieldPath::of("locks").index(index),
        name: one.as_ref().and_then(|one| one.name.as_deref()),
        key: one.as_ref().and_then(|one| one.key.as_deref()),
        key_field: "key",
        required: one.as_ref().and_then(|one| one.required),
        mode: one.as_ref().and_then(|one| one.mode),
        waits: one.as_ref().is_some_and(|one| one.wait.is_some()),
        says_on_lost: one.as_ref().is_some_and(|one| one.on_lost.is_some()),
    });
    semaphores.chain(locks).collect()
}

/// A name as a part of a variable's, such as `SLOTKEEPER_SLOT_WAREHOUSE_WRITERS`.
pub fn variable_part(name: &str) -> String {
    name.to_ascii_uppercase().replace(['-', '.'], "_")
}

/// Unique also in the variables that `slotkeeper run` gives its child, where `a-b` and `a.b` are both `A_B`.
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
                findings.fault(&one.at.key("name"), format!("`{name}` is the name of {at} already; write another"));
            }
            Some((other, at)) => findings.fault(
                &one.at.key("name"),
                format!("in a child's environment this is SLOTKEEPER_SLOT_{suffix}, as `{other}` of {at} is; write another"),
            ),
        }
    }
}

/// No two are at one key, and nothing else is below a semaphore's prefix: every key there with a session counts as a
/// contender, for the guide's other clients at least.
fn keys_are_apart(contended: &[Contended<'_>], findings: &mut Findings) {
    for (position, one) in contended.iter().enumerate() {
        let Some(key) = one.key.map(normalised) else { continue };
        let clash = contended.iter().enumerate().find_map(|(other_position, other)| {
            let other_key = other.key.map(normalised)?;
            let whose = format!("the {} of {}", other.key_field, other.at);
            // Of two that are equal the later one is told of.
            if key == other_key && other_position < position {
                Some(format!("`{key}` is {whose} already; write another"))
            } else if other.key_field == "prefix" && lies_below(key, other_key) {
                Some(format!(
                    "lies below `{other_key}`, {whose}, and would be counted there; write one beside it"
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

/// What is taken in one transaction is waited for as one. Consul takes 64 steps in a transaction, of which a semaphore
/// needs up to four where there are many, and up to five where there are few.
fn together_is_as_one(raw: &RawConfig, findings: &mut Findings) {
    const MOST: usize = 16;
    if raw.acquire != Some(Acquire::Together) {
        return;
    }
    let semaphores = raw.semaphores.iter().flatten().enumerate();
    let required: Vec<_> = semaphores
        .filter_map(|(index, one)| Some((FieldPath::of("semaphores").index(index), one.as_ref()?)))
        .filter(|(_, one)| is_required(one.mode, one.required))
        .collect();
    let [(first_at, first), others @ ..] = required.as_slice() else { return };
    if required.len() > MOST {
        findings.fault(
            &FieldPath::of("acquire"),
            format!("`together` takes {MOST} required semaphores at most, and here are {}", required.len()),
        );
    }
    if !others.is_empty() {
        fits_into_one_transaction(&required, findings);
    }
    for (at, one) in others {
        let differs = [
            ("wait", one.wait.unwrap_or_default() != first.wait.unwrap_or_default()),
            ("priority", one.priority.unwrap_or(0) != first.priority.unwrap_or(0)),
        ];
        for (field, _) in differs.into_iter().filter(|(_, differs)| *differs) {
            let at = at.key(field);
            findings.fault(
                &at,
                format!(
                    "differs from that of {first_at}, with which it is acquired together; write the same"
                ),
            );
        }
    }
}

/// Consul refuses a transaction of more than 512 KiB, and this one writes the `.lock` keys of all of them.
fn fits_into_one_transaction(required: &[(FieldPath, &RawSemaphore)], findings: &mut Findings) {
    let number = |number: Option<i64>| u32::try_from(number.unwrap_or(1)).unwrap_or(1).min(MAX_SLOTS);
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
    let of = |holders: fn(&RawSemaphore) -> Option<i64>| {
        required.iter().map(move |(_, one)| (part(one), number(holders(one)), number(one.slots)))
    };
    let at = FieldPath::of("acquire");
    if !Acquisition::fit_together(of(|one| one.slots)) {
        findings.fault(
            &at,
            "`together` acquires all slots in one transaction, and these are more than Consul takes, so that they could never \
             be acquired; write fewer `slots`, or `independently`",
        );
    } else if !Acquisition::fit_together(of(|one| one.limit)) {
        findings.warn(
            &at,
            "`together` acquires all slots in one transaction, which lists all holders; with as many as the limits allow it would \
             be larger than Consul takes, and the slots could not be acquired until some of them have left. Write lower \
             limits, or `independently`",
        );
    }
}

/// Others let a party in by what its contenders say, and of a lock there is none. Held one after the other, a lock and a
/// party could wait for each other.
fn no_lock_is_taken_together(raw: &RawConfig, findings: &mut Findings) {
    if raw.acquire != Some(Acquire::Together) {
        return;
    }
    let locks = raw.locks.iter().flatten().enumerate();
    for (index, _) in locks.filter(|(_, lock)| lock.as_ref().is_some_and(|lock| lock.required != Some(false)))
    {
        findings.fault(
            &FieldPath::of("locks").index(index).key("required"),
            "`acquire: together` is for semaphores: a lock is taken by itself; write `required: false`, or a semaphore \
             with a limit of 1",
        );
    }
}

/// Each is written anew, or made, by us.
fn files_are_apart(raw: &RawConfig, findings: &mut Findings) {
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
    // An empty one is off.
    let files = files.map(|(field, path)| (field, path.filter(|path| !path.as_os_str().is_empty())));
    for (place, (field, path)) in files.iter().enumerate() {
        let same = files[..place].iter().find(|(_, other)| path.is_some() && other == path);
        if let Some((other, _)) = same {
            findings.fault(&FieldPath::of(field), format!("is {other} too; write another path"));
        }
    }
}

/// Both can be read at the control endpoints; what they change cannot be changed at the others.
fn listeners_are_apart(raw: &RawConfig, findings: &mut Findings) {
    let http = raw.http.as_ref().and_then(|http| http.listen.as_deref()).unwrap_or(DEFAULT_LISTEN);
    let control = raw.control.as_ref().and_then(|control| control.listen.as_deref());
    if control == Some(http) && !http.ends_with(":0") {
        findings.fault(
            &FieldPath::of("control.listen"),
            "is where http.listen is; write another port, or turn the other one off (`http: {listen: off}`)",
        );
    }
}

/// Without the control endpoints nobody can say that the workload is done.
fn somebody_can_say_it(raw: &RawConfig, findings: &mut Findings) {
    let release = raw.drain.as_ref().and_then(|drain| drain.release);
    if release == Some(Release::AfterWorkload) && raw.control.is_none() {
        findings.warn(
            &FieldPath::of("drain.release"),
            "nobody can say that the workload is done, so that each stop takes the whole of drain.timeout; set \
             control.listen",
        );
    }
}

/// Of the ways to learn that the workload is done, one is enough.
fn one_thing_says_it(raw: &RawConfig, findings: &mut Findings) {
    let Some(drain) = &raw.drain else { return };
    let waits = drain.release == Some(Release::AfterWorkload);
    let sees = raw.workload.is_some();
    if waits && sees {
        findings.fault(
            &FieldPath::of("drain.release"),
            "with the section `workload` the agent sees by itself when the workload is done; remove one of them",
        );
    }
    let holds = drain.hold.is_some_and(|DurationString(hold)| hold > Duration::ZERO);
    if holds && (waits || sees) {
        let other = if sees { "the section `workload`" } else { "`release: after_workload`" };
        let message = format!(
            "is for a workload of whose end nothing is known, and there is {other}; remove one of them"
        );
        findings.fault(&FieldPath::of("drain.hold"), message);
    }
}

/// What runs without a slot is ended at once.
fn what_is_ended_runs_on_something(raw: &RawConfig, contended: &[Contended<'_>], findings: &mut Findings) {
    let stops = raw.workload.as_ref().is_some_and(|workload| workload.stop == Some(true));
    if stops && any_held(contended) && !contended.iter().any(|one| is_required(one.mode, one.required)) {
        findings.fault(
            &FieldPath::of("workload.stop"),
            "no slot is held and required, so the workload would be ended at once; require one, or remove it",
        );
    }
}

/// What is taken on demand is nobody's to wait for before, and each request brings its own terms.
fn what_is_on_demand_can_be_asked_for(raw: &RawConfig, contended: &[Contended<'_>], findings: &mut Findings) {
    for one in contended.iter().filter(|one| one.mode == Some(Mode::OnDemand)) {
        if raw.control.is_none() {
            findings.fault(
                &one.at.key("mode"),
                "nobody can ask for it without the control endpoints; set control.listen, or write `hold`",
            );
        }
        if one.required == Some(true) {
            findings.fault(
                &one.at.key("required"),
                "readiness cannot wait for what is taken on demand; remove it, or write `mode: hold`",
            );
        }
        if one.waits {
            findings.warn(
                &one.at.key("wait"),
                "has no effect with `on_demand`, where each request says how long it waits; remove it",
            );
        }
        if one.says_on_lost {
            findings.warn(
                &one.at.key("on_lost"),
                "has no effect with `on_demand`, where a lost slot is lost for whoever took it; remove it",
            );
        }
    }
}

/// A health check ends the session at once, and a holder that is cut off then believes for up to a TTL more that it
/// holds. Only a rest of the dead holder's slot covers that, and only where every client of the semaphore keeps it:
/// we cannot know, so this is told and not refused.
fn checks_leave_time(raw: &RawConfig, findings: &mut Findings) {
    let Some(session) = &raw.session else { return };
    let lists =
        [("session.node_checks", &session.node_checks), ("session.service_checks", &session.service_checks)];
    let Some((field, _)) = lists.into_iter().find(|(_, checks)| checks.iter().flatten().next().is_some())
    else {
        return;
    };
    let ttl = session.ttl.map_or(DEFAULT_TTL, |DurationString(ttl)| ttl);
    let rest = |one: &RawSemaphore| one.prune_delay.map_or(Duration::ZERO, |DurationString(rest)| rest);
    let delay = session.lock_delay.map_or(DEFAULT_LOCK_DELAY, |DurationString(delay)| delay);
    if delay < ttl && raw.locks.iter().flatten().next().is_some() {
        let ttl = show(ttl);
        findings.warn(
            &FieldPath::of(field),
            &format!(
                "a failing check ends the session at once, while one that is cut off from Consul and has a lock goes on for \
                 up to {ttl}; write a session.lock_delay of at least {ttl} (at most 60s), or remove the checks"
            ),
        );
    }
    let hasty = raw.semaphores.iter().flatten().flatten().any(|one| rest(one) < ttl);
    if hasty {
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
