//! An HTTP client of Consul for distributed locks and semaphores: sessions, keys, transactions, blocking queries, logins.
//!
//! [`Client`] has one method for each endpoint. It is cheap to clone, and clones share their connections and their token.
//!
//! - Each request is bounded in time ([`DEFAULT_TIMEOUT`], [`Client::within`]) and each answer in bytes ([`MAX_ANSWER`]).
//! - A write whose outcome is unknown is never retried. The caller reads again first.
//! - No token appears in a log, in an error or in the `Debug` output of a type.
//! - With several addresses, the client moves to another one only if it shows a session of the client, or no lease may be valid. See [`Client`].
//! - The behaviour relied on is that of Consul 1.8 to 1.22. Where it is not documented, it was measured.
//!
//! # Reading a key
//!
//! A server on loopback stands in for Consul here. An agent listens at `127.0.0.1:8500`, which is the default address.
//!
//! ```
//! use std::sync::Arc;
//!
//! use slotkeeper_consul::{Client, Read, Settings, Unobserved};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//! use tokio::net::TcpListener;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = TcpListener::bind("127.0.0.1:0").await?;
//! let settings = Settings { address: server.local_addr()?.to_string().parse()?, ..Settings::default() };
//! tokio::spawn(async move {
//!     let (mut connection, _) = server.accept().await.unwrap();
//!     let mut request = vec![0; 4096];
//!     let length = connection.read(&mut request).await.unwrap();
//!     assert!(request[..length].starts_with(b"GET /v1/kv/colour?consistent= HTTP/1.1"));
//!     let body = r#"[{"Key":"colour","Value":"Ymx1ZQ==","Flags":0,"LockIndex":0,"CreateIndex":7,"ModifyIndex":7}]"#;
//!     let head = format!("HTTP/1.1 200 OK\r\nX-Consul-Index: 7\r\nContent-Length: {}\r\n\r\n", body.len());
//!     connection.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
//! });
//!
//! let client = Client::new(&settings, Arc::new(Unobserved))?;
//! let answer = client.kv_get("colour", Read::consistent()).await?;
//! assert_eq!(answer.index, 7);
//! assert_eq!(answer.value.unwrap().value, b"blue");
//! # Ok(())
//! # }
//! ```
//!
//! # Acquiring a lock
//!
//! ```no_run
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use slotkeeper_consul::{Behavior, Client, SessionSpec, Settings, Txn, TxnOp, Unobserved};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new(&Settings::default(), Arc::new(Unobserved))?;
//! let session = client
//!     .session_create(&SessionSpec {
//!         name: "nightly-report".into(),
//!         ttl: Duration::from_secs(30),
//!         behavior: Behavior::Release,
//!         lock_delay: Duration::from_secs(15),
//!         node: None,
//!         node_checks: vec!["serfHealth".into()],
//!         service_checks: Vec::new(),
//!     })
//!     .await?;
//! let lock = TxnOp::Lock { key: "locks/report".into(), value: b"me".to_vec(), flags: 0, session };
//! match client.txn(&[lock]).await? {
//!     Txn::Committed(_) => println!("acquired"),
//!     Txn::RolledBack(faults) => println!("not acquired: {faults:?}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Addresses
//!
//! Addresses follow the rules of `CONSUL_HTTP_ADDR`; a list has commas.
//!
//! ```
//! use slotkeeper_consul::{Address, AddressError, Addresses};
//!
//! let several: Addresses = "10.0.0.1:8500,https://consul.example.com".parse()?;
//! assert_eq!(several.first().to_string(), "http://10.0.0.1:8500");
//! assert!(several.iter().any(Address::is_https));
//! assert!("http://user:secret@consul:8500".parse::<Address>().is_err());
//! # Ok::<(), AddressError>(())
//! ```

#![warn(missing_docs, unreachable_pub)]

mod about;
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
mod probe;
mod read;
mod request;
mod router;
mod selection;
mod session;
mod settings;
mod tls;
mod token;
mod txn;

pub use about::Cluster;
pub use address::{Address, AddressError, Addresses, MAX_ADDRESSES, socket_path, without_needless_brackets};
pub use client::{Client, DEFAULT_TIMEOUT, MAX_ANSWER, SetupError};
pub use endpoint::MAX_LONG_POLLS;
pub use error::{Error, Kind, Tried};
pub use file::open_regular;
pub use kv::KvPair;
pub use login::Login;
pub use operation::{Code, Observer, Operation, Unobserved};
pub use read::{Blocking, Consistency, Indexed, MAX_WAIT, Read};
pub use selection::{AddressNews, AddressState};
pub use session::{Behavior, Session, SessionSpec};
pub use settings::{Settings, Tls};
pub use token::{AuthMethod, Secret, TokenError, TokenSource};
pub use txn::{Fault, TXN_OPERATIONS, Txn, TxnFault, TxnOp};
