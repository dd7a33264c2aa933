//! Carries a command out against Consul and brings its event back.

use std::time::Duration;

use futures_util::future::BoxFuture;

use super::translate;
use crate::bridge;
use slotkeeper_consul::{self, Client, Read, SessionSpec};
use slotkeeper_semaphore::{Command, Event, Keeper, Name, NotCreated, Notice};

/// What is to become of a command.
pub(super) enum Work {
    /// Wait for its event.
    Request(BoxFuture<'static, Event>),
    /// List all below a semaphore's prefix, for all who want that at about the same time.
    List { name: Name, prefix: String },
    /// Read these keys of a semaphore, together with what others want to be confirmed.
    Confirm { name: Name, keys: Vec<String> },
    /// Watch a semaphore's key, in its turn.
    Watch { name: Name, key: String, after: u64, wait: Duration },
    /// Call a watch off.
    StopWatch { name: Name, key: String },
    /// Tell the world.
    Tell(Notice),
}

/// Makes work of a command. An answer may take as long as the client allows, and a renewal's as long as the core does.
pub(super) fn work(command: Command, keeper: &Keeper, client: Client, spec: &SessionSpec) -> Work {
    match command {
        Command::CreateSession { mark } => {
            let spec = SessionSpec { name: format!("{} {mark}", spec.name), ..spec.clone() };
            Work::Request(Box::pin(async move {
                let answer = client.session_create(&spec).await;
                let failed = |error: slotkeeper_consul::Error| NotCreated {
                    in_doubt: error.outcome_unknown(),
                    failure: bridge::failure(&error),
                };
                Event::SessionCreated(answer.map(Into::into).map_err(failed))
            }))
        }
        Command::ClearSessions { marks } => Work::Request(Box::pin(async move {
            Event::SessionsCleared(bridge::destroy_named(&client, &marks).await)
        })),
        Command::RenewSession { session, sent, timeout } => {
            let configured = spec.ttl;
            Work::Request(Box::pin(async move {
                let answer = bridge::renew(&client, &session, timeout).await;
                Event::SessionRenewed(sent, answer.map(|session| translate::ttl(&session, configured)))
            }))
        }
        Command::DestroySession { session } => Work::Request(Box::pin(async move {
            let answer = client.session_destroy(session.as_str()).await;
            Event::SessionDestroyed(answer.map_err(|error| bridge::failure(&error)))
        })),
        Command::List { name } => {
            let prefix = prefix(keeper, &name);
            Work::List { name, prefix }
        }
        Command::ReadLock { name, key, consistent } => Work::Request(Box::pin(async move {
            let read = if consistent { Read::consistent() } else { Read::default() };
            Event::LockRead(name, bridge::read(&client, &key, read).await)
        })),
        Command::ReadKeys { name, keys } => Work::Confirm { name, keys },
        Command::ReadLockDelay { name, session } => Work::Request(Box::pin(async move {
            let answer = bridge::lock_delay(&client, &session).await;
            Event::LockDelayRead(name, session, answer)
        })),
        Command::Watch { name, key, after, wait } => Work::Watch { name, key, after, wait },
        Command::StopWatch { name, key } => Work::StopWatch { name, key },
        Command::Commit { parts } => {
            let names = parts.iter().map(|part| part.name.clone()).collect();
            let ops = parts.into_iter().flat_map(|part| part.ops).collect();
            Work::Request(Box::pin(
                async move { Event::Committed(names, bridge::commit(&client, ops).await) },
            ))
        }
        Command::Notify(notice) => Work::Tell(notice),
    }
}

fn prefix(keeper: &Keeper, name: &str) -> String {
    // A command names a semaphore that the keeper has.
    keeper.machine(name).map(|machine| machine.settings().prefix.clone()).unwrap_or_default()
}
