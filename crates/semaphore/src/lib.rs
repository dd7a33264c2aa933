#![doc = include_str!("../README.md")]
//!
//! # Where to begin
//!
//! - [`Keeper`] is the whole core of one agent: one session, and a [`Machine`] for each semaphore or lock. [`Command`] is what
//!   the caller executes, [`Event`] is how it reports the answer, [`Notice`] is what is worth a log line.
//! - [`plan`] holds the decisions as pure functions over a [`View`], what is known of one semaphore's keys. Operators'
//!   transactions are there too: [`plan::set_limit`], [`plan::prune`], [`plan::destroy`] and [`plan::request_eviction`].
//! - [`Record`] and [`contender`] are the formats of the two kinds of key. [`offered`] is slotkeeper's own third key.
//! - [`Terms`] says how a session's TTL turns into renewals and a [`Lease`].

#![warn(missing_docs, unreachable_pub)]

mod backoff;
mod command;
pub mod contender;
mod failing;
mod group;
mod keeper;
mod lease;
mod machine;
mod machines;
mod notice;
mod obstacle;
pub mod offered;
pub mod plan;
mod printable;
mod queue;
pub mod record;
mod session;
mod session_id;
mod settings;
mod single;
mod size;
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
pub use record::{Form, LOCK_FLAGS, NotASemaphore, Record};
pub use session_id::SessionId;
pub use settings::{LimitPolicy, OnLost, Primitive, Settings};
pub use single::SingleKeyLock;
pub use size::{Acquisition, MAX_LIMIT};
pub use time::{Moment, Wall};
pub use timing::TRY_ONCE_TIMEOUT;
pub use view::{Contender, LockKeyState, Pair, View};
