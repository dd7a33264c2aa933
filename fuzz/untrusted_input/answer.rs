//! Answers of a server in the place of Consul.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::{Builder, Runtime};

use super::assert_harmless;
use crate::{bridge, operator};
use slotkeeper_consul::{
    Address, Behavior, Client, Read, Secret, SessionSpec, Settings, TokenSource, Unobserved,
};
use slotkeeper_semaphore::{Op, View};

/// No error contains it, even if the server echoes it.
const TOKEN: &str = "f00dcafe-hunter2";

thread_local! {
    static STAGE: Stage = Stage::new();
}

/// Takes a byte for what is asked, one for what the answer is wrapped in, and the answer: all bytes of the connection (`r`), or
/// the body of a whole answer. There is a result or a harmless error, without the token that was sent.
pub fn answer(data: &[u8]) {
    let [asked, wrapped, rest @ ..] = data else { return };
    let answer = match wrapped {
        b'4' => whole("404 Not Found", rest),
        b'9' => whole("409 Conflict", rest),
        b'3' => whole("403 Forbidden", rest),
        b'5' => whole("500 Internal Server Error", rest),
        b'r' => rest.to_vec(),
        _ => whole("200 OK", rest),
    };
    STAGE.with(|stage| {
        let exchange = async {
            tokio::select! {
                () = serve(&stage.listener, &answer) => unreachable!(),
                result = ask(&stage.client, *asked) => result,
            }
        };
        if let Err(error) = stage.runtime.block_on(exchange) {
            assert!(!error.contains(TOKEN), "{error}");
            assert_harmless(&error);
        }
    });
}

fn whole(status: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\nX-Consul-Index: 7\r\nContent-Length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// A client and its server.
struct Stage {
    client: Client,
    listener: UnixListener,
    runtime: Runtime,
    folder: std::path::PathBuf,
}

impl Stage {
    fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let folder = std::env::temp_dir().join(format!("slotkeeper-answer-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("s");
        let listener = {
            let _inside = runtime.enter();
            UnixListener::bind(&path).unwrap()
        };
        let settings = Settings {
            address: Address::Unix(path).into(),
            token: Some(TokenSource::Value(Secret::new(TOKEN))),
            ..Settings::default()
        };
        let client = Client::new(&settings, Arc::new(Unobserved)).unwrap();
        Self { client, listener, runtime, folder }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Answers every connection's first request, and closes it.
async fn serve(listener: &UnixListener, answer: &[u8]) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        say(stream, answer).await;
    }
}

async fn say(mut stream: UnixStream, answer: &[u8]) {
    let mut head = [0; 4096];
    // The client may have closed the connection.
    if let Ok(1..) = stream.read(&mut head).await {
        let _ = stream.write_all(answer).await;
    }
}

/// One request, and the handling of its answer by the core and the operators' commands.
async fn ask(client: &Client, asked: u8) -> Result<(), String> {
    let said = |error: slotkeeper_consul::Error| error.to_string();
    let failed = |failure: slotkeeper_semaphore::Failure| failure.text;
    let ops = [
        Op::Lock { key: "p/me".into(), value: Vec::new(), flags: 0, session: "me".into() },
        Op::List { prefix: "p/".into() },
    ];
    match asked {
        b'a' => bridge::read(client, "p/.lock", Read::consistent()).await.map(drop).map_err(failed),
        b'b' => {
            let listing = bridge::list(client, "p", Read::consistent()).await.map_err(failed)?;
            drop(View::of_listing("p", listing));
            Ok(())
        }
        b'c' => bridge::commit(client, ops.to_vec()).await.map(drop).map_err(failed),
        b'd' => client.session_create(&spec()).await.map(drop).map_err(said),
        b'e' => client.session_renew("5e55").await.map(drop).map_err(said),
        b'f' => client.session_info("5e55", Read::default()).await.map(drop).map_err(said),
        b'g' => client.session_destroy("5e55").await.map_err(said),
        b'h' => {
            client.login("m", &Secret::new("bearer-hunter2"), &BTreeMap::new()).await.map(drop).map_err(said)
        }
        b'i' => client.logout().await.map_err(said),
        b'j' => client.leader().await.map(drop).map_err(said),
        _ => {
            let scene = operator::Watch::new(client, "p").next().await.map_err(|error| error.to_string())?;
            let _ = scene.inspect().participants();
            Ok(())
        }
    }
}

fn spec() -> SessionSpec {
    SessionSpec {
        name: "s".into(),
        ttl: Duration::from_secs(30),
        behavior: Behavior::Delete,
        lock_delay: Duration::ZERO,
        node: None,
        node_checks: Vec::new(),
        service_checks: Vec::new(),
    }
}
