//! What clients cost that only hold or wait: requests by their kind, and processor time.
//!
//! All of them at the same time on one Consul, each behind a proxy of its own.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use tokio::process::{Child, Command};

use crate::arguments::Arguments;
use crate::commands::{SLOTKEEPER, Takes, command};
use crate::play::Program;
use crate::server::{Server, until};
use crate::support::processes::processor_time;
use crate::support::proxy::Proxy;
use crate::support::traffic::{Count, Counts, Kind};
use crate::table::{Table, figure, number};
use crate::work::Work;

/// Semaphores of one agent.
const MANY: usize = 100;
/// Slots of the others: `consul lock -n 1` is no semaphore.
const LIMIT: u32 = 2;
const PATIENCE: Duration = Duration::from_secs(120);
/// From the last change to the measurement.
const SETTLING: Duration = Duration::from_secs(15);
/// A client that is watched.
struct Subject {
    name: String,
    proxy: Proxy,
    child: Child,
}

/// What is there: clients that are watched, and others.
struct Scene<'a> {
    server: &'a Server,
    ttl: Option<Duration>,
    folder: &'a Path,
    watched: Vec<Subject>,
    others: Vec<Child>,
}

/// Watches them for a while and prints what they cost.
pub(crate) async fn measure(arguments: &Arguments) -> Vec<String> {
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    let ttl = arguments.rest_ttl;
    let mut scene =
        Scene { server: &server, ttl, folder: folder.path(), watched: Vec::new(), others: Vec::new() };
    if let Err(fault) = scene.set(arguments.no_peer).await {
        return vec![format!("at rest: {fault}")];
    }
    tokio::time::sleep(SETTLING).await;
    let before: Vec<_> = scene.watched.iter().map(Subject::stand).collect();
    tokio::time::sleep(arguments.rest_for).await;
    let after = scene.watched.iter().map(Subject::stand);
    let spent: Vec<_> =
        before.into_iter().zip(after).map(|(old, new)| (new.0 - old.0, new.1 - old.1)).collect();
    print(arguments, &scene.watched, &spent);
    Vec::new()
}

impl Subject {
    /// What it has cost so far.
    fn stand(&self) -> (Counts, Duration) {
        (self.proxy.counts(), processor_time(self.child.id().expect("it has not ended")))
    }
}

