//! The servers, the seats in which one job follows the other, and all that is known of them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use rustix::process::{Pid, Signal, kill_process};

use crate::job::{Files, Job, Semaphore};
use crate::plan::Target;
use crate::support::freezer::Freezer;
use crate::support::life;

/// One of many slots, of which some take several; one of one; and a lock.
pub(crate) const SEMAPHORES: [Semaphore; 3] = [
    Semaphore { prefix: "chaos/many", is_lock: false, limit: 6, most: 3, seats: 20 },
    Semaphore { prefix: "chaos/one", is_lock: false, limit: 1, most: 1, seats: 7 },
    Semaphore { prefix: "chaos/lock", is_lock: true, limit: 1, most: 1, seats: 5 },
];

/// A place where jobs run one after the other, behind a proxy of its own.
pub(crate) struct Seat {
    pub(crate) semaphore: &'static Semaphore,
    pub(crate) proxy: Freezer,
    priority: i32,
}

/// A job that was started.
#[derive(Clone, Debug)]
pub(crate) struct Played {
    pub(crate) job: Job,
    pub(crate) seat: usize,
    pub(crate) files: Files,
    pub(crate) begun: f64,
    pub(crate) ended: Option<Ended>,
    pub(crate) hurt: Vec<Hurt>,
    /// Its agent or its guard is being hurt. Never both at once: one of them must be there to end the command.
    in_hand: bool,
    pid: Pid,
}

impl Played {
    /// Whether its command runs, unhurt, and would run for longer than it takes its session to run out.
    pub(crate) fn has_long_to_live(&self) -> bool {
        const BEATS: usize = 440;
        self.hurt.is_empty()
            && self.files.has_begun()
            && self.job.beats.saturating_sub(self.files.beats()) > BEATS
    }

    /// Whether it lives, and nothing that it has in Consul was changed behind its back.
    pub(crate) fn can_recover(&self) -> bool {
        !self.in_hand && self.hurt.iter().all(|hurt| !hurt.taken_away)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) at: f64,
    /// None where a signal ended it.
    pub(crate) code: Option<i32>,
}

/// What was done to one job alone, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hurt {
    pub(crate) fault: &'static str,
    pub(crate) at: f64,
    /// An operator has taken its slot away.
    pub(crate) taken_away: bool,
    /// What had been granted by then has at most this token.
    pub(crate) index: u64,
}

/// A time in which a seat, or everybody, had something to bear.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trouble {
    pub(crate) seat: Option<usize>,
    pub(crate) from: f64,
    pub(crate) to: f64,
}

pub(crate) struct Stage {
    pub(crate) seats: Vec<Seat>,
    /// Where the servers answer clients.
    pub(crate) servers: Vec<SocketAddr>,
    pub(crate) jobs: RefCell<Vec<Played>>,
    pub(crate) troubles: RefCell<Vec<Trouble>>,
    /// How often each fault was done, and how often to a waiter.
    pub(crate) counts: RefCell<BTreeMap<&'static str, (u32, u32)>>,
    events: RefCell<Vec<String>>,
    pub(crate) folder: PathBuf,
    is_open: Cell<bool>,
    began: f64,
}

impl Stage {
    pub(crate) async fn set(servers: Vec<SocketAddr>, folder: &Path) -> Self {
        let mut seats = Vec::new();
        for semaphore in &SEMAPHORES {
            for number in 0..semaphore.seats {
                let proxy = Freezer::start(servers[seats.len() % servers.len()]).await;
                // Whoever goes last waits as long as there is anybody else.
                let priority = if number == 0 { -1 } else { 0 };
                seats.push(Seat { semaphore, proxy, priority });
            }
        }
        Self {
            seats,
            servers,
            jobs: RefCell::default(),
            troubles: RefCell::default(),
            counts: RefCell::default(),
            events: RefCell::default(),
            folder: folder.to_owned(),
            is_open: Cell::new(true),
            began: life::now(),
        }
    }

    /// No new jobs from here on.
    pub(crate) fn close(&self) {
        self.is_open.set(false);
    }

