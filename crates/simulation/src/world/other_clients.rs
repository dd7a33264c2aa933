//! The steps of foreign clients.

use super::*;

impl World {
    pub(super) fn foreign(&mut self, place: usize) {
        let after = self.foreigners[place].step(&mut self.consul, &mut self.rng, !self.open, self.now);
        if self.foreigners[place].done {
            if !self.open {
                return;
            }
            self.foreigners[place] = self.foreigners[place].next(&mut self.rng);
        }
        self.foreign_later(place, after);
    }

    pub(super) fn foreign_later(&mut self, place: usize, after: Duration) {
        // Only the latest timer is valid.
        self.foreigners[place].timer = self.number + 1;
        self.later(after, Coming::Foreign { place, timer: self.number + 1 });
    }

    /// Wakes the foreign clients that wait for a change.
    pub(super) fn wake_others(&mut self) {
        for place in 0..self.foreigners.len() {
            if self.foreigners[place].hears() {
                let after = Duration::from_millis(self.rng.u64(1..40));
                self.foreign_later(place, after);
            }
        }
    }
}
