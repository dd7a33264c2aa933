#![doc = include_str!("../README.md")]
//!
//! # Where to begin
//!
//! - [`Keeper`] is the whole core of one agent: one session, and a [`Machine`] for each semaphore or lock. [`Command`] is what
//!   the caller executes, [`Event`] is how it reports the answer, [`Notice`] is what is worth a log line.
//! - [`plan`] holds the decisions as pure functions over a [`View`], what is known of one semaphore's keys. Operators'
//!   transactions are there too: [`plan::set_limit`], [`plan::prune`], [`plan::destroy`] and [`plan::request_eviction`].
//! - [`Record`] and [`contender`] are the formats of the two kinds of key.
//! - [`Terms`] says how a session's TTL turns into renewals and a [`Lease`].

#![warn(missing_docs, unreachable_pub)]

mod backoff;
mod command;
pub mod contender;
mod failing;
mod group;
mod keeper;
mod lease;
mod line;
mod machine;
mod notice;
mod obstacle;
pub mod plan;
mod printable;
pub mod record;
mod session;
mod session_id;
mod settings;
mod sightings;
mod single;
mod time;
mod timing;
mod view;

pub use command::{Command, Commit, Event, Failure, FailureKind, Listing, Name, Op, Part, Reading};
pub use contender::Identity;
pub use failing::Failing;
pub use keeper::{Keeper, Resume, Start};
pub use lease::{DEFAULT_TTL, Lease, Terms};
pub use machine::{Machine, Phase};
pub use notice::{Leader, LossReason, Notice};
pub use obstacle::{Obstacle, ObstacleKind};
pub use printable::{is_printable, printable};
pub use record::{Form, Hints, LOCK_FLAGS, NotASemaphore, Record};
pub use session_id::SessionId;
pub use settings::{LimitPolicy, MAX_LIMIT, OnLost, Primitive, Settings};
pub use sightings::{Sight, Sightings};
pub use single::SingleKeyLock;
pub use time::{Moment, Wall};
pub use timing::{OFFER_PATIENCE, TRY_ONCE_TIMEOUT};
pub use view::{Contender, LockKeyState, Pair, View};
