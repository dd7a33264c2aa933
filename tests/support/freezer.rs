//! A proxy whose connections can go dead without a word, as when a firewall forgets them.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The proxy; it ends with its runtime.
#[derive(Debug)]
pub struct Freezer {
    address: SocketAddr,
    freezes: watch::Sender<u32>,
}

impl Freezer {
    /// Starts one before `server`.
    pub async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (freezes, _) = watch::channel(0);
        let begin = freezes.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, server, begin.subscribe()));
            }
        });
        Self { address, freezes }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Lets all present connections stand open and carry nothing any more. New ones are as good as ever.
    pub fn freeze(&self) {
        self.freezes.send_modify(|freezes| *freezes += 1);
    }
}

async fn pass(mut client: TcpStream, server: SocketAddr, mut frozen: watch::Receiver<u32>) {
    let Ok(mut server) = TcpStream::connect(server).await else { return };
    tokio::select! {
        _ = copy_bidirectional(&mut client, &mut server) => {}
        Ok(()) = frozen.changed() => std::future::pending::<()>().await,
    }
}
