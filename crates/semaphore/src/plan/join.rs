//! Join planning: the first write of a client that has no contender key.

use super::draft::Draft;
use super::serve::{self, Service};
use super::{Me, Memory, Next, Own, Plan, Standing, Want, Watch, Write, occupied};
use crate::contender::WaiterState;
use crate::record::Record;
use crate::view::{View, contender_key};
use crate::{Op, SessionId};

/// The maximum number of holders whose contender keys a client reads besides its own and `.lock`.
const MAX_LOOKS: usize = 4;

/// Plans of a client that stands in no queue.
///
/// Where slots are free and nobody waits, it takes its slots by one write. Else it joins by a write that touches no key which others write,
/// so that many clients join without a conflict. A client that tries once joins no queue.
pub(super) fn ask(view: &View, record: Record, me: Me<'_>, memory: Memory<'_>) -> Plan {
    if let Some(why) = occupied(view, me.session) {
        let key = view.contender_key(me.session);
        let after = view.in_place_of(me.session).map_or(0, |occupied| occupied.index);
        return Plan::new(Standing::Blocked(why), Next::Wait(vec![Watch { key, after }]));
    }
    if view.is_listed() && !view.is_filtered() {
        return take_or_join(view, record, me, memory);
    }
    let is_plain = !record.is_attended() && record.hints.is_some() && !memory.sets_limit(&record, me);
    let mut draft = Draft::new(view, record.clone(), me.wall);
    if is_plain && !memory.lost_race && !me.had && draft.take_free(&me) {
        let mut write = draft.finish().unwrap_or_default();
        // Of holders that it leaves beside itself.
        write.ops.extend(read_holders(view, &record, me));
        return Plan::waits(true, Next::Write(write));
    }
    let room = record.free() >= me.settings.slots;
    let lists = me.settings.try_once() || me.had;
    Plan::waits(room, if lists { Next::Read(Want::All) } else { Next::Write(join(view, &record, me)) })
}

fn take_or_join(view: &View, mut record: Record, me: Me<'_>, memory: Memory<'_>) -> Plan {
    memory.set_limit(&mut record, me);
    let draft = Draft::new(view, record.clone(), me.wall);
    let served = serve::serve(draft, Service::of_waiter(me, memory.sightings));
    let turn = served.leaves_a_turn();
    if served.draft.holds(me.session) {
        return Plan::waits(true, Next::of(served.draft.finish()));
    }
    if me.settings.try_once() {
        // While a foreign client has its turn, which is short, the slot may yet be left over.
        return Plan::waits(turn, Next::Wait(Vec::new())).again(served.again.filter(|_| turn));
    }
    Plan::waits(turn, Next::Write(join(view, &record, me)))
}

/// The transaction by which a client joins the queue, at its end. It reads `.lock` as it is then, and some holders' keys: a newcomer sees
/// dead holders and offers at once.
fn join(view: &View, record: &Record, me: Me<'_>) -> Write {
    let mut draft = Draft::new(view, record.clone(), me.wall);
    draft.rejoin(&me, me.entry(WaiterState::Waiting, Vec::new()));
    let mut write = me.write(Own::Nothing, draft.write.ops);
    write.ops.extend(read_holders(view, record, me));
    write
}

fn read_holders(view: &View, record: &Record, me: Me<'_>) -> impl Iterator<Item = Op> {
    let prefix = view.prefix().to_owned();
    looks(record, me.session).into_iter().map(move |one| Op::List { prefix: contender_key(&prefix, &one) })
}

/// The holders whose keys are worth a look: different clients look at different ones.
pub(crate) fn looks(record: &Record, me: &SessionId) -> Vec<SessionId> {
    let mut holders: Vec<_> = record.holders.iter().filter(|holder| *holder != me).cloned().collect();
    holders.dedup();
    let first = me.as_str().bytes().map(usize::from).sum::<usize>();
    let turn = first.checked_rem(holders.len()).unwrap_or_default();
    holders.rotate_left(turn);
    holders.truncate(MAX_LOOKS);
    holders
}
