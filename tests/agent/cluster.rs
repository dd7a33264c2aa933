//! Three servers: what their clients keep while one of them is hurt.

use std::io::Read;
use std::time::Duration;

use rustix::process::Signal;
use slotkeeper::internals::log_events;
use tokio::runtime::Runtime;

use crate::operator::Operator;
use crate::process::BINARY;
use crate::run::job::Job;
use crate::support::life::{MEEK, STUBBORN};
use crate::support::lives::{self, Lived};
use crate::support::{cluster, http, processes};
use crate::wait_for;

/// The shared cluster, for tests that do not wait asynchronously.
struct Cluster {
    servers: cluster::Cluster,
    runtime: Runtime,
}

impl Cluster {
    fn start() -> Self {
        Self::start_with(false)
    }

    fn start_with(removes_failed: bool) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let servers = runtime.block_on(cluster::Cluster::start_with(removes_failed));
        Self { servers, runtime }
    }

    fn address(&self, server: usize) -> String {
        self.servers.addr(server).to_string()
    }

    fn leader(&self) -> usize {
        self.runtime.block_on(self.servers.await_leader())
    }

    fn stop(&mut self, server: usize, signal: Signal) {
        self.runtime.block_on(self.servers.stop(server, signal));
    }

    fn restart(&mut self, server: usize) {
        self.runtime.block_on(self.servers.restart(server));
    }

    fn roll(&mut self) {
        self.runtime.block_on(self.servers.roll());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.servers.logs());
        }
    }
}

/// What the command of a job that has ended says of itself.
fn lived(name: String, job: &Job) -> Lived {
    let life = job.life();
    let slot = job.out().trim().parse().ok();
    let token = life.token();
    Lived { name, first: life.first(), last: life.last(), taken_away: None, slots: 1, slot, token }
}

#[test]
fn the_leader_is_killed_while_slots_are_handed_off() {
    const LIMIT: u32 = 3;
    let mut cluster = Cluster::start();
    let leader = cluster.leader();
    let arguments = ["p/three", "-n", "3", "--format", "list"];
    // Each lives until it is let to an end, and for a little while at least.
    let script = "echo $SLOTKEEPER_SLOT; n=0\n\
                  until [ -e \"$0.end\" ] && [ $n -ge 10 ]; do\n\
                  read -r now _ < /proc/uptime; echo \"$now $SLOTKEEPER_FENCING_TOKEN\" >> \"$0\"; sleep 0.04\n\
                  n=$((n + 1)); done";
    let mut jobs: Vec<_> = (0..12).map(|n| Job::live(&cluster.address(n % 3), &arguments, script)).collect();
    let begun = |jobs: &[Job]| jobs.iter().filter(|job| job.life().has_begun()).count();
    let end = |job: &Job| std::fs::write(job.path("life.end"), "").unwrap();
    let live = |job: &&Job| job.life().has_begun() && !job.path("life.end").exists();
    wait_for("all slots to be taken", || begun(&jobs) == 3);
    jobs.iter().filter(live).take(2).for_each(end);
    wait_for("two of them to be handed on", || begun(&jobs) == 5);
    // These are, while the leader is killed, and the others until there is another, and after that.
    jobs.iter().filter(live).for_each(end);
    cluster.stop(leader, Signal::KILL);
    jobs.iter().for_each(end);
    cluster.restart(leader);
    for job in &mut jobs {
        assert_eq!(job.code(), Some(0), "{}", job.log());
    }
    let lives: Vec<_> = jobs.iter().enumerate().map(|(n, job)| lived(format!("job {n}"), job)).collect();
    assert_eq!(lives::faults(&lives, LIMIT), Vec::<String>::new());
    assert!(lives.iter().all(|life| life.slot.is_some_and(|slot| slot < LIMIT)));
    Operator::at(&cluster.address(leader)).assert_nothing_left("p/three");
}

/// Its server answers it, but can do nothing for it.
#[test]
fn a_server_is_cut_off_with_its_client() {
    let cluster = Cluster::start();
    for place in ["a follower", "the leader"] {
        let leader = cluster.leader();
        let (cut, other) =
            if place == "the leader" { (leader, (leader + 1) % 3) } else { ((leader + 1) % 3, leader) };
        let arguments = ["p/one", "-n", "1", "--ttl", "15s", "--kill-after", "1s"];
        let mut first = Job::live(&cluster.address(cut), &arguments, STUBBORN);
        let life = first.await_life();
        let mut second = Job::live(&cluster.address(other), &arguments, MEEK);
        wait_for("one in line", || Operator::at(&cluster.address(other)).keys("p/one").len() == 3);
        cluster.servers.cut_off(cut, true);
        let next = second.await_life();
        life.assert_before(&next);
        assert_eq!(first.code(), Some(80), "{place}: {}", first.log());
        cluster.servers.cut_off(cut, false);
        second.signal(Signal::TERM);
        assert_eq!(second.code(), Some(143), "{place}: {}", second.log());
        cluster.runtime.block_on(cluster.servers.await_in_order(cut));
        Operator::at(&cluster.address(cut)).assert_nothing_left("p/one");
    }
}

