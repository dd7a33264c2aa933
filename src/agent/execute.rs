//! Carries a command out against Consul and brings its event back.

use futures_util::future::BoxFuture;

use super::translate;
use crate::consul::{Blocking, Client, Consistency, Read, SessionSpec};
use crate::semaphore::{Command, Event, Failure, Keeper, Name, Notice, Reading};

/// What is to become of a command.
pub(super) enum Work {
    /// Wait for its event.
    Request(BoxFuture<'static, Event>),
    /// Wait for its event, which may be called off.
    Watch(Watched, BoxFuture<'static, Event>),
    /// Call a watch off.
    StopWatch(Watched),
    /// Tell the world.
    Tell(Notice),
}

/// What is watched: a semaphore's key.
pub(super) type Watched = (Name, String);

/// Makes work of a command. An answer may take as long as the client allows, and a renewal's as long as the core does.
pub(super) fn work(command: Command, keeper: &Keeper, client: Client, spec: &SessionSpec) -> Work {
    match command {
        Command::CreateSession => {
            let spec = spec.clone();
            Work::Request(Box::pin(async move {
                let answer = client.session_create(&spec).await;
                Event::SessionCreated(answer.map(Into::into).map_err(|error| translate::failure(&error)))
            }))
        }
        Command::RenewSession { session, timeout } => {
            let (client, configured) = (client.within(timeout), spec.ttl);
            Work::Request(Box::pin(async move {
                let answer = client.session_renew(session.as_str()).await;
                let answer = answer.map(|session| translate::ttl(&session, configured));
                Event::SessionRenewed(answer.map_err(|error| translate::failure(&error)))
            }))
        }
        Command::DestroySession { session } => Work::Request(Box::pin(async move {
            let answer = client.session_destroy(session.as_str()).await;
            Event::SessionDestroyed(answer.map_err(|error| translate::failure(&error)))
        })),
        Command::List { name } => {
            let prefix = prefix(keeper, &name);
            let read = Read { consistency: Consistency::Consistent, blocking: None };
            Work::Request(Box::pin(async move {
                let answer = client.kv_list(&prefix, read).await;
                let answer = answer.map(translate::listing).map_err(|error| translate::failure(&error));
                Event::Listed(name, answer)
            }))
        }
        Command::Look { name, key } => {
            let read = Read { consistency: Consistency::Consistent, blocking: None };
            Work::Request(Box::pin(async move { Event::Looked(name, read_key(&client, &key, read).await) }))
        }
        Command::Watch { name, key, after, wait } => {
            let blocking = Some(Blocking { index: after, wait });
            // What a watch brings is proved by check-and-set, or by a consistent read before a loss is concluded.
            let read = Read { consistency: Consistency::Default, blocking };
            let watched = (name.clone(), key.clone());
            let watch = async move {
                let answer = read_key(&client, &key, read).await;
                Event::Watched(name, key, answer)
            };
            Work::Watch(watched, Box::pin(watch))
        }
        Command::StopWatch { name, key } => Work::StopWatch((name, key)),
        Command::Commit { parts } => {
            let names: Vec<_> = parts.iter().map(|part| part.name.clone()).collect();
            let prefixes = names.iter().map(|name| prefix(keeper, name)).collect::<Vec<_>>().join(" and ");
            let ops: Vec<_> = parts.into_iter().flat_map(|part| part.ops).collect();
            let listed_after = translate::listed_after(&ops);
            let ops = translate::ops(ops);
            Work::Request(Box::pin(async move {
                let answer = client.txn(&ops).await;
                Event::Committed(names, translate::commit(answer, &prefixes, listed_after))
            }))
        }
        Command::Tell(notice) => Work::Tell(notice),
    }
}

async fn read_key(client: &Client, key: &str, read: Read) -> Result<Reading, Failure> {
    let answer = client.kv_get(key, read).await;
    answer.map(translate::reading).map_err(|error| translate::failure(&error))
}

/// With the slash: `<prefix>-2/…` is another semaphore.
fn prefix(keeper: &Keeper, name: &str) -> String {
    // A command names a semaphore that the keeper has.
    keeper.machine(name).map(|machine| format!("{}/", machine.settings().prefix)).unwrap_or_default()
}
