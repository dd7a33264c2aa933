//! A proxy of TCP: it makes the way to Consul longer, cuts its clients off, and counts the writes that Consul refuses.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use flate2::read::GzDecoder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// The proxy, on a thread of its own.
pub(crate) struct Tap {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    server: SocketAddr,
    round_trip: Duration,
    is_cut: AtomicBool,
    refused: AtomicU64,
}

impl Tap {
    /// Starts one before `server`, at that distance.
    pub(crate) fn start(server: SocketAddr, round_trip: Duration) -> Self {
        let shared =
            Shared { server, round_trip, is_cut: AtomicBool::default(), refused: AtomicU64::default() };
        let shared = Arc::new(shared);
        let (started, start) = std::sync::mpsc::channel();
        let passing = Arc::clone(&shared);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
                started.send(listener.local_addr().unwrap()).unwrap();
                while let Ok((client, _)) = listener.accept().await {
                    tokio::spawn(pass(client, Arc::clone(&passing)));
                }
            });
        });
        Self { address: start.recv().unwrap(), shared }
    }

    /// Where it listens.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Passes nothing on any more. Connections stay open, and new ones are accepted.
    pub(crate) fn cut_off(&self) {
        self.shared.is_cut.store(true, Ordering::SeqCst);
    }

    /// How many writes Consul has refused so far: transactions, and check-and-sets and acquisitions of a single key.
    pub(crate) fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::SeqCst)
    }
}

async fn pass(mut client: TcpStream, shared: Arc<Shared>) {
    // On the way that is imitated, a client that connects waits for a round trip before it sends.
    let opened = Instant::now() + shared.round_trip;
    let Ok(mut server) = TcpStream::connect(shared.server).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
    let count = |answer: &[u8]| {
        shared.refused.fetch_add(u64::from(is_refusal(answer)), Ordering::SeqCst);
    };
    tokio::join!(
        carry(from_client, to_server, opened, &shared, |_| ()),
        carry(from_server, to_client, opened, &shared, count)
    );
}

/// Carries one direction. What waits to arrive keeps nothing from being sent behind it.
async fn carry(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    opened: Instant,
    shared: &Shared,
    look: impl Fn(&[u8]),
) {
    let (sent, mut under_way) = mpsc::unbounded_channel();
    let reads = async move {
        loop {
            let mut bytes = vec![0; 16 * 1024];
            let Ok(read @ 1..) = from.read(&mut bytes).await else { return };
            bytes.truncate(read);
            look(&bytes);
            let _ = sent.send((opened.max(Instant::now()) + shared.round_trip / 2, bytes));
        }
    };
    let writes = async {
        while let Some((due, bytes)) = under_way.recv().await {
            sleep_until(due).await;
            if shared.is_cut.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
        let _ = to.shutdown().await;
    };
    tokio::join!(reads, writes);
}

/// Whether the beginning of an answer says that a write was not made. One request is under way on a connection at a time, and such an
/// answer fits one packet.
fn is_refusal(answer: &[u8]) -> bool {
    // For Go's clients, Consul compresses even this.
    const LONGEST: usize = 64;
    if answer.starts_with(b"HTTP/1.1 409") {
        return true;
    }
    let head = answer.windows(4).position(|window| window == b"\r\n\r\n");
    let body = head.map(|end| &answer[end + 4..]).filter(|body| body.len() <= LONGEST);
    let mut unpacked = Vec::new();
    body.is_some_and(|mut body| {
        if GzDecoder::new(body).read_to_end(&mut unpacked).is_ok() {
            body = &unpacked;
        }
        answer.starts_with(b"HTTP/1.1 200") && body.trim_ascii() == b"false"
    })
}
