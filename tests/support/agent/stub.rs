//! What listens where an agent should.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

/// Serves until the test ends.
pub(crate) struct Stub {
    address: String,
}

impl Stub {
    /// One that answers the nth request, from 0 on, for that path with that status and body; `None`: it hangs up.
    pub(crate) fn start(
        mut answer: impl FnMut(usize, &str) -> Option<(u16, String)> + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for (nth, stream) in listener.incoming().map_while(Result::ok).enumerate() {
                // One that has gone needs no answer.
                let _ = serve(stream, |path| answer(nth, path));
            }
        });
        Self { address }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }
}

fn serve(mut stream: TcpStream, answer: impl FnOnce(&str) -> Option<(u16, String)>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    if let Some((status, body)) = answer(request.split(' ').nth(1).unwrap_or_default()) {
        let length = body.len();
        write!(stream, "HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")?;
    }
    Ok(())
}
