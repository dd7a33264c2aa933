//! Single-key locks.

mod delay;
mod lead;
mod run;

use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::operator::Operator;
use crate::process::Agent;

/// The flags of Consul's own locks.
const FLAGS: u64 = 3_304_740_253_564_472_344;

/// The agent's first lock, as its status has it.
fn lock(agent: &Agent) -> Value {
    agent.status()["locks"][0].clone()
}

/// Who has the lock at `key`.
fn owner(operator: &Operator, key: &str) -> Option<String> {
    operator.key(key)?.session
}

/// `consul lock` without `-n`, which is the Go API's `Lock`; killed with the value.
struct ConsulLock(Child);

impl ConsulLock {
    fn start(consul: &str, arguments: &[&str], script: &str) -> Self {
        let child = Command::new(crate::support::consul::binary())
            .args(["lock", "-http-addr", consul])
            .args(arguments)
            .args(["p/one", script])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn end(mut self) -> Option<i32> {
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        self.0.wait().unwrap().code()
    }

    fn ended(&mut self) -> Option<i32> {
        self.0.wait().unwrap().code()
    }
}

impl Drop for ConsulLock {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
