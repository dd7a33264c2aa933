//! Turns a command of the core into a request to Consul, and the answer into an event.

use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::bridge;
use crate::session_node::Sessions;
use slotkeeper_consul::{Client, Read};
use slotkeeper_semaphore::{Command, Event, Keeper, Name, Notice};

/// What a command leads to.
pub(super) enum Work {
    /// A request whose answer is an event.
    Request(BoxFuture<'static, Event>),
    /// A listing below a semaphore's prefix, shared by all owners that want it at about the same time.
    List { name: Name, prefix: String },
    /// A read of these keys, combined with the reads of other owners.
    Confirm { name: Name, keys: Vec<String> },
    /// A watch of a semaphore's key.
    Watch { name: Name, key: String, after: u64, wait: Duration },
    /// The end of a watch.
    StopWatch { name: Name, key: String },
    /// A notice for logs, metrics, journal and hooks.
    Tell(Notice),
}

/// The client bounds the time of a request, and the core that of a renewal.
pub(super) fn work(command: Command, keeper: &Keeper, client: Client, sessions: &Sessions) -> Work {
    match command {
        Command::CreateSession => {
            let sessions = sessions.clone();
            Work::Request(Box::pin(async move {
                Event::SessionCreated(sessions.create(&client).await.map(Into::into))
            }))
        }
        Command::RenewSession { session, sent, timeout } => {
            let configured = sessions.spec.ttl;
            Work::Request(Box::pin(async move {
                let answer = bridge::renew(&client, &session, timeout).await;
                Event::SessionRenewed(sent, answer.map(|session| session.ttl.unwrap_or(configured)))
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
