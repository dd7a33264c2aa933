//! A plain HTTP client over one connection a request, which sends exactly what the test says.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

/// No test waits for one answer longer than this.
const PATIENCE: Duration = Duration::from_secs(90);

/// How a request's body is sent.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    /// None, and no length told.
    None,
    /// With its length.
    Sized(&'a [u8]),
    /// In chunks, its length untold.
    Chunked(&'a [u8]),
}

/// A server's answer.
#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    /// In the order in which they came, names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("no JSON in {} {:?}: {error}", self.status, self.text()))
    }

    /// The `X-Consul-Index`.
    pub fn index(&self) -> u64 {
        let index = self.header("x-consul-index");
        index.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no index in {self:?}"))
    }
}

/// `GET`; `path` is sent as it is.
pub async fn get(addr: SocketAddr, path: &str) -> Response {
    request(addr, "GET", path, &[], Body::None).await
}

/// `PUT` with a body of told length.
pub async fn put(addr: SocketAddr, path: &str, body: impl AsRef<[u8]>) -> Response {
    request(addr, "PUT", path, &[], Body::Sized(body.as_ref())).await
}

/// Any request; panics where no whole answer comes.
pub async fn request(
    addr: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Body<'_>,
) -> Response {
    try_request(addr, method, path, headers, body)
        .await
        .unwrap_or_else(|error| panic!("{method} http://{addr}{path}: {error}"))
}

/// Any request.
///
/// # Errors
///
/// No connection, or no whole answer in time.
pub async fn try_request(
    addr: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Body<'_>,
) -> std::io::Result<Response> {
    let stream = tokio::time::timeout(PATIENCE, TcpStream::connect(addr)).await??;
    request_over(stream, &addr.to_string(), method, path, headers, body).await
}

/// Any request over a connection that is there, such as one of a unix socket.
///
/// # Errors
///
/// No whole answer in time.
pub async fn request_over(
    stream: impl AsyncRead + AsyncWrite,
    host: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Body<'_>,
) -> std::io::Result<Response> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    let mut bytes = match body {
        Body::None => format!("{head}\r\n").into_bytes(),
        Body::Sized(body) => {
            [format!("{head}Content-Length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
        }
        Body::Chunked(body) => {
            let head = format!("{head}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n", body.len());
            [head.as_bytes(), body].concat()
        }
    };
    if let Body::Chunked(_) = body {
        bytes.extend_from_slice(b"\r\n0\r\n\r\n");
    }
    let answer = tokio::time::timeout(PATIENCE, exchange(stream, &bytes)).await??;
    parse(&answer).ok_or_else(|| {
        std::io::Error::other(format!("half an answer: {:?}", String::from_utf8_lossy(&answer)))
    })
}

async fn exchange(stream: impl AsyncRead + AsyncWrite, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let (mut read, mut write) = tokio::io::split(Box::pin(stream));
    let mut answer = Vec::new();
    // A server that refuses a large body answers and closes before it has read it: both directions at once, and how
    // the sending ends does not matter.
    let send = async {
        let _ = write.write_all(bytes).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = send => {}
        read = read.read_to_end(&mut answer) => {
            // A reset after a whole answer is how such a server closes.
            if let Err(error) = read && parse(&answer).is_none() {
                return Err(error);
            }
        }
    }
    Ok(answer)
}

/// The answer, if it is whole. Its body is what was meant, however it was sent.
pub fn parse(answer: &[u8]) -> Option<Response> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let header =
        |line: &str| line.split_once(':').map(|(k, v)| (k.to_ascii_lowercase(), v.trim().to_owned()));
    let headers: Vec<_> = lines.filter_map(header).collect();
    let mut response = Response { status, headers, body: Vec::new() };
    let rest = &answer[end + 4..];
    response.body = if response.header("transfer-encoding") == Some("chunked") {
        unchunk(rest)?
    } else {
        let length = response.header("content-length").and_then(|text| text.parse().ok());
        rest.get(..length.unwrap_or(rest.len()))?.to_vec()
    };
    Some(response)
}

fn unchunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = rest.windows(2).position(|window| window == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).ok()?, 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(line + 2..line + 2 + size)?);
        rest = rest.get(line + 2 + size + 2..)?;
    }
}
