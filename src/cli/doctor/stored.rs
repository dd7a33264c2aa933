//! What is stored at a prefix or key, against what the job wants there. Pure.

use super::super::Exit;
use super::check::{Found, fail, warn};
use crate::config::Semaphore;
use crate::operator::{Found as Stored, Inspection, word};
use slotkeeper_semaphore::LimitPolicy;
use slotkeeper_semaphore::contender::Entry;
use slotkeeper_semaphore::record::Form;

/// The lines about what is stored. `wanted`: the semaphore of the configuration. `others`: how many other keys are below the prefix.
pub(super) fn judge(wanted: Option<&Semaphore>, stored: &Inspection, others: usize) -> Vec<Found> {
    let mut all = vec![fits(wanted, stored)];
    if let Some(rule) = &stored.hidden.keys {
        let why = format!("Consul hides keys from the token, so it acquires no slot; it needs {rule}");
        all.push(fail(Exit::Denied, why));
    }
    let everyone = stored.holders.iter().chain(&stored.queue);
    let foreign = everyone.filter(|one| one.foreign == Some(true));
    let bodies: Vec<_> = foreign.map(|one| one.body.as_deref().unwrap_or_default()).collect();
    let newer = bodies.iter().filter(|body| Entry::is_newer(body.as_bytes())).count();
    for (count, what) in [
        (newer, "clients of a later version of slotkeeper; upgrade this one"),
        (bodies.len() - newer, "foreign clients (`consul lock`, other libraries), which keep no order"),
        (others, "keys below the prefix that are not of a semaphore; move them elsewhere"),
    ] {
        all.extend((count > 0).then(|| warn(format!("{count} {what}"))));
    }
    all
}

fn fits(wanted: Option<&Semaphore>, stored: &Inspection) -> Found {
    let (form, limit, taken) = match &stored.found {
        Stored::Semaphore { form, limit, slots_taken, .. } => (*form, *limit, slots_taken),
        Stored::Nothing => return Ok("nothing is stored there yet; the first client writes it".into()),
        Stored::Unknown { key } => return fail(Exit::Denied, format!("{key} may be hidden from the token")),
        Stored::Lock { key, .. } if wanted.is_some() => {
            return fail(Exit::Config, format!("{key} is a lock; choose another prefix"));
        }
        Stored::Lock { .. } => {
            return Ok(format!("a lock, {}", if stored.holders.is_empty() { "free" } else { "held" }));
        }
        Stored::Other { key, description } => {
            return fail(Exit::Config, format!("{key}: {description}; or choose another key"));
        }
    };
    let (format, waiting) = (word(&form), stored.queue.len());
    let found = format!("a semaphore with limit {limit}, format {format}, {taken} taken, {waiting} waiting");
    let Some(wanted) = wanted else { return Ok(format!("{found}; `run` needs --limit {limit} there")) };
    let configured = wanted.limit;
    if wanted.slots > limit {
        fail(Exit::Config, format!("{found}; {} slots are wanted: see slotkeeper set-limit", wanted.slots))
    } else if wanted.slots > 1 && form == Form::Map {
        fail(Exit::Config, format!("{found}; `map` allows one slot for each holder: use `slots: 1`"))
    } else if configured == limit {
        Ok(found)
    } else {
        let found = format!("{found}; the configured limit is {configured}");
        match wanted.limit_policy {
            LimitPolicy::Adopt => warn(format!("{found}, and the stored one governs: make them equal")),
            LimitPolicy::Set => warn(format!("{found}, which the job will store (limit_policy)")),
            LimitPolicy::Refuse => {
                fail(Exit::Config, format!("{found}, and limit_policy is `refuse`: make them equal"))
            }
        }
    }
}
