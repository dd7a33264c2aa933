//! Restarts of what is beside the jobs: the client agent, and the servers one by one, of a cluster at Consul's defaults.
//!
//! Twenty seats start one `slotkeeper run` after the other, at slotkeeper's defaults; half of them address the client agent, the
//! others the three servers. The client agent is restarted by SIGTERM, and so leaves. A server is by turns restarted, and replaced: it
//! leaves, and one without data joins. No job may lose its slot, and no more may live at once than the limit.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::process::Command;
use tokio::time::sleep;

use crate::support::life::Life;
use crate::support::lives::{self, Lived};
use crate::support::shipped::{CLIENT, Stage, is_written};

const SEATS: usize = 20;
const LIMIT: u32 = 12;
/// Between two restarts, so that renewals meet each at another time.
const PAUSE: std::ops::Range<u64> = 2_000..10_000;
/// Beats so often, some twenty times a second.
const COMMAND: &str = r#"
    echo "$SLOTKEEPER_SLOT" > "$0.slot"
    n=$1
    while [ "$n" -gt 0 ]; do
        read -r now _ < /proc/uptime
        echo "$now $SLOTKEEPER_FENCING_TOKEN" >> "$0"
        n=$((n-1))
        sleep 0.05
    done"#;

/// The jobs of all seats.
struct Jobs {
    folder: PathBuf,
    is_over: Cell<bool>,
    ended: RefCell<Vec<Lived>>,
    lost: RefCell<Vec<String>>,
}

/// Plays so many restarts of each kind, and says whether a job lost its slot, or too many lived at once.
pub(crate) async fn play(restarts: u32) -> bool {
    let mut stage = Stage::start().await;
    let folder = tempfile::Builder::new().prefix("slotkeeper-restarts-").tempdir().unwrap();
    let servers = (0..CLIENT).map(|server| stage.addr(server).to_string()).collect::<Vec<_>>().join(",");
    let jobs = Rc::new(Jobs {
        folder: folder.path().to_owned(),
        is_over: Cell::new(false),
        ended: RefCell::default(),
        lost: RefCell::default(),
    });
    let seats = (0..SEATS).map(|seat| {
        let consul = if seat % 2 == 0 { stage.addr(CLIENT).to_string() } else { servers.clone() };
        tokio::task::spawn_local(occupy(Rc::clone(&jobs), seat, consul))
    });
    let seats: Vec<_> = seats.collect();
    let longest = Rc::new(Cell::new(Duration::ZERO));
    let probe = tokio::task::spawn_local(measure(stage.addr(CLIENT), Rc::clone(&longest)));
    println!("{:>7}  {:<34}{:>22}", "restart", "of", "longest without a write");
    let told = |number: usize, what: &str| {
        println!("{:>7}  {what:<34}{:>20.1} s", number + 1, longest.take().as_secs_f64());
    };
    for number in 0..restarts as usize {
        sleep(Duration::from_millis(fastrand::u64(PAUSE))).await;
        stage.stop(CLIENT, Signal::TERM).await;
        stage.restart(CLIENT).await;
        told(number, "the client agent");
        sleep(Duration::from_millis(fastrand::u64(PAUSE))).await;
        let server = number % CLIENT;
        let leads = if stage.leader().await == server { ", which leads" } else { "" };
        if number % 2 == 0 {
            stage.replace(server).await;
            told(number, &format!("server {server}{leads}, replaced"));
        } else {
            stage.stop(server, Signal::TERM).await;
            stage.restart(server).await;
            told(number, &format!("server {server}{leads}, restarted"));
        }
    }
    probe.abort();
    jobs.is_over.set(true);
    for seat in seats {
        seat.await.unwrap();
    }
    let (ended, lost) = (jobs.ended.borrow(), jobs.lost.borrow());
    let faults = lives::faults(&ended, LIMIT);
    let most = lives::overlap(&ended, LIMIT, |one| one.last).most;
    for fault in lost.iter().chain(&faults) {
        println!("VIOLATION: {fault}");
    }
    println!("{} jobs, {} lost; at most {most} of {LIMIT} slots at once", ended.len(), lost.len());
    let failed = !lost.is_empty() || !faults.is_empty();
    println!("slotkeeper: {}", if failed { "FAILED" } else { "no job lost its slot" });
    failed
}

/// Writes again and again, and keeps the longest time between two writes.
async fn measure(consul: SocketAddr, longest: Rc<Cell<Duration>>) {
    let mut last = Instant::now();
    loop {
        if is_written(consul).await {
            longest.set(longest.get().max(last.elapsed()));
            last = Instant::now();
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Runs one job after the other.
async fn occupy(jobs: Rc<Jobs>, seat: usize, consul: String) {
    for number in 0.. {
        if jobs.is_over.get() {
            return;
        }
        let name = format!("seat-{seat}-{number}");
        let file = jobs.folder.join(&name);
        // From an instant to longer than the outages.
        let beats = (20 * fastrand::u32(1..60)).to_string();
        let mut run = Command::new(env!("CARGO_BIN_EXE_slotkeeper"));
        run.args([
            "run",
            "p/restarts",
            "-n",
            &LIMIT.to_string(),
            "--http-addr",
            &consul,
            "--quiet",
            "--",
            "sh",
            "-c",
            COMMAND,
        ]);
        run.arg(&file).arg(beats).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        let output = run.stdin(Stdio::null()).output().await.unwrap();
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            jobs.lost.borrow_mut().push(format!("{name} at {consul}: {}: {said}", output.status));
        }
        let slot = std::fs::read_to_string(format!("{}.slot", file.display()));
        let life = Life::at(file);
        if life.has_begun() {
            let slot = slot.ok().and_then(|slot| slot.trim().parse().ok());
            let (first, last, token) = (life.first(), life.last(), life.token());
            jobs.ended.borrow_mut().push(Lived {
                name,
                first,
                last,
                taken_away: None,
                slots: 1,
                slot,
                token,
            });
        }
    }
}
