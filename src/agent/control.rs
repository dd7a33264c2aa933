//! What the control endpoints ask of the agent.

use std::future;

use tokio::sync::mpsc;

use super::Agent;
use crate::control::request::{Kind, NoLease, Refusal, Request};

impl Agent {
    /// Takes one request. No lease is given yet: nothing is free, and no lease is known.
    pub(super) fn asked(&mut self, request: Request) {
        // Where the client has gone away, nobody hears the answer.
        match request {
            Request::Drain => self.workload_is_done(),
            Request::Acquire { kind, name, reply, .. } => {
                let known: Vec<_> = match kind {
                    Kind::Semaphore => {
                        self.parts.config.semaphores.iter().map(|one| one.name.clone()).collect()
                    }
                    Kind::Lock => Vec::new(),
                };
                let refusal =
                    if known.contains(&name) { Refusal::NotInTime } else { Refusal::UnknownName { known } };
                let _ = reply.send(Err(refusal));
            }
            Request::Renew { reply, .. } | Request::Show { reply, .. } => {
                let _ = reply.send(Err(NoLease::Unknown));
            }
            Request::Release { reply, .. } => {
                let _ = reply.send(Err(NoLease::Unknown));
            }
        }
    }
}

/// The next request. Never comes where there are no control endpoints.
pub(super) async fn next(requests: &mut Option<mpsc::Receiver<Request>>) -> Request {
    match requests {
        Some(requests) => match requests.recv().await {
            Some(request) => request,
            None => future::pending().await,
        },
        None => future::pending().await,
    }
}
