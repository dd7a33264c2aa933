//! Ports that no other test takes, be it in this process or in another.

use std::fs::{File, OpenOptions};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;

/// Ports in one block.
const SIZE: u16 = 8;
/// Below what the kernel hands out for connections, so that none of those is in the way.
const FIRST: u16 = 16_000;
const BLOCKS: u16 = 1_800;

/// A block of loopback ports, this test's own until it is dropped.
#[derive(Debug)]
pub struct Ports {
    base: u16,
    /// Its lock is the reservation; the kernel gives it up when the process ends, however that happens.
    _reserved: File,
}

impl Ports {
    /// Reserves a block whose ports are all free.
    pub fn reserve() -> Self {
        let folder = std::env::temp_dir().join("slotkeeper-test-ports");
        std::fs::create_dir_all(&folder).unwrap();
        let start = fastrand::u16(..BLOCKS);
        (0..BLOCKS)
            .find_map(|step| Self::take(&folder, (start + step) % BLOCKS))
            .unwrap_or_else(|| panic!("all {BLOCKS} blocks of ports from {FIRST} on are taken"))
    }

    /// The `n`th address of the block.
    pub fn addr(&self, n: u16) -> SocketAddr {
        assert!(n < SIZE, "a block has {SIZE} ports");
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.base + n))
    }

    fn take(folder: &Path, block: u16) -> Option<Self> {
        let base = FIRST + block * SIZE;
        let path = folder.join(base.to_string());
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path).unwrap();
        file.try_lock().ok()?;
        let ports = Self { base, _reserved: file };
        // Gossip uses UDP on the same numbers.
        let free = |n| TcpListener::bind(ports.addr(n)).is_ok() && UdpSocket::bind(ports.addr(n)).is_ok();
        (0..SIZE).all(free).then_some(ports)
    }
}
