//! A proxy whose connections can go dead without a word, as when a firewall forgets them.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The proxy; it ends with its runtime.
#[derive(Debug)]
pub struct Freezer {
    address: SocketAddr,
    freezes: watch::Sender<u32>,
    blocks: Arc<AtomicBool>,
}

impl Freezer {
    /// Starts one before `server`.
    pub async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (freezes, _) = watch::channel(0);
        let blocks = Arc::new(AtomicBool::new(false));
        let (begin, blocked) = (freezes.clone(), Arc::clone(&blocks));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if blocked.load(Ordering::Relaxed) {
                    tokio::spawn(hold(client));
                } else {
                    tokio::spawn(pass(client, server, begin.subscribe()));
                }
            }
        });
        Self { address, freezes, blocks }
    }

    /// Starts one on a thread of its own, for a test that does not wait asynchronously.
    pub fn start_apart(server: SocketAddr) -> Self {
        let (started, start) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                started.send(Self::start(server).await).unwrap();
                std::future::pending::<()>().await;
            });
        });
        start.recv().unwrap()
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Lets nothing through any more, on present and on new connections, as a firewall that drops everything does; or lets
    /// new ones through again.
    pub fn block(&self, blocks: bool) {
        self.blocks.store(blocks, Ordering::Relaxed);
        if blocks {
            self.freeze();
        }
    }

    /// Lets all present connections stand open and carry nothing any more. New ones are as good as ever.
    pub fn freeze(&self) {
        self.freezes.send_modify(|freezes| *freezes += 1);
    }
}

/// Keeps a connection open and answers nothing.
async fn hold(_client: TcpStream) {
    std::future::pending::<()>().await;
}

async fn pass(mut client: TcpStream, server: SocketAddr, mut frozen: watch::Receiver<u32>) {
    let Ok(mut server) = TcpStream::connect(server).await else { return };
    tokio::select! {
        _ = copy_bidirectional(&mut client, &mut server) => {}
        Ok(()) = frozen.changed() => std::future::pending::<()>().await,
    }
}
