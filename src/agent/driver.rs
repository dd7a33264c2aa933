//! Drives one keeper: executes its commands and passes it the answers.
//!
//! The agent has one keeper for its own semaphores and locks, and one for each lease. The requests of all keepers are in one
//! set, each with its owner.

use std::time::Duration;

use tokio::task::JoinSet;

use super::confirms::Confirms;
use super::execute::{self, Work};
use super::leases::Key;
use super::listings::Listings;
use super::watches::{self, Answer, Schedule, Watch, WatchAnswer};
use crate::bridge;
use crate::session_node::Sessions;
use slotkeeper_consul::{Client, Read};
use slotkeeper_semaphore::{Event, Failure, Keeper, Listing, Moment, Name, Notice};

/// The keeper that a request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    /// The keeper of the agent's own slots.
    Agent,
    /// A lease's keeper.
    Lease(Key),
}

/// The outcome of a request.
pub(super) enum Done {
    /// An event for its keeper.
    Event(Owner, Event),
    /// The keys below a prefix.
    Listed(String, Result<Listing, Failure>),
    /// The answers of one combined read, by owner.
    Confirmed(Vec<(Owner, Event)>),
    /// An answer for watches.
    Watches(Answer),
}

/// All requests under way.
pub(super) struct Requests {
    pub(super) tasks: JoinSet<Done>,
    watches: Schedule,
    listings: Listings<Asker>,
    confirms: Confirms<Asker>,
}

/// A keeper and one of its semaphores.
type Asker = (Owner, Name);

impl Requests {
    /// `ttl` is that of the sessions.
    pub(super) fn new(ttl: Duration) -> Self {
        let (listings, confirms) = (Listings::default(), Confirms::default());
        Self { tasks: JoinSet::new(), watches: Schedule::new(ttl), listings, confirms }
    }

    /// Sends the wanted listings, except those that are already under way.
    pub(super) fn ask_for_listings(&mut self, client: &Client) {
        while let Some(prefix) = self.listings.next() {
            let client = client.clone();
            self.tasks.spawn(async move {
                let answer = bridge::list(&client, &prefix, Read::consistent()).await;
                Done::Listed(prefix, answer)
            });
        }
    }

    /// Sends the reads of keys to be confirmed, as few as Consul takes.
    pub(super) fn ask_for_confirmations(&mut self, client: &Client) {
        while let Some(wanted) = self.confirms.next() {
            let client = client.clone();
            self.tasks.spawn(async move {
                let (askers, keys): (Vec<_>, Vec<_>) = wanted.into_iter().unzip();
                let answers = bridge::read_groups(&client, &keys).await;
                let told = |((owner, name), answer)| (owner, Event::KeysRead(name, answer));
                Done::Confirmed(askers.into_iter().zip(answers).map(told).collect())
            });
        }
    }

    /// Events for all owners that wanted this listing.
    pub(super) fn listed(
        &mut self,
        prefix: &str,
        answer: &Result<Listing, Failure>,
    ) -> impl Iterator<Item = (Owner, Event)> {
        let askers = self.listings.ended(prefix).into_iter();
        askers.map(|(owner, name)| (owner, Event::Listed(name, answer.clone())))
    }

    /// Sends the watches whose turn it is.
    pub(super) fn ask_for_watches(&mut self, client: &Client, now: Moment) {
        while let Some(ask) = self.watches.next(now) {
            let answer = watches::ask(ask, client.clone());
            self.tasks.spawn(async move { Done::Watches(answer.await) });
        }
    }

    /// Events for the watchers that an answer concerns.
    pub(super) fn watched(&mut self, answer: Answer, now: Moment) -> Vec<(Owner, Event)> {
        let told = self.watches.answered(answer, now).into_iter();
        told.map(|WatchAnswer { watcher: (owner, name), key, answer }| {
            (owner, Event::Watched(name, key, answer))
        })
        .collect()
    }

    /// When the next watch is due.
    pub(super) fn deadline(&self) -> Option<Moment> {
        self.watches.deadline()
    }
}

/// A keeper and its owner.
pub(super) struct Driver {
    owner: Owner,
    pub(super) keeper: Keeper,
}

impl Driver {
    pub(super) fn new(owner: Owner, keeper: Keeper) -> Self {
        Self { owner, keeper }
    }

    /// Executes the keeper's commands. Returns its notices.
    pub(super) fn carry_out(
        &mut self,
        client: &Client,
        sessions: &Sessions,
        requests: &mut Requests,
        now: Moment,
    ) -> Vec<Notice> {
        let mut notices = Vec::new();
        let owner = self.owner;
        while let Some(command) = self.keeper.next_command() {
            match execute::work(command, &self.keeper, client.clone(), sessions) {
                Work::Request(request) => {
                    requests.tasks.spawn(async move { Done::Event(owner, request.await) });
                }
                Work::List { name, prefix } => requests.listings.want(prefix, (owner, name)),
                Work::Confirm { name, keys } => requests.confirms.want(keys, (owner, name)),
                Work::Watch { name, key, after, wait } => {
                    let class = watches::class(&self.keeper, &name, &key);
                    let watch = Watch { watcher: (owner, name), key, after, wait, class };
                    requests.watches.watch(watch, now);
                }
                Work::StopWatch { name, key } => requests.watches.unwatch(&(owner, name), &key),
                Work::Tell(notice) => notices.push(notice),
            }
        }
        notices
    }

    /// Passes the outcome of a request to the keeper.
    pub(super) fn answered(&mut self, event: Event, now: Moment) {
        self.keeper.handle(event, now);
    }
}