/// Consul removes a server that has failed, by default, and ends what is tied to its node long before the TTL: some ten
/// seconds after the cut the successor would begin, and the command live on until its lease is over. Here that is made good
/// by `cure`, configuration of the session, and of the semaphore.
fn a_removed_server_lets_nobody_in_too_early(cure: (&str, &str)) {
    let cluster = Cluster::start_with(true);
    let leader = cluster.leader();
    let cut = (leader + 1) % 3;
    let (of_session, of_semaphore) = cure;
    let start = |server: usize, script: &str| {
        let config = format!(
            "consul: {{address: '{}'}}\nhttp: {{listen: off}}\nsession: {{ttl: 20s{of_session}}}\n\
             semaphores: [{{name: one, prefix: p/one, limit: 1, format: list{of_semaphore}}}]\n",
            cluster.address(server)
        );
        let folder = tempfile::tempdir().unwrap();
        let (file, life) = (folder.path().join("config.yaml"), folder.path().join("life"));
        std::fs::write(&file, config).unwrap();
        let mut command = std::process::Command::new(BINARY);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
        command.args(["run", "--verbose", "--kill-after", "1s", "--config"]).arg(file);
        command.args(["--", "sh", "-c", script]).arg(life);
        Job::spawn(command, folder)
    };
    let mut first = start(cut, STUBBORN);
    let life = first.await_life();
    let mut second = start(leader, MEEK);
    wait_for("one in line", || Operator::at(&cluster.address(leader)).keys("p/one").len() == 3);
    cluster.servers.cut_off(cut, true);
    let next = second.await_life();
    life.assert_before(&next);
    assert_eq!(first.code(), Some(80), "{}", first.log());
    let nodes = http::get(cluster.servers.addr(leader), "/v1/catalog/nodes");
    let nodes = cluster.runtime.block_on(nodes).text();
    assert!(!nodes.contains(&format!("server-{cut}")), "the server was to be removed: {nodes}");
    second.signal(Signal::TERM);
    assert_eq!(second.code(), Some(143), "{}", second.log());
}

/// A session that is tied to a node which is no server's has its whole TTL.
#[test]
fn the_default_node_keeps_the_session_of_a_client_of_a_removed_server() {
    a_removed_server_lets_nobody_in_too_early(("", ""));
}

/// Whoever finds a dead holder leaves it the time in which its command may still live.
#[test]
fn a_prune_delay_keeps_the_slot_of_a_client_of_a_removed_server() {
    a_removed_server_lets_nobody_in_too_early((", node: agent", ", prune_delay: 20s"));
}

/// Slots are kept where the lease allows.
#[test]
fn a_rolling_restart_costs_no_slot() {
    let mut cluster = Cluster::start();
    let arguments = ["p/three", "-n", "3", "--ttl", "60s"];
    let mut jobs: Vec<_> =
        (0..3).map(|server| Job::live(&cluster.address(server), &arguments, MEEK)).collect();
    let lives: Vec<_> = jobs.iter().map(Job::await_life).collect();
    cluster.roll();
    for (job, life) in jobs.iter_mut().zip(&lives) {
        let beats = life.beats();
        wait_for("the command to go on", || life.beats() > beats + 10);
        let longest = life.entries().windows(2).map(|pair| pair[1].0 - pair[0].0).fold(0.0, f64::max);
        assert!(longest < Duration::from_secs(20).as_secs_f64(), "it stood still for {longest} s");
        job.signal(Signal::TERM);
        assert_eq!(job.code(), Some(143), "{}", job.log());
    }
    Operator::at(&cluster.address(0)).assert_nothing_left("p/three");
}

