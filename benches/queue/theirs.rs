//! The peer's lives: processes of `consul lock -n`, each of which runs `sleep` for as long as it holds.

use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use crate::play::{LIMIT, Play, Program, Stage, patience};
use crate::support::consul::binary;
use crate::support::proxy::Proxy;

/// More processes than this measure the machine and not the program.
pub(crate) const MOST: u32 = 120;

pub(crate) async fn play(proxy: &Proxy, clients: u32, hold: Duration) -> Play {
    let stage = Stage::set(proxy);
    let mut lives = JoinSet::new();
    for _ in 0..clients {
        // A prefix of its own: `consul lock` does not read the form that a new semaphore of ours has by default.
        let child = start(proxy, &format!("bench/theirs/{clients}"), hold);
        lives.spawn(live(child));
    }
    let all = async { while lives.join_next().await.transpose().unwrap().is_some() {} };
    if tokio::time::timeout(patience(clients, hold), all).await.is_err() {
        panic!("consul lock, {clients} clients: {} processes did not end", lives.len());
    }
    stage.clear(Program::ConsulLock, clients, hold, Vec::new())
}

fn start(proxy: &Proxy, prefix: &str, hold: Duration) -> Child {
    let mut command = Command::new(binary());
    command.args(["lock", "-shell=false", "-n", &LIMIT.to_string()]);
    command.args(["-http-addr", &proxy.addr().to_string(), prefix, "sleep", &hold.as_secs_f64().to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    command.spawn().unwrap()
}

async fn live(child: Child) {
    let ended = child.wait_with_output().await.unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "consul lock ended with {}: {said}", ended.status);
}