    /// Plays one job after the other in a seat.
    pub(crate) async fn occupy(self: Rc<Self>, number: usize, mut rng: Rng) {
        let seat = &self.seats[number];
        let mut turn = 0;
        while self.is_open.get() {
            let job = Job::draw(&mut rng, seat.semaphore, seat.priority);
            let folder = self.folder.join(format!("seat-{number}/{turn}"));
            let mut child = job.start(&seat.proxy.addr().to_string(), seat.semaphore, &folder);
            let pid = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).unwrap();
            let place = self.jobs.borrow().len();
            let (files, begun) = (Files(folder), life::now());
            let played = Played {
                job,
                seat: number,
                files,
                begun,
                ended: None,
                hurt: Vec::new(),
                in_hand: false,
                pid,
            };
            self.jobs.borrow_mut().push(played);
            let status = child.wait().await.unwrap();
            self.jobs.borrow_mut()[place].ended = Some(Ended { at: life::now(), code: status.code() });
            turn += 1;
            tokio::time::sleep(Duration::from_millis(rng.u64(0..800))).await;
        }
    }

    /// The jobs that have not ended; of these the wanted ones, where there are any.
    pub(crate) fn candidates(&self, target: Target) -> Vec<usize> {
        let jobs = self.jobs.borrow();
        let alive = |place: &usize| jobs[*place].ended.is_none();
        let all: Vec<_> = (0..jobs.len()).filter(alive).collect();
        let is_wanted = |place: &usize| match target {
            Target::Holder => jobs[*place].files.has_begun(),
            Target::Waiter => !jobs[*place].files.has_begun(),
            Target::Anybody => true,
        };
        let wanted: Vec<_> = all.iter().copied().filter(is_wanted).collect();
        if wanted.is_empty() { all } else { wanted }
    }

    /// Signals a job's agent, unless it has ended.
    pub(crate) fn signal(&self, place: usize, signal: Signal) {
        let job = &self.jobs.borrow()[place];
        if job.ended.is_none() {
            // Not reaped yet, so that its number is nobody else's.
            let _ = kill_process(job.pid, signal);
        }
    }

    pub(crate) fn pid(&self, place: usize) -> Pid {
        self.jobs.borrow()[place].pid
    }

    /// Whether neither its agent nor its guard was being hurt yet; now one is, until [`Self::let_go`].
    pub(crate) fn take_in_hand(&self, place: usize) -> bool {
        !std::mem::replace(&mut self.jobs.borrow_mut()[place].in_hand, true)
    }

    pub(crate) fn let_go(&self, place: usize) {
        self.jobs.borrow_mut()[place].in_hand = false;
    }

    pub(crate) fn hurt(&self, place: usize, hurt: Hurt) {
        self.jobs.borrow_mut()[place].hurt.push(hurt);
    }

    pub(crate) fn count(&self, fault: &'static str, waits: bool, whom: &str) {
        let mut counts = self.counts.borrow_mut();
        let (all, waiters) = counts.entry(fault).or_default();
        (*all, *waiters) = (*all + 1, *waiters + u32::from(waits));
        let at = life::now();
        self.events.borrow_mut().push(format!("{at:.2} ({:.1}) {fault}: {whom}", at - self.began));
    }

    /// What was done, in order.
    pub(crate) fn events(&self) -> String {
        self.events.borrow().join("\n")
    }

    /// Notes that there is trouble from now on, until [`Self::is_over`].
    pub(crate) fn begin_trouble(&self, seat: Option<usize>) -> usize {
        let mut troubles = self.troubles.borrow_mut();
        troubles.push(Trouble { seat, from: life::now(), to: f64::INFINITY });
        troubles.len() - 1
    }

    pub(crate) fn is_over(&self, trouble: usize) {
        self.troubles.borrow_mut()[trouble].to = life::now();
    }

    /// Whether a seat, or everybody, had something to bear at that time or later.
    pub(crate) fn was_troubled_since(&self, seat: Option<usize>, from: f64) -> bool {
        let troubles = self.troubles.borrow();
        troubles.iter().any(|one| one.seat.is_none_or(|it| Some(it) == seat) && one.to >= from)
    }

    /// Whether a seat had anything to bear in that time, alone or with all.
    pub(crate) fn was_troubled(&self, seat: usize, from: f64, to: f64) -> bool {
        let troubles = self.troubles.borrow();
        troubles.iter().any(|one| one.seat.is_none_or(|it| it == seat) && one.from <= to && one.to >= from)
    }
}