/// A server alone has no leader, for as long as the test wants.
#[test]
fn the_lack_of_a_leader_and_its_end_are_logged_once() {
    let mut cluster = Cluster::start();
    let leader = cluster.leader();
    let (other, asked) = ((leader + 1) % 3, (leader + 2) % 3);
    // Whatever this takes on a busy machine.
    let arguments = ["p/one", "-n", "1", "--ttl", "10m"];
    let mut job = Job::live(&cluster.address(asked), &arguments, MEEK);
    let life = job.await_life();
    let before = job.log().len();
    // Both at once, so that the two that remain elect nobody in between.
    for server in [leader, other] {
        cluster.servers.signal(server, Signal::KILL);
    }
    for server in [leader, other] {
        cluster.stop(server, Signal::KILL);
    }
    // By a watch, since its renewals are far apart, or on a busy machine by the time-out of another read.
    let begins = [log_events::CONSUL_LEADERLESS, log_events::CONSUL_UNAVAILABLE];
    let ends = [log_events::CONSUL_LEADER_RECOVERED, log_events::CONSUL_RECOVERED];
    let told = |words: [&str; 2]| -> Vec<String> {
        let log = job.log().split_off(before);
        log.lines().filter(|line| words.iter().any(|word| line.contains(word))).map(str::to_owned).collect()
    };
    wait_for("the outage to be told", || !told(begins).is_empty());
    let operator = Operator::at(&cluster.address(asked));
    cluster.restart(other);
    wait_for("its end to be told", || !told(ends).is_empty());
    assert_eq!((told(begins).len(), told(ends).len()), (1, 1), "{}", job.log());
    let beats = life.beats();
    wait_for("the command to go on", || life.beats() > beats + 10);
    let not_told = [log_events::REQUEST_FAILED, log_events::REQUEST_RECOVERED, "Consul's own"];
    assert!(!not_told.iter().any(|word| job.log().contains(word)), "{}", job.log());
    job.signal(Signal::TERM);
    assert_eq!(job.code(), Some(143), "{}", job.log());
    operator.assert_nothing_left("p/one");
}

#[test]
fn a_server_that_falls_silent_costs_its_client_the_slot_in_time() {
    let cluster = Cluster::start();
    let leader = cluster.leader();
    let silent = (leader + 1) % 3;
    let arguments = ["p/one", "-n", "1", "--ttl", "15s", "--kill-after", "1s"];
    let mut first = Job::live(&cluster.address(silent), &arguments, STUBBORN);
    let life = first.await_life();
    let mut second = Job::live(&cluster.address(leader), &arguments, MEEK);
    wait_for("one in line", || Operator::at(&cluster.address(leader)).keys("p/one").len() == 3);
    cluster.servers.signal(silent, Signal::STOP);
    let next = second.await_life();
    life.assert_before(&next);
    cluster.servers.signal(silent, Signal::CONT);
    assert_eq!(first.code(), Some(80), "{}", first.log());
    second.signal(Signal::TERM);
    assert_eq!(second.code(), Some(143), "{}", second.log());
}

/// A Consul that hangs in its stop holds up neither a test nor the chaos.
#[test]
fn a_server_that_does_not_end_on_sigterm_is_killed() {
    let mut deaf = std::process::Command::new("sh")
        .args(["-c", "trap '' TERM; echo deaf; exec sleep 1000"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = [0; 4];
    deaf.stdout.take().unwrap().read_exact(&mut said).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut ends = |patience| runtime.block_on(processes::end(&mut deaf, Signal::TERM, patience));
    assert!(!ends(Duration::from_millis(100)), "SIGTERM is ignored");
    assert!(ends(Duration::from_secs(1)), "it has ended by then");
}

/// The judge of the lives above, and of the chaos that `scripts/chaos` plays.
#[test]
fn lives_are_judged() {
    let life = |first: f64, last: f64, slot: u32, token: u64| Lived {
        name: format!("{first}"),
        first,
        last,
        taken_away: None,
        slots: 1,
        slot: Some(slot),
        token,
    };
    let fine = [life(0.0, 2.0, 0, 5), life(0.5, 3.0, 1, 5), life(2.0, 4.0, 0, 9)];
    assert_eq!(lives::faults(&fine, 2), Vec::<String>::new());
    assert_eq!(lives::faults(&fine, 1).len(), 1, "two at once");
    assert_eq!(lives::overlap(&fine, 1, |one| one.last).too_many_for, 2.5);
    let heavy = [Lived { slots: 2, ..life(0.0, 2.0, 0, 5) }, life(1.0, 3.0, 2, 5)];
    assert_eq!(lives::overlap(&heavy, 2, |one| one.last).most, 3);
    let backwards = [life(0.0, 1.0, 0, 5), life(2.0, 3.0, 0, 5)];
    assert_eq!(lives::faults(&backwards, 1).len(), 1, "a token that stands still");
    let beside = [life(0.0, 2.0, 0, 5), life(1.0, 3.0, 0, 9)];
    assert_eq!(lives::faults(&beside, 2).len(), 1, "two on one slot");
    let taken = [Lived { taken_away: Some(0.9), ..life(0.0, 2.0, 0, 5) }, life(1.0, 3.0, 0, 9)];
    assert_eq!(lives::faults(&taken, 1), Vec::<String>::new());
}
