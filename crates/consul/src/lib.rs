//! The HTTP client of Consul: one function an endpoint.
//!
//! [`Client`] is cheap to clone. Every request is bounded in time and in bytes, every answer has a type, and no token
//! reaches a log or an error. It never retries what Consul may already have applied: [`Error::outcome_unknown`] tells
//! the caller to read again first. Nothing else of this crate is known here.

mod address;
mod classify;
mod client;
mod connections;
mod endpoint;
mod error;
mod exchange;
mod file;
mod key;
mod kv;
mod login;
mod operation;
mod read;
mod request;
mod router;
mod selection;
mod session;
mod settings;
mod tls;
mod token;
mod txn;

pub use address::{Address, AddressError, Addresses, MAX_ADDRESSES};
pub use client::{Client, DEFAULT_TIMEOUT, MAX_ANSWER, SetupError};
pub use endpoint::MAX_LONG_POLLS;
pub use error::{Class, Error, Tried};
pub use file::open_regular;
pub use kv::{KvPair, Put};
pub use login::Login;
pub use operation::{Code, Observer, Operation, Unobserved};
pub use read::{Blocking, Consistency, Indexed, MAX_WAIT, Read};
pub use selection::{AddressNews, AddressState};
pub use session::{Behavior, Session, SessionSpec};
pub use settings::{Settings, Tls};
pub use tls::TlsError;
pub use token::{AuthMethod, Secret, TokenError, TokenSource};
pub use txn::{Fault, TXN_OPERATIONS, Txn, TxnFault, TxnOp};
