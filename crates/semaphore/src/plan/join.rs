//! Join planning: the first write of a client that knows nothing of the semaphore yet.

use super::{PlanInput, Write};
use crate::Op;
use crate::contender::WaiterState;
use crate::settings::{LimitPolicy, Settings};

/// The transaction by which a newcomer joins the queue before it has read anything: it locks the contender key and reads `.lock`. Mostly
/// `.lock` is all that the newcomer has to know, so that the cost of joining does not depend on the number of clients. `None` if the
/// newcomer has to list first: a client that tries once, or that refuses another limit, must not be granted a slot meanwhile, and the
/// waiters behind one with a priority have to learn of it.
pub fn join(prefix: &str, input: PlanInput<'_>) -> Option<Write> {
    let Settings { priority, limit_policy, form, .. } = input.settings;
    let plain = *priority == 0 && *limit_policy != LimitPolicy::Refuse && input.together.is_none();
    if !plain || input.settings.is_lock() || input.settings.try_once() || input.resumed {
        return None;
    }
    let (key, session) = (format!("{prefix}/{}", input.session), input.session.clone());
    let value = input.entry(WaiterState::Waiting, Vec::new()).encode();
    let ops = vec![
        // A write of an earlier process may still be under way.
        Op::CheckNotExists { key: key.clone() },
        Op::Lock { key, value, flags: form.flags(), session },
        // A read of a key that does not exist would fail the transaction.
        Op::List { prefix: format!("{prefix}/.lock") },
    ];
    Some(Write::of(ops))
}
