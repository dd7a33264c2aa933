//! A signal ends whoever watches or asks, wherever it stands.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use rustix::io::ioctl_fionread;
use rustix::process::{Pid, Signal, kill_process};

use crate::consul::Consul;
use crate::inspect::agent;
use crate::operator::Operator;
use crate::process::BINARY;
use crate::stub::Stub;
use crate::support::kv::Put;
use crate::wait_for;

const PREFIX: &str = "service/s";
/// Bytes that a pipe holds unread.
const PIPE: u64 = 64 * 1024;

/// `timeout 60 slotkeeper ... | consumer` is to end although the consumer does not read.
#[test]
fn a_signal_ends_a_command_that_blocks_in_a_write() {
    let consul = Consul::start();
    let operator = Operator::at(&consul.address());
    let session = operator.create_session();
    let large = "x".repeat(300_000);
    operator.put(&format!("{PREFIX}/{session}"), &large, Put::Acquire(&session), 0);
    let body = format!("\"{large}\"");
    let agent = Stub::start(move |_, _| Some((200, body.clone())));
    let address = consul.address();
    for command in [
        &["inspect", PREFIX, "--json", "--http-addr", &address][..],
        &["inspect", PREFIX, "--json", "--watch", "--http-addr", &address],
        &["sessions", PREFIX, "--json", "--http-addr", &address],
        &["status", "--json", "--watch", "--address", agent.address()],
    ] {
        for signal in [Signal::TERM, Signal::INT] {
            let mut child = Command::new(BINARY).args(command).stdout(Stdio::piped()).spawn().unwrap();
            let pipe = child.stdout.take().unwrap();
            wait_for("the pipe to be full", || ioctl_fionread(&pipe).unwrap() >= PIPE);
            kill_process(Pid::from_child(&child), signal).unwrap();
            let mut status = None;
            wait_for("its end", || {
                status = child.try_wait().unwrap();
                status.is_some()
            });
            assert_eq!(status.unwrap().signal(), Some(signal.as_raw()), "{command:?}");
        }
    }
}

/// The kernel keeps what ends others away from the first process of a container.
#[test]
fn as_the_first_process_of_a_container_a_signal_ends_it() {
    let consul = Consul::start();
    let agent = agent(&consul, "batch-7", "limit: 1");
    let address = consul.address();
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        for watch in [
            &["inspect", PREFIX, "--watch", "--http-addr", &address][..],
            &["status", "--watch", "--address", agent.address()],
        ] {
            let mut unshare = Command::new("unshare")
                .args([
                    "--user",
                    "--map-root-user",
                    "--pid",
                    "--fork",
                    "--mount-proc",
                    "--kill-child",
                    BINARY,
                ])
                .args(watch)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut lines = BufReader::new(unshare.stdout.take().unwrap()).lines();
            lines.next().unwrap().unwrap();
            let parent = Pid::from_child(&unshare).as_raw_nonzero();
            let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
            let first = Pid::from_raw(children.trim().parse().unwrap()).unwrap();
            kill_process(first, signal).unwrap();
            let mut status = None;
            wait_for("its end", || {
                status = unshare.try_wait().unwrap();
                status.is_some()
            });
            assert_eq!(status.unwrap().code(), Some(code), "{watch:?}");
        }
    }
}
