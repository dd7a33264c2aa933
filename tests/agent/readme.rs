//! What the README has a stranger do, on ports and files of the test's own.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::process::{Agent, BINARY, Home};
use crate::support::ports::Ports;

/// `slotkeeper dev`, ended with the value.
pub(crate) struct Dev {
    child: Child,
    /// What it says that Consul's address is.
    pub(crate) address: String,
}

impl Dev {
    pub(crate) fn start() -> Self {
        let dev =
            Command::new(BINARY).args(["dev", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).spawn();
        let mut dev = Self { child: dev.unwrap(), address: String::new() };
        let told = BufReader::new(dev.child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let address =
            told.filter_map(|line| line.strip_prefix("export CONSUL_HTTP_ADDR=").map(str::to_owned)).next();
        dev.address = address.expect("the server's address");
        dev
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_first_command_runs_the_main_job() {
    let ports = Ports::reserve();
    let home = Home::new();
    home.take_sample("basic.yaml");
    let (consul, ready) = (ports.addr(0).to_string(), home.path("ready").display().to_string());
    let environment = [
        ("CONSUL_HTTP_ADDR", consul.as_str()),
        ("SLOTKEEPER_HTTP_LISTEN", "127.0.0.1:0"),
        ("SLOTKEEPER_READINESS_FILE", &ready),
    ];
    let mut first = Agent::start_with(&home, &["--dev"], &environment);
    first.await_ready();
    // A second one finds the first one's server, and waits.
    let other = Home::new();
    other.take_sample("basic.yaml");
    let ready = other.path("ready").display().to_string();
    let environment = [environment[0], environment[1], ("SLOTKEEPER_READINESS_FILE", &ready)];
    let mut second = Agent::start_with(&other, &[], &environment);
    second.await_state("waiting");
    assert_eq!(second.terminate(), Some(0));
    assert_eq!(first.terminate(), Some(0));
}

#[test]
fn two_agents_share_the_development_server() {
    let dev = Dev::start();
    let (home_a, home_b) = (Home::new(), Home::new());
    for home in [&home_a, &home_b] {
        home.configure(&dev.address, crate::hold::ONE);
    }
    let mut first = Agent::start(&home_a);
    first.await_ready();
    let mut second = Agent::start(&home_b);
    second.await_state("waiting");
    assert_eq!(first.terminate(), Some(0));
    second.await_ready();
    assert_eq!(second.terminate(), Some(0));
}
