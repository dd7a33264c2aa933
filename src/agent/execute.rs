//! Carries a command out against Consul and brings its event back.

use futures_util::future::BoxFuture;

use super::translate;
use crate::consul::{Blocking, Client, Consistency, Read, SessionSpec};
use crate::semaphore::{Command, Event, Keeper, Name, Notice};

/// What is to become of a command.
pub(super) enum Work {
    /// Wait for its event.
    Request(BoxFuture<'static, Event>),
    /// Wait for its event, which may be called off.
    Watch(Name, BoxFuture<'static, Event>),
    /// Call a watch off.
    StopWatch(Name),
    /// Tell the world.
    Tell(Notice),
}

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
        Command::Watch { name, after, wait } => {
            let prefix = prefix(keeper, &name);
            let blocking = Some(Blocking { index: after, wait });
            // What a watch brings is proved by check-and-set, or by a consistent read before a loss is concluded.
            let read = Read { consistency: Consistency::Default, blocking };
            let watch = Box::pin({
                let name = name.clone();
                async move {
                    let answer = client.kv_list(&prefix, read).await;
                    let answer = answer.map(translate::listing).map_err(|error| translate::failure(&error));
                    Event::Watched(name, answer)
                }
            });
            Work::Watch(name, watch)
        }
        Command::StopWatch { name } => Work::StopWatch(name),
        Command::Commit { name, ops } => {
            let (ops, prefix) = (translate::ops(ops), prefix(keeper, &name));
            Work::Request(Box::pin(async move {
                let answer = client.txn(&ops).await;
                Event::Committed(name, translate::commit(answer, &prefix))
            }))
        }
        Command::Tell(notice) => Work::Tell(notice),
    }
}

/// With the slash: `<prefix>-2/…` is another semaphore.
fn prefix(keeper: &Keeper, name: &str) -> String {
    // A command names a semaphore that the keeper has.
    keeper.machine(name).map(|machine| format!("{}/", machine.settings().prefix)).unwrap_or_default()
}
