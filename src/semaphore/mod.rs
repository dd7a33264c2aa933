//! The pure core: it is told what was observed and what time it is, and says what to do. No I/O, no clock, no
//! randomness of its own, nothing else of this crate.

mod time;

pub use time::Moment;
