//! The real binary as a process, with its files in a temporary folder.

use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use slotkeeper::internals::log_events;
use slotkeeper_consul::{Code, Operation};
use tempfile::TempDir;

use crate::http::{self, Reply};
use crate::wait_for;

/// The binary under test.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_slotkeeper");

/// Whether a process of this number is there, and not only waits for somebody to reap it.
pub(crate) fn is_running(process: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"));
    status.is_ok_and(|status| !status.contains("State:\tZ"))
}

/// A folder that outlives its agents: configuration, readiness file, state file, log.
pub(crate) struct Home {
    folder: TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Takes a sample file of the repository as the configuration.
    pub(crate) fn take_sample(&self, name: &str) {
        let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(name);
        std::fs::copy(sample, self.path("config.yaml")).unwrap();
    }

    /// Writes the configuration: `rest` is YAML that goes beside where Consul is and where our files lie.
    pub(crate) fn configure(&self, consul: &str, rest: &str) {
        let folder = self.folder.path().display();
        let config = format!(
            "consul: {{address: '{consul}'}}\nhttp: {{listen: '127.0.0.1:0'}}\n\
             readiness: {{file: '{folder}/ready'}}\n{}",
            rest.replace("$HOME", &folder.to_string())
        );
        std::fs::write(self.path("config.yaml"), config).unwrap();
    }
}

/// An agent in a home of its own.
pub(crate) struct Lodger {
    // Goes first: its log lies at home.
    agent: Agent,
    _home: Home,
}

impl Lodger {
    /// Starts one; `rest` is its configuration beside where Consul is and where its files lie.
    pub(crate) fn start(consul: &str, rest: &str) -> Self {
        Self::start_with(consul, rest, &[])
    }

    pub(crate) fn start_with(consul: &str, rest: &str, environment: &[(&str, &str)]) -> Self {
        let home = Home::new();
        home.configure(consul, rest);
        Self { agent: Agent::start_with(&home, &[], environment), _home: home }
    }
}

impl Deref for Lodger {
    type Target = Agent;

    fn deref(&self) -> &Agent {
        &self.agent
    }
}

impl DerefMut for Lodger {
    fn deref_mut(&mut self) -> &mut Agent {
        &mut self.agent
    }
}

/// A running agent. It is killed when the value goes, unless it has ended.
pub(crate) struct Agent {
    child: Child,
    address: String,
    log: PathBuf,
    ready: PathBuf,
}

/// Host and port of the URL in a line of the log.
pub(crate) fn address_in(line: &str) -> Option<String> {
    let rest = line.split("http://").nth(1)?;
    rest.split([' ', '"']).next().map(str::to_owned)
}

impl Agent {
    /// Starts an agent on the configuration in `home` and waits until it serves its endpoints.
    pub(crate) fn start(home: &Home) -> Self {
        Self::start_with(home, &[], &[])
    }

    pub(crate) fn start_with(home: &Home, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut agent = Self::spawn(home, arguments, environment);
        agent.await_served();
        agent
    }

    /// One that a command of the test's own becomes.
    pub(crate) fn of(mut command: Command, home: &Home) -> Self {
        let log = home.path("log");
        let child = command.stdout(Stdio::null()).stderr(File::create(&log).unwrap()).spawn().unwrap();
        Self { child, address: String::new(), log, ready: home.path("ready") }
    }

    /// Waits until it serves its endpoints.
    pub(crate) fn await_served(&mut self) {
        let agent = self;
        let served = |agent: &Self| {
            let log = agent.log();
            let own = log.lines().filter(|line| !line.contains(log_events::CONTROL_ENDPOINTS_SERVED));
            own.filter(|line| line.contains(log_events::ENDPOINTS_SERVED)).find_map(address_in)
        };
        wait_for("the agent to serve its endpoints", || {
            assert!(agent.child.try_wait().unwrap().is_none(), "the agent ended:\n{}", agent.log());
            served(agent).is_some()
        });
        agent.address = served(agent).unwrap();
    }

    /// Starts an agent that may end by itself.
    pub(crate) fn spawn(home: &Home, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let log = home.path(&format!("log-{}", fastrand::u32(..)));
        let output = File::create(&log).unwrap();
        let child = Command::new(BINARY)
            .args(["agent", "--config"])
            .arg(home.path("config.yaml"))
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .spawn()
            .unwrap();
        Self { child, address: String::new(), log, ready: home.path("ready") }
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Where its control endpoints listen, at a TCP address.
    pub(crate) fn control_address(&self) -> String {
        let mut address = None;
        wait_for("the control endpoints", || {
            let log = self.log();
            let mut lines = log.lines().filter(|line| line.contains(log_events::CONTROL_ENDPOINTS_SERVED));
            address = lines.find_map(address_in);
            address.is_some()
        });
        address.unwrap()
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        http::request(&self.address, &format!("GET {path}"), "")
    }

    pub(crate) fn status(&self) -> Value {
        serde_json::from_str(&self.get("/v1/status").body).unwrap()
    }

    /// The first semaphore's status.
    pub(crate) fn semaphore(&self) -> Value {
        self.status()["semaphores"][0].clone()
    }

    pub(crate) fn session(&self) -> String {
        self.status()["session"]["id"].as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.get("/readyz").status == 200
    }

    pub(crate) fn ready_file(&self) -> &Path {
        &self.ready
    }

    pub(crate) fn await_ready(&self) {
        wait_for(&format!("readiness of an agent with the log\n{}", self.log()), || self.is_ready());
        wait_for("the readiness file", || self.ready.exists());
    }

    /// Waits until the first semaphore is in this state.
    pub(crate) fn await_state(&self, state: &str) {
        wait_for(&format!("state {state}; log:\n{}", self.log()), || self.semaphore()["state"] == state);
    }

    /// What the readiness file says.
    pub(crate) fn ready_file_says(&self) -> Value {
        serde_json::from_slice(&std::fs::read(&self.ready).unwrap()).unwrap()
    }

    /// The value of a series as it stands in the text format.
    pub(crate) fn metric(&self, series: &str) -> f64 {
        let text = self.get("/metrics").body;
        let line = text.lines().find(|line| line.starts_with(&format!("{series} ")));
        let line = line.unwrap_or_else(|| panic!("no series {series} in\n{text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Requests to Consul, of all operations with this one's label, that ended with this code. Their series appears with the first one.
    pub(crate) fn requests(&self, operation: Operation, code: Code) -> f64 {
        let (code, operation) = (code.as_str(), operation.label());
        let series =
            format!("slotkeeper_consul_requests_total{{code=\"{code}\",operation=\"{operation}\"}} ");
        let text = self.get("/metrics").body;
        assert!(text.contains("\nslotkeeper_ready "), "these are no metrics:\n{text}");
        let count = text.lines().find_map(|line| line.strip_prefix(&series));
        count.map_or(0.0, |count| count.parse().unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Sends a signal to a process that may have ended meanwhile.
    pub(crate) fn signal_if_there(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Waits for the process to end.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        wait_for("the agent to end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// SIGTERM, and the exit code.
    pub(crate) fn terminate(&mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.ended().code()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("log of the agent at {}:\n{}", self.address, self.log());
        }
    }
}
