//! The steps of foreign clients and of clients of the previous version.

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

    pub(super) fn earlier_client(&mut self, place: usize) {
        let after = self.earlier_clients[place].step(&mut self.consul, &mut self.rng, self.now);
        if self.earlier_clients[place].done {
            if !self.open {
                return;
            }
            self.earlier_clients[place] = self.new_earlier_client();
            self.served += 1;
        }
        self.earlier_client_later(place, after);
    }

    pub(super) fn new_earlier_client(&mut self) -> EarlierClient {
        let deaf = self.game.watches == Watches::Never;
        EarlierClient::new(self.game.limit, deaf, &mut self.rng, self.now)
    }

    pub(super) fn earlier_client_later(&mut self, place: usize, after: Duration) {
        self.earlier_clients[place].timer = self.number + 1;
        self.later(after, Coming::EarlierClient { place, timer: self.number + 1 });
    }

    /// Wakes the other clients that wait for a change.
    pub(super) fn wake_others(&mut self) {
        for place in 0..self.foreigners.len() {
            if self.foreigners[place].hears() {
                let after = Duration::from_millis(self.rng.u64(1..40));
                self.foreign_later(place, after);
            }
        }
        for place in 0..self.earlier_clients.len() {
            if self.earlier_clients[place].hears(&self.consul) {
                let after = Duration::from_micros(self.rng.u64(200..5000));
                self.earlier_client_later(place, after);
            }
        }
    }
}
