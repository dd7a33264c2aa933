//! A command that writes down, again and again, that it lives; so that when it lived is known from itself.

use std::path::PathBuf;

/// Writes the time since boot and its fencing token into the file in its first argument, some twenty times a second, until
/// it is killed. SIGTERM does not end it.
pub const STUBBORN: &str = r#"
    trap '' TERM
    while :; do
        read -r now _ < /proc/uptime
        echo "$now ${SLOTKEEPER_FENCING_TOKEN:-0}" >> "$0"
        sleep 0.04
    done"#;

/// The same, but SIGTERM ends it.
pub const MEEK: &str = r#"
    while :; do
        read -r now _ < /proc/uptime
        echo "$now ${SLOTKEEPER_FENCING_TOKEN:-0}" >> "$0"
        sleep 0.04
    done"#;

/// What a command has written down.
#[derive(Clone, Debug)]
pub struct Life {
    file: PathBuf,
}

impl Life {
    pub fn at(file: PathBuf) -> Self {
        Self { file }
    }

    /// Its entries: seconds since boot, and the token. The last line may be half written.
    pub fn entries(&self) -> Vec<(f64, u64)> {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let entry = |line: &str| {
            let (at, token) = line.split_once(' ').unwrap();
            (at.parse().unwrap(), token.parse().unwrap())
        };
        whole.lines().map(entry).collect()
    }

    pub fn has_begun(&self) -> bool {
        !self.entries().is_empty()
    }

    /// How often it has written.
    pub fn beats(&self) -> usize {
        self.entries().len()
    }

    pub fn first(&self) -> f64 {
        self.entries().first().unwrap().0
    }

    pub fn last(&self) -> f64 {
        self.entries().last().unwrap().0
    }

    pub fn token(&self) -> u64 {
        self.entries().first().unwrap().1
    }

    /// Asserts that it had ended when the other one began, and that the other one's token is higher.
    pub fn assert_before(&self, other: &Self) {
        assert!(
            self.last() < other.first(),
            "alive until {}, the next from {} on",
            self.last(),
            other.first()
        );
        assert!(self.token() < other.token(), "tokens {} and {}", self.token(), other.token());
    }
}

/// Seconds since boot, on the clock by which commands write down when they live.
pub fn now() -> f64 {
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
    uptime.split_ascii_whitespace().next().unwrap().parse().unwrap()
}
