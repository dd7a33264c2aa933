use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(60);
const NEIGHBOUR: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const PROBE: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// A server with three places, whose clients may be silent for long.
async fn three(when_full: WhenFull) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await.unwrap();
    let address = (Ipv4Addr::LOCALHOST, listener.local_addr().unwrap().port()).into();
    let long = Duration::from_secs(3600);
    let limits = Limits { connections: 3, when_full, header_timeout: long, life: long, ..Limits::default() };
    let router = Router::new().route("/", get(async || "ok"));
    tokio::spawn(serve(listener, router, limits, std::future::pending()));
    address
}

/// A connection from that address that sends nothing yet.
async fn come(server: SocketAddr, from: Ipv4Addr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    socket.connect(server).await.unwrap()
}

/// Whether the server answers. It does not answer a connection that waits in the backlog.
async fn is_answered(client: &mut TcpStream) -> bool {
    if client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.is_err() {
        return false;
    }
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nok") {
        if !matches!(client.read_buf(&mut answer).await, Ok(1..)) {
            return false;
        }
    }
    true
}

async fn in_time<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, what).await.expect("in time")
}

/// Where IPv6 is off in a network of its own, `tests/chart` listens at `[::]`; a kernel without it can only be played.
#[test]
fn all_addresses_are_those_of_the_families_that_there_are() {
    let without_v6 = |address: SocketAddr| match address {
        SocketAddr::V4(_) => Ok(address),
        SocketAddr::V6(_) => Err(Errno::AFNOSUPPORT.into()),
    };
    let opened = |text: &str| in_a_family_that_is_there(text.parse().unwrap(), without_v6);
    assert_eq!(opened("[::]:9377").unwrap(), "0.0.0.0:9377".parse().unwrap());
    // A specific address is not replaced by the unspecified one.
    assert!(opened("[::1]:9377").is_err());
    let taken = |_| -> io::Result<()> { Err(Errno::ADDRINUSE.into()) };
    let error = in_a_family_that_is_there("[::]:9377".parse().unwrap(), taken).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
}

#[tokio::test]
async fn a_client_with_all_connections_keeps_no_other_client_out() {
    let server = three(WhenFull::Displace).await;
    let mut probe = come(server, PROBE).await;
    assert!(in_time(is_answered(&mut probe)).await);
    let mut crowd = Vec::new();
    for _ in 0..12 {
        crowd.push(come(server, NEIGHBOUR).await);
        assert!(in_time(is_answered(crowd.last_mut().unwrap())).await);
        assert!(in_time(is_answered(&mut probe)).await, "it came first, and loses nothing");
    }
    let mut newcomer = come(server, PROBE).await;
    assert!(in_time(is_answered(&mut newcomer)).await);
    let mut left = 0;
    for client in &mut crowd {
        left += usize::from(in_time(is_answered(client)).await);
    }
    assert_eq!(left, 1, "of three places two are the prober's");
    assert!(in_time(is_answered(&mut probe)).await);
}

#[tokio::test]
async fn where_they_wait_the_next_is_let_in_when_another_goes() {
    let server = three(WhenFull::Wait).await;
    let mut crowd = Vec::new();
    for _ in 0..3 {
        crowd.push(come(server, NEIGHBOUR).await);
        assert!(in_time(is_answered(crowd.last_mut().unwrap())).await);
    }
    let mut next = come(server, PROBE).await;
    {
        let mut answered = pin!(is_answered(&mut next));
        // Turns enough for it to be let in, were it let in.
        for turn in 0..30 {
            tokio::select! {
                biased;
                _ = &mut answered => panic!("there was no place"),
                stays = is_answered(&mut crowd[turn % 3]) => assert!(stays),
            }
        }
        drop(crowd.pop());
        assert!(in_time(answered).await);
    }
    for client in &mut crowd {
        assert!(in_time(is_answered(client)).await);
    }
}

#[tokio::test]
async fn where_they_wait_a_burst_of_requests_is_answered_and_silent_connections_go() {
    let server = three(WhenFull::Wait).await;
    let burst = (0..60).map(|_| async {
        let mut client = come(server, NEIGHBOUR).await;
        is_answered(&mut client).await
    });
    let answered = in_time(futures_util::future::join_all(burst)).await;
    assert_eq!(answered.iter().filter(|answered| !**answered).count(), 0, "a request was reset");
    let mut silent = Vec::new();
    for _ in 0..9 {
        silent.push(come(server, NEIGHBOUR).await);
    }
    let mut next = come(server, PROBE).await;
    assert!(in_time(is_answered(&mut next)).await);
}
