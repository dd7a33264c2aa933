//! The possible next steps.

use super::{Action, State};
use crate::model::agent::{Agent, Life};
use crate::model::game::Game;
use slotkeeper_semaphore::Command;

impl State {
    pub(in crate::model) fn actions(&self, game: &Game) -> Vec<Action> {
        let mut actions = Vec::new();
        for (place, agent) in self.agents.iter().enumerate().filter(|(_, agent)| agent.is_alive()) {
            if !self.may_begin(place) {
                continue;
            }
            for (about, message) in &agent.messages {
                match (&message.request, &message.answer) {
                    (_, Some(_)) => actions.push(Action::Answer(place, about.clone())),
                    (Command::Watch { key, after, .. }, None)
                        if *after != 0 && self.consul.index_of(key) <= *after => {}
                    (_, None) => actions.push(Action::Serve(place, about.clone())),
                }
            }
            if agent.is_due(self.now) {
                actions.push(Action::Fire(place));
            }
        }
        for stray in 0..self.strays.len() {
            actions.extend([Action::Arrive(stray), Action::Vanish(stray)]);
        }
        let idle = actions.is_empty();
        for (place, agent) in self.agents.iter().enumerate() {
            self.add_turns(place, agent, game, &mut actions);
        }
        let awaited = self.agents.iter().any(|agent| agent.deadline().is_some());
        if idle && awaited && (self.lulls > 0 || actions.is_empty()) {
            actions.push(Action::Wait);
        }
        if actions.is_empty() && !self.visited && !self.has_no_holders() && !self.is_calm(game) {
            actions.push(Action::Visit);
        }
        actions
    }

    /// Adds the steps of an agent other than those of its messages.
    fn add_turns(&self, place: usize, agent: &Agent, game: &Game, actions: &mut Vec<Action>) {
        match &agent.life {
            Life::Crashed { session, file } => {
                if session.as_ref().is_some_and(|session| self.consul.has_session(session)) {
                    actions.push(Action::Expire(place));
                }
                if game.returns && file.is_some() {
                    actions.push(Action::Return(place));
                }
            }
            // An agent that joins by its first request may crash or lose the answer then.
            Life::New if !self.may_begin(place) || !agent.begins_by_a_write() => {}
            Life::Running | Life::Draining if agent.has_ended() => {}
            Life::New | Life::Running | Life::Draining => {
                if agent.life == Life::Running && (agent.is_ready() || self.quits > 0) {
                    actions.push(Action::Leave(place));
                }
                if self.crashes > 0 {
                    actions.push(Action::Crash(place));
                }
                if self.losses > 0 {
                    actions.extend(agent.messages.keys().map(|about| Action::Lose(place, about.clone())));
                }
            }
        }
    }

    /// Agents of the same kind differ only in their names, so they begin in order.
    fn may_begin(&self, place: usize) -> bool {
        let agent = &self.agents[place];
        let before = &self.agents[..place];
        agent.life != Life::New
            || before.iter().all(|other| other.life != Life::New || other.player != agent.player)
    }
}
