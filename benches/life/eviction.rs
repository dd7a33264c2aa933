//! How long one that holds needs to learn that an operator wants it out: from the write of the mark to the SIGTERM of its
//! command; beside the least that it can cost, a write that wakes a blocking read.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::http::{get, put};
use crate::{SLOTKEEPER, until};

const TRIALS: usize = 20;

/// Medians: of learning, and of the floor.
pub(crate) async fn measure(consul: SocketAddr) -> (Duration, Duration) {
    let (mut learnt, mut floor) = (Vec::new(), Vec::new());
    for n in 0..TRIALS {
        let folder = tempfile::tempdir().unwrap();
        learnt.push(learn(consul, &format!("bench/evict/{n}"), folder.path()).await);
        floor.push(wake(consul).await);
    }
    learnt.sort();
    floor.sort();
    (learnt[TRIALS / 2], floor[TRIALS / 2])
}

async fn learn(consul: SocketAddr, prefix: &str, folder: &Path) -> Duration {
    let (runs, told) = (folder.join("runs"), folder.join("told"));
    let script =
        format!("trap ': > {}; exit 0' TERM; : > {}; sleep 600 & wait", told.display(), runs.display());
    let mut child = Command::new(SLOTKEEPER)
        .args(["run", prefix, "-n", "1", "--http-addr", &consul.to_string(), "--", "sh", "-c", &script])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until(|| runs.exists()).await;
    // By then it watches its own entry, which it does not do in its first second.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let listed = get(consul, &format!("/v1/kv/{prefix}?recurse=true")).await.json();
    let entry = listed.as_array().unwrap().iter().find(|pair| pair["Session"].is_string()).unwrap();
    let (key, index) = (entry["Key"].as_str().unwrap(), &entry["ModifyIndex"]);
    let value = get(consul, &format!("/v1/kv/{key}?raw=true")).await;
    let mut value = value.json();
    value["evicted_by"] = "bench".into();
    let asked = Instant::now();
    let written = put(consul, &format!("/v1/kv/{key}?cas={index}"), value.to_string()).await;
    assert_eq!(written.text().trim_end(), "true");
    until(|| told.exists()).await;
    let took = asked.elapsed();
    until(|| child.try_wait().unwrap().is_some()).await;
    took
}

async fn wake(consul: SocketAddr) -> Duration {
    const KEY: &str = "/v1/kv/bench/wake";
    put(consul, KEY, "before").await;
    let index = get(consul, KEY).await.index();
    let woken = async {
        get(consul, &format!("{KEY}?index={index}&wait=60s")).await;
        Instant::now()
    };
    let written = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let written = Instant::now();
        put(consul, KEY, "after").await;
        written
    };
    let (woken, written) = tokio::join!(woken, written);
    woken - written
}
