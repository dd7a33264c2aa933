//! The watches of all keepers of an agent. [`schedule`] decides on the requests, and this module sends them.

mod schedule;

use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::sleep;

use crate::bridge;
use slotkeeper_consul::{Blocking, Client, Consistency, Kind, Read};
use slotkeeper_semaphore::{Keeper, Phase, SessionId};

pub(super) use schedule::{Answer, Ask, Class, Schedule, Watch, WatchAnswer};

/// Maximum pause before a poll that was cut off is sent again. A restarting proxy cuts the polls of all agents at the same
/// instant.
const MAX_PAUSE: Duration = Duration::from_millis(100);

/// Sends a request to Consul. Its answer may be stale: a check-and-set verifies it, or a consistent read before a loss.
pub(super) fn ask(ask: Ask, client: Client) -> BoxFuture<'static, Answer> {
    Box::pin(async move {
        match ask {
            Ask::Poll { key, after, wait } => {
                let blocking = Some(Blocking { index: after, wait });
                let read = Read { consistency: Consistency::Default, blocking };
                match bridge::watched(&client, &key, read).await {
                    Ok(reading) => Answer::Poll(key, Ok(reading)),
                    Err(error) => {
                        let failure = bridge::read_failure(&error, &key);
                        if error.kind == Kind::Cut {
                            sleep(MAX_PAUSE.mul_f64(fastrand::f64())).await;
                        }
                        Answer::Poll(key, Err(failure))
                    }
                }
            }
            Ask::Read { key } => {
                let answer = bridge::watched(&client, &key, Read::default()).await;
                let answer = answer.map_err(|error| bridge::read_failure(&error, &key));
                Answer::Read(key, answer)
            }
            Ask::Batch { keys } => {
                let answer = bridge::read_many(&client, &keys).await;
                Answer::Batch(keys, answer)
            }
        }
    })
}

/// The purpose of a watch.
pub(super) fn class(keeper: &Keeper, name: &str, key: &str) -> Class {
    let Some(machine) = keeper.machine(name) else { return Class::Other };
    if bridge::is_folder(key) {
        return Class::Folder;
    }
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
