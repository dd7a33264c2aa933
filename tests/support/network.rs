//! The network between the servers of a cluster: relays in user space, from which a server can be cut off.
//!
//! Each server listens on one loopback address and tells the others another, where a relay listens; so all that servers say
//! to each other, gossip and Raft, passes here, and what clients say to them over HTTP does not. That needs neither root nor
//! namespaces, and works wherever the whole of 127.0.0.0/8 is loopback, which is so on Linux. While a server is cut off,
//! connections stand open and what was sent on them is late, not lost, as where packets are dropped for a while;
//! datagrams are lost.
//!
//! Who sends is told by the source address. Raft and forwarded requests come from the address that the server listens on;
//! so do datagrams, which go on from the relay of whoever sent them, so that an answer finds its way. Streams of gossip
//! come from 127.0.0.1, whoever opens them; while anybody is cut off, none of these passes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;

/// Servers in a cluster.
pub const SERVERS: usize = 3;

/// More than any datagram of gossip.
const DATAGRAM: usize = 65_536;

type Cuts = [bool; SERVERS];

/// The relays; they run on a thread of their own, so that elections do not wait for what else a test does.
#[derive(Debug)]
pub struct Network {
    cuts: watch::Sender<Cuts>,
}

impl Network {
    /// Starts relaying: TCP on both ports, and UDP on that of gossip.
    pub fn start(server_port: u16, gossip_port: u16) -> Self {
        let (cuts, cut) = watch::channel(Cuts::default());
        let (started, start) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut datagrams = Vec::new();
                for to in 0..SERVERS {
                    for port in [server_port, gossip_port] {
                        let listener = TcpListener::bind((told(to), port)).await.unwrap();
                        tokio::spawn(relay_streams(listener, to, port, cut.clone()));
                    }
                    datagrams.push(UdpSocket::bind((told(to), gossip_port)).await.unwrap());
                }
                let datagrams: Arc<[_]> = datagrams.into();
                for to in 0..SERVERS {
                    tokio::spawn(relay_datagrams(Arc::clone(&datagrams), to, gossip_port, cut.clone()));
                }
                started.send(()).unwrap();
                // Ends with the network.
                let mut cut = cut;
                while cut.changed().await.is_ok() {}
            });
        });
        start.recv().unwrap();
        Self { cuts }
    }

    /// Cuts a server off from all others, or joins it to them again.
    pub fn cut_off(&self, server: usize, cut: bool) {
        self.cuts.send_modify(|cuts| cuts[server] = cut);
    }
}

/// Where a server listens.
pub fn listens(server: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 1, 0, number(server))
}

/// What it tells the others of where it listens.
pub fn told(server: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 1, 1, number(server))
}

fn number(server: usize) -> u8 {
    u8::try_from(server).unwrap() + 1
}

fn sender(address: IpAddr) -> Option<usize> {
    (0..SERVERS).find(|server| address == listens(*server))
}

fn passes(from: Option<usize>, to: usize, cuts: Cuts) -> bool {
    let sent = from.map_or(!cuts.contains(&true), |from| !cuts[from]);
    sent && !cuts[to]
}

async fn relay_streams(listener: TcpListener, to: usize, port: u16, cuts: watch::Receiver<Cuts>) {
    while let Ok((stream, peer)) = listener.accept().await {
        let mut cuts = cuts.clone();
        tokio::spawn(async move {
            let from = sender(peer.ip());
            let open = cuts.wait_for(|cuts| passes(from, to, *cuts)).await.is_ok();
            if open && let Ok(server) = TcpStream::connect((listens(to), port)).await {
                // Raft's heartbeats are small.
                let _ = (stream.set_nodelay(true), server.set_nodelay(true));
                let ((from_a, to_a), (from_b, to_b)) = (stream.into_split(), server.into_split());
                let there = pump(from_a, to_b, from, to, cuts.clone());
                let back = pump(from_b, to_a, from, to, cuts);
                tokio::join!(there, back);
            }
        });
    }
}

async fn pump(
    mut read: impl AsyncReadExt + Unpin,
    mut write: impl AsyncWriteExt + Unpin,
    from: Option<usize>,
    to: usize,
    mut cuts: watch::Receiver<Cuts>,
) {
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let read = read.read(&mut bytes).await.unwrap_or(0);
        // That a server has closed is not heard across a cut either.
        if cuts.wait_for(|cuts| passes(from, to, *cuts)).await.is_err() {
            return;
        }
        if read == 0 || write.write_all(&bytes[..read]).await.is_err() {
            let _ = write.shutdown().await;
            return;
        }
    }
}

async fn relay_datagrams(sockets: Arc<[UdpSocket]>, to: usize, port: u16, cuts: watch::Receiver<Cuts>) {
    let mut bytes = vec![0; DATAGRAM];
    loop {
        let Ok((size, peer)) = sockets[to].recv_from(&mut bytes).await else { continue };
        let Some(from) = sender(peer.ip()) else { continue };
        if passes(Some(from), to, *cuts.borrow()) {
            // Lost where nobody listens, as datagrams are.
            let _ = sockets[from].send_to(&bytes[..size], SocketAddr::from((listens(to), port))).await;
        }
    }
}
