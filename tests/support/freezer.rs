//! A proxy whose connections can be hurt: go dead without a word, as when a firewall forgets them; be reset; be slow.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// After this time TCP gives a connection up whose packets get no answer: `crates/consul/src/endpoint.rs`. The kernel answers those to
/// the proxy.
pub const SILENCE: Duration = Duration::from_secs(30);

/// The proxy; it ends with its runtime.
#[derive(Debug)]
pub struct Freezer {
    address: SocketAddr,
    weather: watch::Sender<Weather>,
}

/// What is done to connections.
#[derive(Clone, Copy, Debug, Default)]
struct Weather {
    freezes: u32,
    resets: u32,
    blocks: bool,
    delay: Duration,
}

impl Freezer {
    /// Starts one before `server`.
    pub async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (weather, now) = watch::channel(Weather::default());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if now.borrow().blocks {
                    tokio::spawn(hold(client));
                } else {
                    tokio::spawn(pass(client, server, now.clone()));
                }
            }
        });
        Self { address, weather }
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
        self.weather.send_modify(|weather| {
            weather.blocks = blocks;
            weather.freezes += u32::from(blocks);
        });
    }

    /// Lets all present connections stand open and carry nothing any more, until they are reset after [`SILENCE`]. New ones are as good as ever.
    pub fn freeze(&self) {
        self.weather.send_modify(|weather| weather.freezes += 1);
    }

    /// Resets all present connections. New ones are as good as ever.
    pub fn reset(&self) {
        self.weather.send_modify(|weather| weather.resets += 1);
    }

    /// Has each piece of what the server says wait for so long.
    pub fn delay(&self, delay: Duration) {
        self.weather.send_modify(|weather| weather.delay = delay);
    }
}

/// Keeps a connection open and answers nothing.
async fn hold(_client: TcpStream) {
    std::future::pending::<()>().await;
}

async fn pass(mut client: TcpStream, server: SocketAddr, mut weather: watch::Receiver<Weather>) {
    let begun = *weather.borrow();
    let slow = weather.clone();
    let Ok(mut server) = TcpStream::connect(server).await else { return };
    let passed = {
        let ((from_client, mut to_client), (from_server, mut to_server)) = (client.split(), server.split());
        let there = async {
            let mut from_client = from_client;
            let _ = copy(&mut from_client, &mut to_server).await;
            let _ = to_server.shutdown().await;
        };
        let back = answer(from_server, &mut to_client, slow);
        tokio::select! {
            _ = async { tokio::join!(there, back) } => None,
            hurt = weather.wait_for(|now| now.freezes != begun.freezes || now.resets != begun.resets) => {
                hurt.ok().map(|now| *now)
            }
        }
    };
    if let Some(now) = passed {
        if now.freezes != begun.freezes {
            tokio::time::sleep(SILENCE).await;
        }
        let _ = (client.set_zero_linger(), server.set_zero_linger());
    }
}

async fn answer(mut server: ReadHalf<'_>, client: &mut WriteHalf<'_>, weather: watch::Receiver<Weather>) {
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let read = server.read(&mut bytes).await.unwrap_or(0);
        let delay = weather.borrow().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if read == 0 || client.write_all(&bytes[..read]).await.is_err() {
            let _ = client.shutdown().await;
            return;
        }
    }
}
