//! A server with scripted answers, and a minimal client.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use slotkeeper_consul::Address;
use socket2::{SockFilter, SockRef};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What the stub does with a request.
#[derive(Clone)]
pub(crate) enum Act {
    /// Answers and keeps the connection.
    Say(Vec<u8>),
    /// The same once the next request has come, on another connection.
    Late(Vec<u8>),
    /// Sends this and then resets the connection.
    Break(Vec<u8>),
    /// Sends this and then closes the connection.
    Close(Vec<u8>),
    /// The same after this time.
    After(Duration, Box<Act>),
    /// Nothing, for ever.
    Silence,
    /// Sends this, and from then on every packet that comes on the connection is dropped by the kernel: none is answered, nor
    /// is a keep-alive probe.
    Vanish(Vec<u8>),
}

impl Act {
    /// An answer of JSON.
    pub(crate) fn json(status: u16, body: &str) -> Self {
        Self::answer(status, "X-Consul-Index: 7\r\n", body)
    }

    /// Consul's answer to a transaction that removes keys.
    pub(crate) fn committed() -> Self {
        Self::json(200, r#"{"Results":[],"Errors":null}"#)
    }

    /// An answer of JSON once the next request has come.
    pub(crate) fn late(status: u16, body: &str) -> Self {
        Self::Late(answer(status, "X-Consul-Index: 7\r\n", body))
    }

    /// An answer with headers of one's own.
    pub(crate) fn answer(status: u16, headers: &str, body: &str) -> Self {
        Self::Say(answer(status, headers, body))
    }
}

/// The text of an answer.
pub(crate) fn answer(status: u16, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status} X\r\n{headers}Content-Length: {length}\r\n\r\n{body}").into_bytes()
}

/// What to do with a request, by its number from 0 on and its text.
type Choose = dyn Fn(usize, &str) -> Act + Send + Sync;

/// A server that does one act a request.
pub(crate) struct Stub {
    addr: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
    connections: Arc<Connections>,
    task: JoinHandle<()>,
}

/// How many connections there have been, and are.
#[derive(Default)]
struct Connections {
    made: AtomicUsize,
    open: AtomicUsize,
}

impl Stub {
    /// One that does one act after the other, the last one again and again.
    pub(crate) async fn start(acts: Vec<Act>) -> Self {
        Self::choosing(move |nth, _| acts.get(nth).or(acts.last()).unwrap().clone()).await
    }

    /// One that looks at what is asked.
    pub(crate) async fn choosing(choose: impl Fn(usize, &str) -> Act + Send + Sync + 'static) -> Self {
        let choose: Arc<Choose> = Arc::new(choose);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (seen, connections) = (Arc::new(Mutex::new(Vec::new())), Arc::<Connections>::default());
        let task = tokio::spawn({
            let (seen, connections) = (Arc::clone(&seen), Arc::clone(&connections));
            async move {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let (choose, seen, connections) =
                        (Arc::clone(&choose), Arc::clone(&seen), Arc::clone(&connections));
                    connections.made.fetch_add(1, Ordering::SeqCst);
                    connections.open.fetch_add(1, Ordering::SeqCst);
                    tokio::spawn(async move {
                        serve(stream, choose, seen).await;
                        connections.open.fetch_sub(1, Ordering::SeqCst);
                    });
                }
            }
        });
        Self { addr, seen, connections, task }
    }

    /// How many connections there have been.
    pub(crate) fn made(&self) -> usize {
        self.connections.made.load(Ordering::SeqCst)
    }

    /// How many there are, by what this side knows.
    pub(crate) fn open(&self) -> usize {
        self.connections.open.load(Ordering::SeqCst)
    }

    pub(crate) fn addr(&self) -> Address {
        self.addr.to_string().parse().unwrap()
    }

    /// The requests that came, each with its body.
    pub(crate) fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut stream: TcpStream, choose: Arc<Choose>, seen: Arc<Mutex<Vec<String>>>) {
    while let Some(request) = request(&mut stream).await {
        if request.contains("\r\nHost: ") {
            // The library writes names of headers in small letters. The client asks whether the port serves HTTP at all, after a first request without an answer.
            let _ = stream.write_all(&answer(200, "", "")).await;
            return;
        }
        let (nth, act) = {
            let mut seen = seen.lock().unwrap();
            let nth = seen.len();
            let act = choose(nth, &request);
            seen.push(request);
            (nth, act)
        };
        if matches!(act, Act::Late(_)) {
            while seen.lock().unwrap().len() <= nth + 1 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        let act = if let Act::After(time, act) = act {
            tokio::time::sleep(time).await;
            *act
        } else {
            act
        };
        match act {
            Act::Say(bytes) | Act::Late(bytes) => {
                if stream.write_all(&bytes).await.is_err() {
                    return;
                }
            }
            Act::Break(bytes) => {
                stream.write_all(&bytes).await.unwrap();
                stream.flush().await.unwrap();
                stream.set_zero_linger().unwrap();
                return;
            }
            Act::Close(bytes) => {
                stream.write_all(&bytes).await.unwrap();
                stream.shutdown().await.unwrap();
                return;
            }
            Act::Vanish(bytes) => {
                // "Take no byte of any packet", in the kernel's language of filters.
                SockRef::from(&stream).attach_filter(&[SockFilter::new(6, 0, 0, 0)]).unwrap();
                stream.write_all(&bytes).await.unwrap();
                std::future::pending::<()>().await;
            }
            Act::After(..) => unreachable!("one after the other"),
            Act::Silence => std::future::pending().await,
        }
    }
}

async fn request(stream: &mut TcpStream) -> Option<String> {
    let mut text = String::new();
    let mut chunk = [0; 4096];
    loop {
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.to_lowercase().strip_prefix("content-length:")?.trim().parse().ok())
                .unwrap_or(0);
            if body.len() >= length {
                return Some(text);
            }
        }
        match stream.read(&mut chunk).await {
            Ok(read @ 1..) => text.push_str(&String::from_utf8_lossy(&chunk[..read])),
            Ok(0) | Err(_) => return None,
        }
    }
}

/// One request to a real Consul, for what our client has no function for.
pub(crate) async fn http(
    address: Address,
    method: &str,
    path: String,
    token: &str,
    body: &str,
) -> (u16, String) {
    let Address::Http { authority, .. } = address else { panic!("not by TCP: {address}") };
    let mut stream = TcpStream::connect(&authority).await.unwrap();
    let token = if token.is_empty() { String::new() } else { format!("X-Consul-Token: {token}\r\n") };
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: {authority}\r\n{token}Content-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}
