//! The agent as the world may see it, read off the core.

use crate::config;
use crate::semaphore::{Contender, Keeper, Machine, Moment, Phase, Record, SessionId, View};
use crate::status::{Holder, Semaphore, Session, Snapshot, Stage, State};

/// Holders that the status lists; it stays readable and bounded whatever a record holds.
const LISTED: usize = 1000;

pub(super) fn snapshot(
    keeper: &Keeper,
    config: &config::Config,
    stage: Stage,
    started_at: Moment,
) -> Snapshot {
    let session = keeper.session().zip(keeper.lease()).map(|(id, lease)| Session {
        id: id.to_string(),
        name: config.session.name.clone(),
        ttl: config.session.ttl,
        lease_ends: lease.ends(),
    });
    let semaphores = config.semaphores.iter().filter_map(|wanted| {
        let machine = keeper.machine(&wanted.name)?;
        Some(semaphore(machine, wanted, keeper))
    });
    Snapshot { stage, started_at, started_up: false, session, semaphores: semaphores.collect() }
}

fn semaphore(machine: &Machine, wanted: &config::Semaphore, keeper: &Keeper) -> Semaphore {
    let me = keeper.session();
    let (state, reason, held) = match machine.phase() {
        Phase::Starting => (State::Starting, None, None),
        Phase::Waiting => (State::Waiting, None, None),
        Phase::Held { since, token, indexes } => (State::Held, None, Some((*since, *token, indexes))),
        Phase::Blocked { why } => (State::Blocked, Some(why.clone()), None),
        Phase::Leaving => (State::Leaving, None, None),
        Phase::GaveUp => (State::GaveUp, None, None),
        Phase::Lost => (State::Lost, None, None),
        Phase::Released => (State::Released, None, None),
    };
    let view = machine.view();
    let record = view.and_then(View::record);
    let asking = matches!(state, State::Starting | State::Waiting | State::Blocked);
    let waiting = state == State::Waiting;
    Semaphore {
        name: wanted.name.clone(),
        prefix: wanted.prefix.clone(),
        required: wanted.required,
        state,
        reason: reason
            .or_else(|| record.filter(|_| waiting).and_then(|record| never_fits(record.limit, wanted.slots)))
            .or_else(|| machine.trouble().or(keeper.trouble()).map(str::to_owned)),
        slots: wanted.slots,
        held_since: held.map(|(since, ..)| since),
        fencing_token: held.map(|(_, token, _)| token),
        indexes: held.map(|(.., indexes)| indexes.clone()).unwrap_or_default(),
        limit: record.map_or(wanted.limit, |record| record.limit),
        configured_limit: wanted.limit,
        taken: record.map_or(0, Record::taken),
        holders: view.zip(record).map(|(view, record)| holders(view, record, me)).unwrap_or_default(),
        waiters: view.map_or(0, |view| u32::try_from(view.waiters().len()).unwrap_or(u32::MAX)),
        position: view.zip(me).filter(|_| waiting).and_then(|(view, me)| view.position(me)),
        asked_at: asking.then(|| machine.asked_at()),
    }
}

/// It stays in line all the same: whoever raises the limit finds it there.
fn never_fits(limit: u32, slots: u32) -> Option<String> {
    (limit < slots).then(|| {
        format!(
            "the limit in force is {limit} and this workload takes {slots}: raise the limit or lower `slots`"
        )
    })
}

fn holders(view: &View, record: &Record, me: Option<&SessionId>) -> Vec<Holder> {
    let mut holders: Vec<Holder> = Vec::new();
    for session in record.holders.iter().take(LISTED) {
        if holders.iter().any(|holder| holder.session == session.as_str()) {
            continue;
        }
        let entry = view.contender(session).and_then(|Contender { entry, .. }| entry.as_ref());
        holders.push(Holder {
            session: session.to_string(),
            slots: record.slots_of(session),
            mine: Some(session) == me,
            alive: view.is_alive(session),
            who: entry.map(|entry| entry.who.clone()),
        });
    }
    holders
}
