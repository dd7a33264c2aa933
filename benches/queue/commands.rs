//! Lives as processes: `slotkeeper run` or `consul lock -n`, each of which runs a command while it holds.

use std::net::SocketAddr;
use std::process::Stdio;

use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::play::{Life, Manner, Play, Program, Scene};
use crate::support::consul::binary;
use crate::turns::Turn;
use crate::work::Work;

pub(crate) const SLOTKEEPER: &str = env!("CARGO_BIN_EXE_slotkeeper");

/// What a command takes before it runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Takes {
    /// One slot of so many.
    Slot { of: u32 },
    /// The single-key lock, which is what `consul lock` takes where its limit is 1.
    Lock,
}

/// Starts a program that takes something of `prefix` and works while it holds it. It is killed with its value.
pub(crate) fn start(program: Program, consul: SocketAddr, prefix: &str, takes: Takes, work: &Work) -> Child {
    command(program, consul, prefix, takes, &[], work).stderr(Stdio::piped()).spawn().unwrap()
}

/// Such a program, with flags of its own.
pub(crate) fn command(
    program: Program,
    consul: SocketAddr,
    prefix: &str,
    takes: Takes,
    flags: &[String],
    work: &Work,
) -> Command {
    let limit = match takes {
        Takes::Slot { of } => Some(of),
        Takes::Lock => None,
    };
    let mut command = match program {
        Program::Slotkeeper => {
            let mut command = Command::new(SLOTKEEPER);
            command.args(["run", prefix, &format!("--http-addr={consul}")]);
            command.args(limit.map(|limit| format!("--limit={limit}"))).args(flags).arg("--");
            command
        }
        // Takes what follows its prefix as the command, `--` too.
        Program::ConsulLock => {
            let mut command = Command::new(binary());
            command.args(["lock", "-shell=false", &format!("-http-addr={consul}")]);
            command.arg(format!("-n={}", limit.unwrap_or(1))).args(flags).arg(prefix);
            command
        }
    };
    command.args(work.words());
    // Consul's own variables are for clients; those of the benchmark's caller are not for these.
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    command
}

/// Waits for the end of a program that works for a while.
pub(crate) async fn end(child: Child, work: &Work) -> Result<Turn, String> {
    let ended = child.wait_with_output().await.unwrap();
    let said = || format!("ended with {}: {}", ended.status, String::from_utf8_lossy(&ended.stderr));
    work.turn().filter(|_| ended.status.success()).ok_or_else(said)
}

/// Plays the lives of all clients of one program.
pub(crate) async fn play(program: Program, scene: &Scene<'_>) -> Result<Play, String> {
    let (point, consul, prefix) = (scene.point, scene.server.proxy().addr(), scene.prefix(program));
    let takes = Takes::Slot { of: point.limit };
    let folder = tempfile::tempdir().unwrap();
    let running = scene.begin();
    let mut lives = JoinSet::new();
    for (number, hold) in scene.holds.iter().enumerate() {
        let work = Work::new(*hold, folder.path(), &number.to_string());
        let child = start(program, consul, &prefix, takes, &work);
        lives.spawn(async move { end(child, &work).await });
    }
    let mut ended = Vec::new();
    let all = async {
        while let Some(turn) = lives.join_next().await {
            let failed = |fault| Life { turn: None, fault: Some(fault) };
            ended.push(turn.unwrap().map_or_else(failed, Life::of));
        }
    };
    match timeout(point.patience(), all).await {
        Ok(()) => Ok(running.end(program, Manner::Processes, ended)),
        Err(_) => Err(format!("{} of {} processes did not end", lives.len(), point.clients)),
    }
}
