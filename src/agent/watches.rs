//! The watches of all keepers of an agent: [`schedule`] says what to ask Consul for, here it is asked.

mod schedule;

use futures_util::future::BoxFuture;

use crate::bridge;
use crate::consul::{Blocking, Client, Consistency, Read};
use crate::semaphore::{Keeper, Phase, SessionId};

pub(super) use schedule::{Answer, Ask, Class, Schedule, Told, Watch};

/// Asks Consul. What a watch brings is proved by check-and-set, or by a consistent read before a loss is concluded.
pub(super) fn ask(ask: Ask, client: Client) -> BoxFuture<'static, Answer> {
    Box::pin(async move {
        match ask {
            Ask::Poll { key, after, wait } => {
                let blocking = Some(Blocking { index: after, wait });
                let read = Read { consistency: Consistency::Default, blocking };
                let answer = bridge::read(&client, &key, read).await;
                Answer::Poll(key, answer)
            }
            Ask::Read { key } => {
                let answer = bridge::read(&client, &key, Read::default()).await;
                Answer::Read(key, answer)
            }
            Ask::Batch { keys } => {
                let answer = bridge::read_many(&client, &keys).await;
                Answer::Batch(keys, answer)
            }
        }
    })
}

/// What the keeper watches that key of a semaphore for.
pub(super) fn class(keeper: &Keeper, name: &str, key: &str) -> Class {
    let Some(machine) = keeper.machine(name) else { return Class::Other };
    let settings = machine.settings();
    let is_contender = |id: &SessionId| machine.view().is_some_and(|view| view.contender_key(id) == key);
    // A single-key lock is all in one key.
    let own = settings.is_lock() || keeper.session().is_some_and(is_contender);
    let record = machine.view().is_some_and(|view| view.lock_key() == key);
    let held = matches!(machine.phase(), Phase::Held { .. });
    match (own, held) {
        (true, true) => Class::Held,
        (true, false) => Class::Waiting,
        (false, false) if record => Class::Waiting,
        (false, true) if record => Class::Record,
        (false, _) => Class::Other,
    }
}
