//! The text of states and actions in a path that breaks a rule.

use std::fmt;
use std::sync::Arc;

use super::{Action, Message, State};
use slotkeeper_semaphore::{Command, Commit, Event, Op, Pair, SessionId};

/// The content of Consul, and the phases of every agent.
impl fmt::Debug for State {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sessions = |ids: &[SessionId]| ids.iter().map(short).collect::<Vec<_>>().join(",");
        write!(out, "{:?}, index {}", self.now.since_boot(), self.consul.store.index())?;
        for view in &self.views {
            write!(out, "\n    {}:", view.prefix())?;
            if let Some(record) = view.record() {
                let (holders, next) = (sessions(&record.holders), sessions(record.next()));
                write!(out, " .lock at {}: [{holders}], next [{next}]", view.lock_index())?;
            }
            for one in &view.contenders {
                let entry = one.entry.as_ref().map(|entry| (entry.state, entry.indexes.clone()));
                let (session, created, index) = (short(&one.session), one.create_index, one.modify_index);
                write!(out, "; {session} of {created} at {index}: {entry:?}")?;
            }
        }
        for (place, agent) in self.agents.iter().enumerate() {
            let session = agent.keeper.session().map(short).unwrap_or_default();
            let phases: Vec<_> = agent.keeper.machines().map(|machine| machine.phase()).collect();
            write!(out, "\n    agent {place} ({session}): {:?}, {phases:?}", agent.life)?;
        }
        self.judge.broken.iter().try_for_each(|broken| write!(out, "\n    {broken}"))
    }
}

impl State {
    /// The effect of an action in this state.
    pub(in crate::model) fn describe(&self, action: &Action) -> String {
        let what = if let Action::Serve(place, about)
        | Action::Answer(place, about)
        | Action::Lose(place, about) = action
        {
            self.agents[*place].messages.get(about).map(message)
        } else if let Action::Arrive(place) | Action::Vanish(place) = action {
            self.strays.get(*place).map(command)
        } else {
            None
        };
        format!("{action:?}: {}", what.unwrap_or_default()).replace("00000000-0000-0000-0000-0000000000", "")
    }
}

fn message(message: &Arc<Message>) -> String {
    let request = command(&message.request);
    message.answer.as_ref().map_or(request.clone(), |answer| format!("{request}: {}", event(answer)))
}

fn command(command: &Command) -> String {
    let Command::Commit { parts } = command else { return format!("{command:?}") };
    parts.iter().flat_map(|part| &part.ops).map(op).collect::<Vec<_>>().join("; ")
}

fn op(op: &Op) -> String {
    if let Op::Lock { key, value, .. } = op {
        format!("lock {key} {}", String::from_utf8_lossy(value))
    } else if let Op::Cas { key, value, index, .. } = op {
        format!("cas {key} at {index} {}", String::from_utf8_lossy(value))
    } else {
        format!("{op:?}")
    }
}

fn event(event: &Event) -> String {
    if let Event::Listed(_, Ok(listing)) = event {
        read(&listing.pairs, listing.index)
    } else if let Event::LockRead(_, Ok(reading)) | Event::Watched(_, _, Ok(reading)) = event {
        read(reading.pair.as_slice(), reading.index)
    } else if let Event::KeysRead(_, Ok(readings)) = event {
        readings
            .iter()
            .map(|reading| read(reading.pair.as_slice(), reading.index))
            .collect::<Vec<_>>()
            .join("; ")
    } else if let Event::Committed(_, Ok(Commit::Done { index, .. })) = event {
        format!("done at {index}")
    } else {
        format!("{event:?}")
    }
}

fn read(pairs: &[Pair], index: u64) -> String {
    let pairs: Vec<_> = pairs.iter().map(|pair| format!("{} at {}", pair.key, pair.modify_index)).collect();
    format!("at {index}: {}", pairs.join(", "))
}

fn short(session: &SessionId) -> String {
    session.as_str().trim_start_matches(['0', '-']).to_owned()
}
