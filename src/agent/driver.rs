//! One keeper and what is under way for it: carries out what it decides, and tells it what came of that.
//!
//! The agent has one for its own semaphores, and one for each lease. The requests of all of them are in one set, each
//! with whom it is for.

use std::collections::HashMap;

use tokio::task::{AbortHandle, JoinSet};

use super::execute::{self, Watched, Work};
use super::leases::Key;
use crate::consul::{Client, SessionSpec};
use crate::semaphore::{Event, Keeper, Moment, Notice};

/// For whom a request is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The keeper of what the agent holds itself.
    Agent,
    /// A lease's keeper.
    Lease(Key),
}

/// Everything that is under way.
pub(super) type Requests = JoinSet<(Owner, Event)>;

/// A keeper with its watches.
pub(super) struct Driver {
    owner: Owner,
    pub(super) keeper: Keeper,
    watches: HashMap<Watched, AbortHandle>,
}

impl Driver {
    pub(super) fn new(owner: Owner, keeper: Keeper) -> Self {
        Self { owner, keeper, watches: HashMap::new() }
    }

    /// Carries out what the keeper has decided; gives back what it has to tell.
    pub(super) fn carry_out(
        &mut self,
        client: &Client,
        spec: &SessionSpec,
        requests: &mut Requests,
    ) -> Vec<Notice> {
        let mut notices = Vec::new();
        let owner = self.owner;
        while let Some(command) = self.keeper.next_command() {
            match execute::work(command, &self.keeper, client.clone(), spec) {
                Work::Request(request) => {
                    requests.spawn(async move { (owner, request.await) });
                }
                Work::Watch(watched, watch) => {
                    let watch = requests.spawn(async move { (owner, watch.await) });
                    self.watches.insert(watched, watch);
                }
                Work::StopWatch(watched) => {
                    if let Some(watch) = self.watches.remove(&watched) {
                        watch.abort();
                    }
                }
                Work::Tell(notice) => notices.push(notice),
            }
        }
        notices
    }

    /// Tells the keeper what came of a request.
    pub(super) fn answered(&mut self, event: Event, now: Moment) {
        if let Event::Watched(name, key, _) = &event {
            let watched = (name.clone(), key.clone());
            // One that was called off as it ended, and another one has begun since.
            if self.watches.get(&watched).is_none_or(|watch| !watch.is_finished()) {
                return;
            }
            self.watches.remove(&watched);
        }
        self.keeper.handle(event, now);
    }
}
