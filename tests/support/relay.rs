//! A relay of TCP before a Consul that, as balancers and proxies do, ends long polls for their age.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

/// How the relay ends a long poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It closes the connection.
    Close,
    /// It answers 504 by itself, and closes the connection.
    Answer504,
    /// It lets the poll wait on, and closes the connection in place of a late answer, as Go's HTTP server does by its write
    /// time-out.
    LoseAnswer,
}

/// A relay on a thread of its own, so that what else a test does keeps nothing waiting.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    seen: Arc<Seen>,
}

#[derive(Debug)]
struct Seen {
    consul: SocketAddr,
    longest: Duration,
    end: End,
    waits: Mutex<Vec<Duration>>,
    ended: Mutex<usize>,
}

impl Relay {
    /// Starts one before `consul` in which no long poll takes longer than `longest`.
    pub fn start(consul: SocketAddr, longest: Duration, end: End) -> Self {
        let seen = Seen { consul, longest, end, waits: Mutex::default(), ended: Mutex::default() };
        let seen = Arc::new(seen);
        let (started, start) = std::sync::mpsc::channel();
        let shared = Arc::clone(&seen);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
                started.send(listener.local_addr().unwrap()).unwrap();
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(pass(stream, Arc::clone(&shared)));
                }
            });
        });
        Self { address: start.recv().unwrap(), seen }
    }

    /// Where it listens.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// The waits of all blocking reads so far, in order.
    pub fn waits(&self) -> Vec<Duration> {
        self.seen.waits.lock().unwrap().clone()
    }

    /// How many long polls it has ended.
    pub fn ended(&self) -> usize {
        *self.seen.ended.lock().unwrap()
    }
}

/// Passes on one connection, on which one request is under way at a time.
async fn pass(mut client: TcpStream, seen: Arc<Seen>) {
    let Ok(mut consul) = TcpStream::connect(seen.consul).await else { return };
    let _ = (client.set_nodelay(true), consul.set_nodelay(true));
    let (mut asked, mut answered) = (vec![0; 16 * 1024], vec![0; 16 * 1024]);
    let mut until = None;
    loop {
        let too_long = async {
            match until {
                Some(until) if seen.end != End::LoseAnswer => tokio::time::sleep_until(until).await,
                Some(_) | None => std::future::pending().await,
            }
        };
        tokio::select! {
            read = client.read(&mut asked) => {
                let Ok(read @ 1..) = read else { return };
                if let Some(wait) = wait(&String::from_utf8_lossy(&asked[..read])) {
                    seen.waits.lock().unwrap().push(wait);
                    until = Some(Instant::now() + seen.longest);
                }
                if consul.write_all(&asked[..read]).await.is_err() {
                    return;
                }
            }
            read = consul.read(&mut answered) => {
                let Ok(read @ 1..) = read else { return };
                if until.take().is_some_and(|until| until < Instant::now()) {
                    *seen.ended.lock().unwrap() += 1;
                    return;
                }
                if client.write_all(&answered[..read]).await.is_err() {
                    return;
                }
            }
            () = too_long => {
                *seen.ended.lock().unwrap() += 1;
                if seen.end == End::Answer504 {
                    let answer = b"HTTP/1.1 504 X\r\nContent-Length: 7\r\nConnection: close\r\n\r\ntimeout";
                    let _ = client.write_all(answer).await;
                }
                return;
            }
        }
    }
}

/// The wait that a request asks for.
fn wait(request: &str) -> Option<Duration> {
    let (_, rest) = request.lines().next()?.split_once("wait=")?;
    let digits = rest.split_once("ms")?.0;
    digits.parse().ok().map(Duration::from_millis)
}
