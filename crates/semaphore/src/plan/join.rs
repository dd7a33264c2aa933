//! Join planning: the first write of a client that knows nothing of the semaphore yet.

use super::{PlanInput, Write};
use crate::Op;
use crate::contender::WaiterState;
use crate::settings::{LimitPolicy, Settings};

/// The transaction by which one stands in line before it knows who else does: its contender is locked, and `.lock` is read as it is
/// then. That mostly tells all that it has to know, so that what it costs to come depends on nobody. `None` where more has to be
/// known first: who only tries, or keeps out where limits differ, must not be let in meanwhile; who has a priority stands in front of
/// others, who have to learn of it.
pub fn join(prefix: &str, input: PlanInput<'_>) -> Option<Write> {
    let Settings { priority, limit_policy, form, .. } = input.settings;
    let plain = *priority == 0 && *limit_policy != LimitPolicy::Refuse && input.together.is_none();
    if !plain || input.settings.is_lock() || input.settings.try_once() || input.nonce.is_some() {
        return None;
    }
    let (key, session) = (format!("{prefix}/{}", input.session), input.session.clone());
    let value = input.entry(WaiterState::Waiting, Vec::new()).encode();
    let ops = vec![
        // A write of a process before this one may be on its way still.
        Op::CheckNotExists { key: key.clone() },
        Op::Lock { key, value, flags: form.flags(), session },
        // A read of a key that does not exist would fail the transaction.
        Op::List { prefix: format!("{prefix}/.lock") },
    ];
    Some(Write::of(ops))
}
