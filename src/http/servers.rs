//! The servers of an agent, on a thread of their own: no number of requests delays the loop that renews the lease.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinError, JoinSet};

/// Time for the thread to end; then it is abandoned.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Resolves when a server is to end.
pub type Stop = BoxFuture<'static, ()>;

/// The running servers. They end when this value is dropped.
#[derive(Debug, Default)]
pub struct Servers {
    running: JoinSet<io::Result<()>>,
    /// None while there is nothing to serve.
    thread: Option<Thread>,
}

/// The thread of the servers. When it is dropped, nothing of them remains, not even a socket.
#[derive(Debug)]
struct Thread {
    runtime: Handle,
    /// When dropped, the servers are asked to end.
    stop: Option<watch::Sender<()>>,
    /// When dropped, the thread ends.
    end: Option<oneshot::Sender<Infallible>>,
    /// Closed once the thread has ended.
    ended: mpsc::Receiver<Infallible>,
    thread: Option<JoinHandle<()>>,
}

impl Servers {
    /// Starts the server that `make` returns. `make` runs in the servers' runtime, where it can create sockets.
    ///
    /// # Errors
    ///
    /// Those of `make`, and a thread that cannot start.
    pub fn start<S>(&mut self, make: impl FnOnce(Stop) -> anyhow::Result<S>) -> anyhow::Result<()>
    where
        S: Future<Output = io::Result<()>> + Send + 'static,
    {
        let thread = match &mut self.thread {
            Some(thread) => thread,
            none => none.insert(Thread::start()?),
        };
        let server = {
            let _inside = thread.runtime.enter();
            make(thread.stopped())?
        };
        self.running.spawn_on(server, &thread.runtime);
        Ok(())
    }

    /// The next server that has ended by itself, which is a failure; `None` if there is no server. May be dropped and called
    /// again.
    pub async fn ended(&mut self) -> Option<Result<io::Result<()>, JoinError>> {
        self.running.join_next().await
    }

    /// Ends the servers: open requests complete, and streams deliver their last event, for at most that long.
    pub async fn end(mut self, patience: Duration) {
        if let Some(thread) = &mut self.thread {
            thread.stop = None;
            let all = async { while self.running.join_next().await.is_some() {} };
            let _ = tokio::time::timeout(patience, all).await;
        }
    }
}

impl Thread {
    fn start() -> io::Result<Self> {
        let (end, ended) = oneshot::channel::<Infallible>();
        let (tell, received) = mpsc::channel();
        let (alive, has_ended) = mpsc::channel();
        let thread = thread::Builder::new().name("servers".into()).spawn(move || {
            // Created here, since a runtime must not be dropped inside another one.
            match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => {
                    let _ = tell.send(Ok(runtime.handle().clone()));
                    // An error means that the sender is gone.
                    let _gone = runtime.block_on(ended);
                }
                Err(error) => drop(tell.send(Err(error))),
            }
            drop(alive);
        })?;
        let runtime = received.recv().map_err(io::Error::other)??;
        let (stop, _) = watch::channel(());
        Ok(Self { runtime, stop: Some(stop), end: Some(end), ended: has_ended, thread: Some(thread) })
    }

    fn stopped(&self) -> Stop {
        let stop = self.stop.as_ref().map(watch::Sender::subscribe);
        async move {
            if let Some(mut stop) = stop {
                let _gone = stop.changed().await;
            }
        }
        .boxed()
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        drop(self.end.take());
        // The thread ends at once, unless a file system does not respond while a socket is removed.
        if self.ended.recv_timeout(END_TIMEOUT) == Err(mpsc::RecvTimeoutError::Disconnected) {
            let _ = self.thread.take().map(JoinHandle::join);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// Records that it was dropped.
    struct Left(Arc<AtomicBool>);

    impl Drop for Left {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[tokio::test]
    async fn servers_have_their_own_thread_and_leave_nothing_behind() {
        let (here, mut servers, dropped) =
            (thread::current().id(), Servers::default(), [(); 2].map(|()| Arc::<AtomicBool>::default()));
        let (tell, received) = oneshot::channel();
        let left = Left(Arc::clone(&dropped[0]));
        let one_that_hears = move |stop: Stop| {
            Ok(async move {
                let _ = tell.send(thread::current().id());
                let _left = left;
                stop.await;
                Ok(())
            })
        };
        servers.start(one_that_hears).unwrap();
        let left = Left(Arc::clone(&dropped[1]));
        let one_that_does_not = move |_: Stop| {
            Ok(async move {
                let _left = left;
                std::future::pending().await
            })
        };
        servers.start(one_that_does_not).unwrap();
        assert_ne!(tokio::time::timeout(TIMEOUT, received).await.unwrap().unwrap(), here);
        servers.end(Duration::from_millis(10)).await;
        assert!(dropped.iter().all(|dropped| dropped.load(Ordering::SeqCst)));
    }

    #[tokio::test]
    async fn a_server_that_ends_by_itself_is_reported() {
        let mut servers = Servers::default();
        assert!(servers.ended().await.is_none());
        servers.start(|_| Ok(async { Err(io::ErrorKind::Other.into()) })).unwrap();
        let ended = tokio::time::timeout(TIMEOUT, servers.ended()).await.unwrap();
        assert!(ended.unwrap().unwrap().is_err());
        let refused = servers.start(|_| anyhow::bail!("no") as anyhow::Result<BoxFuture<'_, io::Result<()>>>);
        assert_eq!(refused.unwrap_err().to_string(), "no");
    }
}
