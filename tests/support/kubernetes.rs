//! As much of a Kubernetes API as Consul asks at a login: is this token good, and whose is it?

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use serde_json::{Value, json};

/// The account that all good tokens are of.
pub const NAMESPACE: &str = "batch";
pub const ACCOUNT: &str = "import";

/// A server on a thread of its own; ends with the value.
pub struct Kubernetes {
    addr: SocketAddr,
    good: Arc<Mutex<HashSet<String>>>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Kubernetes {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let (good, over) = (Arc::<Mutex<HashSet<String>>>::default(), Arc::new(AtomicBool::new(false)));
        let thread = std::thread::spawn({
            let (good, over) = (Arc::clone(&good), Arc::clone(&over));
            move || {
                for stream in listener.incoming() {
                    if over.load(Ordering::SeqCst) {
                        return;
                    }
                    // A connection that breaks is its client's matter.
                    let _ = stream.and_then(|stream| serve(stream, &good));
                }
            }
        });
        Self { addr, good, over, thread: Some(thread) }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// From now on this token is good.
    pub fn know(&self, token: &str) {
        self.good.lock().unwrap().insert(token.to_owned());
    }
}

impl Drop for Kubernetes {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.addr);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn serve(stream: TcpStream, good: &Mutex<HashSet<String>>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    reader.read_line(&mut line)?;
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? <= 2 {
            break;
        }
        if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
    let path = line.split(' ').nth(1).unwrap_or_default();
    let answer = if path == "/apis/authentication.k8s.io/v1/tokenreviews" {
        let token = asked["spec"]["token"].as_str().unwrap_or_default();
        let status = if good.lock().unwrap().contains(token) {
            json!({"authenticated": true, "user": {
                "username": format!("system:serviceaccount:{NAMESPACE}:{ACCOUNT}"), "uid": "u-1",
                "groups": ["system:serviceaccounts", "system:authenticated"],
            }})
        } else {
            json!({"authenticated": false, "error": "invalid bearer token"})
        };
        json!({"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "metadata": {}, "spec": {}, "status": status})
    } else if path == format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}") {
        json!({"kind": "ServiceAccount", "apiVersion": "v1",
            "metadata": {"name": ACCOUNT, "namespace": NAMESPACE, "uid": "u-1"}})
    } else {
        Value::Null
    };
    let (status, text) = if answer.is_null() { (404, "{}".to_owned()) } else { (201, answer.to_string()) };
    let status = if path.starts_with("/api/v1/") && status == 201 { 200 } else { status };
    let length = text.len();
    write!(
        reader.get_mut(),
        "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{text}"
    )
}
