//! A pod's own network: loopback, on which the pod's address lies too, and a relay to each address of the machine that the pod reaches.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::process::Command;
use std::thread::JoinHandle;

use nix::sched::{CloneFlags, setns, unshare};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// It goes with the value and the last process in it.
pub(super) struct Network {
    namespace: File,
    /// Dropped, it ends the relays.
    stop: Option<oneshot::Sender<()>>,
    relays: Option<JoinHandle<()>>,
}

impl Network {
    /// A new one, from which `reached` are reached as from the machine itself. Without IPv6 it has what a node has where that is off.
    pub(super) fn new(reached: &[SocketAddr], ipv6: bool) -> Self {
        let make = || {
            // The thread that asks moves into it, and ends there.
            unshare(CloneFlags::CLONE_NEWNET).expect("a network of the pod's own, as root");
            if !ipv6 {
                for one in ["all", "default", "lo"] {
                    let file = format!("/proc/sys/net/ipv6/conf/{one}/disable_ipv6");
                    std::fs::write(file, "1").unwrap();
                }
            }
            let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().expect("ip (iproute2)");
            assert!(up.success(), "ip link set lo up: {up}");
            let bind = |address: &SocketAddr| (std::net::TcpListener::bind(address).unwrap(), *address);
            let namespace = File::open("/proc/thread-self/ns/net").unwrap();
            (namespace, reached.iter().map(bind).collect::<Vec<_>>())
        };
        let (namespace, listeners) = elsewhere(make);
        let (stop, stopped) = oneshot::channel();
        let relays = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
            runtime.block_on(async {
                for (listener, to) in listeners {
                    listener.set_nonblocking(true).unwrap();
                    tokio::spawn(relay(TcpListener::from_std(listener).unwrap(), to));
                }
                let _ = stopped.await;
            });
        });
        Self { namespace, stop: Some(stop), relays: Some(relays) }
    }

    /// Moves this thread into it, and with it all processes that the thread starts from now on.
    pub(super) fn enter(&self) {
        setns(&self.namespace, CloneFlags::CLONE_NEWNET).unwrap();
    }

    /// Does something in it.
    pub(super) fn within<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        elsewhere(|| {
            self.enter();
            what()
        })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(relays) = self.relays.take() {
            let _ = relays.join();
        }
    }
}

/// On a thread that is gone afterwards: where it has moved to concerns nobody else.
fn elsewhere<T: Send>(what: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(what).join().unwrap())
}

/// Takes connections in the pod's network and makes them outside, where this thread is. One that is refused there ends here.
async fn relay(listener: TcpListener, to: SocketAddr) -> io::Result<()> {
    loop {
        let (mut inside, _) = listener.accept().await?;
        tokio::spawn(async move {
            let mut outside = TcpStream::connect(to).await?;
            tokio::io::copy_bidirectional(&mut inside, &mut outside).await
        });
    }
}