impl Scene<'_> {
    async fn set(&mut self, no_peer: bool) -> Result<(), String> {
        self.add_many().await?;
        for program in [Program::Slotkeeper, Program::ConsulLock] {
            if program == Program::ConsulLock && no_peer {
                continue;
            }
            let prefix = format!("bench/{}", program.as_str().replace(' ', ""));
            self.add(program, &format!("{prefix}/alone"), &[Some("holder, nobody waits")]).await?;
            let pair = [Some("holder, one waiter"), None, Some("the one waiter")];
            self.add(program, &format!("{prefix}/pair"), &pair).await?;
        }
        // Two holders, and five waiters of which three are watched.
        let line = [None, None, Some("first of five waiters"), None, Some("third"), None, Some("fifth")];
        self.add(Program::Slotkeeper, "bench/line", &line).await
    }

    /// One agent that holds many semaphores.
    async fn add_many(&mut self) -> Result<(), String> {
        let (config, ready) = (self.folder.join("config.yaml"), self.folder.join("ready"));
        let proxy = self.server.proxy_apart();
        let entry = |n| format!("- {{name: s{n}, prefix: bench/many/{n}, limit: 1}}\n");
        let text = format!(
            "consul: {{address: 'http://{}'}}\nhttp: {{listen: off}}\nlog: {{level: warn}}\nreadiness: {{file: '{}'}}\n\
             {}semaphores:\n{}",
            proxy.addr(),
            ready.display(),
            self.ttl.map_or(String::new(), |ttl| format!("session: {{ttl: {}s}}\n", ttl.as_secs())),
            (0..MANY).map(entry).collect::<String>()
        );
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new(SLOTKEEPER);
        command.args(["agent", "--config"]).arg(&config).env_clear().kill_on_drop(true);
        let child = command.spawn().unwrap();
        self.watched.push(Subject { name: format!("slotkeeper: agent that holds {MANY}"), proxy, child });
        let holds = until(PATIENCE, || ready.exists()).await;
        if holds { Ok(()) } else { Err(format!("an agent did not come to hold {MANY} slots")) }
    }

    /// Adds clients to a semaphore one after another; those with a name are watched.
    async fn add(&mut self, program: Program, prefix: &str, names: &[Option<&str>]) -> Result<(), String> {
        for (number, name) in names.iter().enumerate() {
            let proxy = name.map(|_| self.server.proxy_apart());
            let consul = proxy.as_ref().unwrap_or(self.server.proxy()).addr();
            let ttl = self.ttl.filter(|_| program == Program::Slotkeeper);
            // A short TTL leaves the command less time to stop than it has by default.
            let flags = |ttl: Duration| vec![format!("--ttl={}s", ttl.as_secs()), "--kill-after=1s".into()];
            let flags = ttl.map(flags).unwrap_or_default();
            let takes = Takes::Slot { of: LIMIT };
            let mut command = command(program, consul, prefix, takes, &flags, &Work::endless());
            let log = self.folder.join("log");
            let child = command.stderr(File::create(&log).unwrap()).spawn().unwrap();
            match name.zip(proxy) {
                Some((name, proxy)) => {
                    let name = format!("{}: {name}", program.as_str().trim_end_matches(" -n"));
                    self.watched.push(Subject { name, proxy, child });
                }
                None => self.others.push(child),
            }
            if !self.server.await_contenders(prefix, number + 1, PATIENCE).await {
                let said = std::fs::read_to_string(log).unwrap_or_default();
                return Err(format!(
                    "{} at {prefix}: client {number} did not come: {said}",
                    program.as_str()
                ));
            }
        }
        Ok(())
    }
}

fn print(arguments: &Arguments, subjects: &[Subject], spent: &[(Counts, Duration)]) {
    let time = humantime::format_duration(arguments.rest_for);
    let ttl = arguments.rest_ttl.map_or("the default TTL".to_owned(), |ttl| format!("a TTL of {ttl:?}"));
    println!("\nAt rest, watched for {time}; ours with {ttl}; requests a minute by their kind");
    let occurs = |kind: &Kind| spent.iter().any(|(counts, _)| counts.of(*kind) != Count::default());
    let kinds: Vec<_> = Kind::ALL.into_iter().filter(occurs).collect();
    let heads = ["client", "requests/a minute", "KB/a minute", "CPU/% of a core"].map(str::to_owned);
    let heads: Vec<_> =
        heads.into_iter().chain(kinds.iter().map(|kind| kind.as_str().replace(' ', "/"))).collect();
    let table = Table::begin(40, &heads);
    let minutes = arguments.rest_for.as_secs_f64() / 60.0;
    for (subject, (counts, processor)) in subjects.iter().zip(spent) {
        let share = processor.as_secs_f64() / arguments.rest_for.as_secs_f64();
        let mut cells = vec![
            subject.name.clone(),
            figure(number(counts.requests()) / minutes),
            figure(number(counts.bytes()) / minutes / 1e3),
            figure(share * 100.0),
        ];
        cells.extend(kinds.iter().map(|kind| figure(number(counts.of(*kind).requests) / minutes)));
        table.row(cells);
    }
    let ours = subjects
        .iter()
        .zip(spent)
        .filter(|(subject, _)| subject.name.starts_with(Program::Slotkeeper.as_str()));
    let requests: u64 = ours.map(|(_, (counts, _))| counts.requests()).sum();
    println!("requests of all watched clients of ours: {requests} in {time}");
}
