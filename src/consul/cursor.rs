//! The index of a blocking read, by Consul's documented rules.

/// What an answer's index says about the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The first answer, or the first one after a reset.
    First,
    /// Something may have changed. Consul promises no more than that.
    Changed,
    /// The wait ended with nothing new.
    Same,
    /// The index went back: tombstones were reaped, or a snapshot was restored. What was read is valid; the next read
    /// does not block.
    Reset,
}

/// The index to block on, kept over the reads of one key or prefix.
///
/// The rules are those of Consul's documentation of blocking queries: an index that went back starts again from 0,
/// and one below 1 counts as 1, since blocking on 0 would not block and the loop would spin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    index: u64,
}

impl Cursor {
    /// A cursor whose first read does not block.
    pub const fn new() -> Self {
        Self { index: 0 }
    }

    /// The index for the next [`Blocking`](super::Blocking); 0 does not block.
    pub const fn index(self) -> u64 {
        self.index
    }

    /// Takes note of an answer's index.
    pub fn seen(&mut self, index: u64) -> Seen {
        let index = index.max(1);
        let before = std::mem::replace(&mut self.index, index);
        if before == 0 {
            Seen::First
        } else if index < before {
            self.index = 0;
            Seen::Reset
        } else if index == before {
            Seen::Same
        } else {
            Seen::Changed
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_the_index() {
        let mut cursor = Cursor::new();
        assert_eq!(cursor.index(), 0);
        assert_eq!((cursor.seen(7), cursor.index()), (Seen::First, 7));
        assert_eq!((cursor.seen(7), cursor.index()), (Seen::Same, 7));
        assert_eq!((cursor.seen(9), cursor.index()), (Seen::Changed, 9));
    }

    #[test]
    fn an_index_that_goes_back_starts_again() {
        let mut cursor = Cursor::new();
        cursor.seen(9);
        assert_eq!((cursor.seen(8), cursor.index()), (Seen::Reset, 0));
        assert_eq!((cursor.seen(8), cursor.index()), (Seen::First, 8));
    }

    #[test]
    fn zero_never_becomes_a_loop_that_does_not_block() {
        let mut cursor = Cursor::new();
        assert_eq!((cursor.seen(0), cursor.index()), (Seen::First, 1));
        assert_eq!((cursor.seen(0), cursor.index()), (Seen::Same, 1));
    }
}
