//! The pure core: it is told what was observed and what time it is, and says what to do. No I/O, no clock, no
//! randomness of its own, nothing else of this crate.
//!
//! [`Keeper`] is one agent's whole core: one session and a [`Machine`] for each semaphore. What it decides comes
//! from one pure function, [`plan::hold`], over a [`View`]. A single-key lock is one of them, with another thing to look at
//! ([`SingleKeyLock`]) and a plan of its own; whatever is said of a semaphore's life is true of its.
//!
//! What it does not promise, first: a process that is paused at the wrong instant, or whose clock runs wild, can go on
//! believing that it holds a slot. Only a downstream check of the fencing token is safe against that.

mod backoff;
mod command;
pub mod contender;
mod group;
mod keeper;
mod lease;
mod machine;
mod machines;
mod notice;
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
mod unanswered;
mod view;

pub use command::{
    Command, Commit, Event, Failure, FailureKind, Listing, Name, NotCreated, Op, Part, Reading,
};
pub use contender::Identity;
pub use keeper::{Keeper, Resume, Start};
pub use lease::{DEFAULT_TTL, Lease, Terms};
pub use machine::{Machine, Phase};
pub use notice::{Leader, LossReason, Notice};
pub use printable::{is_printable, printable};
pub use record::{Form, LOCK_FLAGS, NotASemaphore, Record};
pub use session_id::SessionId;
pub use settings::{LimitPolicy, OnLost, Primitive, Settings};
pub use single::SingleKeyLock;
pub use size::Acquisition;
pub use time::{Moment, Wall};
pub use view::{Contender, LockKeyState, Pair, View};
