//! Clients that come in a known order to a semaphore of a Consul of its own, to be hurt there.

use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use slotkeeper::internals::clock;
use tokio::process::Child;

use crate::commands::{Takes, command};
use crate::play::Program;
use crate::server::Server;
use crate::support::processes;
use crate::tap::Tap;
use crate::work::Work;

const PREFIX: &str = "bench/line";
/// For clients to come in line.
const COMING: Duration = Duration::from_secs(60);

pub(crate) struct Line {
    pub(crate) server: Server,
    /// Clients that are to be cut off reach Consul through it.
    pub(crate) tap: Tap,
    pub(crate) program: Program,
    pub(crate) limit: u32,
    flags: Vec<String>,
    clients: usize,
}

impl Line {
    pub(crate) async fn new(program: Program, limit: u32, flags: &[&str]) -> Self {
        let server = Server::start().await;
        let tap = Tap::start(server.proxy().addr(), Duration::ZERO);
        let flags = flags.iter().map(|&flag| flag.to_owned()).collect();
        Self { server, tap, program, limit, flags, clients: 0 }
    }

    /// Starts a client that is not among those that stand in line.
    pub(crate) fn start(&self, flags: &[&str], by_tap: bool, work: &Work) -> Child {
        let consul = if by_tap { self.tap.addr() } else { self.server.proxy().addr() };
        let flags: Vec<_> =
            self.flags.iter().cloned().chain(flags.iter().map(|&flag| flag.to_owned())).collect();
        command(self.program, consul, PREFIX, Takes::Slot { of: self.limit }, &flags, work).spawn().unwrap()
    }

    /// Adds clients behind those that are there, and waits until all of them stand in line.
    pub(crate) async fn add(&mut self, by_tap: bool, works: &[Work]) -> Result<Vec<Child>, String> {
        let children: Vec<_> = works.iter().map(|work| self.start(&[], by_tap, work)).collect();
        self.clients += children.len();
        // `consul lock -n 1` takes a lock, whose waiters have no keys.
        let is_lock = self.program == Program::ConsulLock && self.limit == 1;
        let ends = clock::now() + COMING;
        loop {
            let sessions = self.server.sessions().await.len();
            let there = if is_lock { sessions } else { self.server.contenders(PREFIX).await };
            match there >= self.clients {
                true => return Ok(children),
                false if clock::now() > ends => {
                    return Err(format!("{there} of {} clients came", self.clients));
                }
                false => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }
}

/// Work that lasts as long as its client, so many times.
pub(crate) fn endless(number: usize) -> Vec<Work> {
    vec![Work::endless(); number]
}

/// Work that lasts so long, so many times, with its notes in `folder`.
pub(crate) fn works(number: usize, hold: Duration, folder: &Path) -> Vec<Work> {
    (0..number).map(|place| Work::new(hold, folder, &place.to_string())).collect()
}

pub(crate) fn signal(children: &[Child], signal: Signal) {
    children.iter().filter_map(pid).for_each(|pid| kill_process(pid, signal).unwrap());
}

/// Kills clients with their guards, as a node that fails does: none of them sees that another one has died.
pub(crate) fn kill_together(children: &[Child]) {
    let all: Vec<_> =
        children.iter().filter_map(pid).flat_map(|pid| [Some(pid), processes::guard_of(pid)]).collect();
    for signal in [Signal::STOP, Signal::KILL] {
        all.iter().flatten().for_each(|pid| kill_process(*pid, signal).unwrap());
    }
}

/// None of a process that was waited for.
fn pid(child: &Child) -> Option<Pid> {
    child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?))
}
