//! Commands that are run on changes, one after the other, each for a bounded time.

use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tracing::{info, warn};

/// Time that a hook has before it is killed.
const PATIENCE: Duration = Duration::from_secs(30);
/// Changes that may wait for their hook; what comes on top is dropped with a warning.
const QUEUE: usize = 64;

/// A hook to run: the command, and what it is told by its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Program and arguments; not a shell line.
    pub command: Vec<String>,
    /// Variables in addition to our own.
    pub environment: Vec<(&'static str, String)>,
}

impl Call {
    /// What it is told under that name, for the log.
    fn says(&self, name: &str) -> Option<&str> {
        self.environment.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }
}

/// A hook has run, and ended with 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Succeeded;

/// Goes with a call, and is told if it has; one that has failed, or was not run, closes it.
type Running = oneshot::Sender<Succeeded>;

/// Runs hooks in the order of their calls.
#[derive(Debug)]
pub struct Hooks {
    calls: mpsc::Sender<(Call, Running)>,
    runner: JoinHandle<()>,
    running: watch::Receiver<Option<u32>>,
}

impl Hooks {
    /// Begins to wait for calls.
    pub fn start() -> Self {
        let (calls, mut waiting) = mpsc::channel::<(Call, Running)>(QUEUE);
        let (runs, running) = watch::channel(None);
        let runner = tokio::spawn(async move {
            while let Some((call, running)) = waiting.recv().await {
                let done = run(call, &runs).await;
                runs.send_replace(None);
                // Nobody need wait for it.
                if let Some(done) = done {
                    let _ = running.send(done);
                }
            }
        });
        Self { calls, runner, running }
    }

    /// The process of the one that runs.
    pub fn process(&self) -> Option<u32> {
        *self.running.borrow()
    }

    /// The task that runs them, which ends only with this handle.
    pub fn task(&self) -> &JoinHandle<()> {
        &self.runner
    }

    /// Has the hook run after those called before it. What it gives tells when it has, or closes where it has not.
    pub fn call(&self, call: Call) -> oneshot::Receiver<Succeeded> {
        let (running, over) = oneshot::channel();
        if let Err(error) = self.calls.try_send((call, running)) {
            warn!("a hook is not run: {error}; {QUEUE} are waiting already, since one of them does not end");
        }
        over
    }

    /// Waits until all have run, at most `patience` long.
    pub async fn finish(self, patience: Duration) {
        drop(self.calls);
        if tokio::time::timeout(patience, self.runner).await.is_err() {
            warn!("hooks have not ended in time and are killed");
        }
    }
}

async fn run(call: Call, runs: &watch::Sender<Option<u32>>) -> Option<Succeeded> {
    let (program, arguments) = call.command.split_first()?;
    let mut command = Command::new(program);
    let (semaphore, event) = (call.says("SLOTKEEPER_SEMAPHORE"), call.says("SLOTKEEPER_EVENT"));
    command.args(arguments).envs(call.environment.iter().cloned()).stdin(Stdio::null()).kill_on_drop(true);
    let ended = match command.spawn() {
        Ok(mut child) => {
            runs.send_replace(child.id());
            tokio::time::timeout(PATIENCE, child.wait()).await
        }
        Err(error) => {
            warn!(hook = program, semaphore, event, "the hook cannot be started: {error}");
            return None;
        }
    };
    match ended {
        Ok(Ok(status)) if status.success() => {
            info!(hook = program, semaphore, event, "hook done");
            return Some(Succeeded);
        }
        Ok(Ok(status)) => warn!(hook = program, semaphore, event, "the hook failed: {status}"),
        Ok(Err(error)) => warn!(hook = program, semaphore, event, "the hook's end was not seen: {error}"),
        Err(_late) => {
            let after = PATIENCE.as_secs();
            warn!(hook = program, semaphore, event, "the hook was killed after {after} s");
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_one_that_ends_with_0_has_succeeded() {
        let hooks = Hooks::start();
        let call = |command: &[&str]| {
            let command = command.iter().map(|word| (*word).to_owned()).collect();
            hooks.call(Call { command, environment: vec![] })
        };
        let called = [call(&["/bin/true"]), call(&["/bin/false"]), call(&["/nonexistent/hook"]), call(&[])];
        let ended = futures_util::future::join_all(called).await;
        assert_eq!(ended.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, false, false]);
    }

    #[tokio::test]
    async fn hooks_run_in_order_with_their_environment_and_a_failing_one_stops_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let line = |number: u32| Call {
            command: ["/bin/sh", "-c", "echo $NUMBER $SLOT >> $FILE; exit 3"].map(String::from).to_vec(),
            environment: vec![
                ("NUMBER", number.to_string()),
                ("SLOT", "a b;c".into()),
                ("FILE", path.display().to_string()),
            ],
        };
        let hooks = Hooks::start();
        let first = hooks.call(line(1));
        drop(hooks.call(Call { command: vec!["/nonexistent/hook".into()], environment: vec![] }));
        drop(hooks.call(line(2)));
        first.await.unwrap_err();
        assert!(std::fs::read_to_string(&path).unwrap().starts_with("1 a b;c\n"));
        hooks.finish(Duration::from_secs(60)).await;
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "1 a b;c\n2 a b;c\n");
    }
}
