//! slotkeeper's lives as agents in this process.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use slotkeeper::internals::clock;
use slotkeeper::internals::shutdown::{SignalRequest, SignalRequests};
use tokio::sync::oneshot;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::timeout;

use crate::agents::{Agent, holds, standing};
use crate::play::{Life, Manner, Play, Program, Scene};
use crate::turns::Turn;

/// Plays the lives of all clients.
pub(crate) async fn play(scene: &Scene<'_>) -> Result<Play, String> {
    let (point, prefix) = (scene.point, scene.prefix(Program::Slotkeeper));
    let running = scene.begin();
    // An agent's future may not change threads.
    let here = LocalSet::new();
    let mut lives = JoinSet::new();
    let mut statuses = Vec::new();
    for hold in &scene.holds {
        let agent = Agent::new(scene.server.proxy().addr(), &prefix, point.limit);
        statuses.push(agent.status());
        lives.spawn_local_on(live(agent, *hold), &here);
    }
    match timeout(point.patience(), here.run_until(lives.join_all())).await {
        Ok(lives) => Ok(running.end(Program::Slotkeeper, Manner::InProcess, lives)),
        Err(_) => Err(format!("hung with {}", standing(&statuses))),
    }
}

/// One client's life.
async fn live(agent: Agent, planned: Duration) -> Life {
    let (stop, stopped) = oneshot::channel();
    let signals = stream::once(stopped).filter_map(async |told| told.ok().map(|()| SignalRequest::Stop));
    let mut shown = agent.status();
    let works = async {
        shown.wait_for(|status| holds(status)).await.ok()?;
        let from = clock::now();
        tokio::time::sleep(planned).await;
        let (to, lost) = (clock::now(), !holds(&shown.borrow()));
        let _ = stop.send(());
        Some((Turn { from, to, planned }, lost))
    };
    let (ended, turn) = tokio::join!(agent.run(SignalRequests::of(signals)), works);
    match (ended, turn) {
        (Ok(()), Some((turn, false))) => Life::of(turn),
        (Ok(()), Some((turn, true))) => Life { turn: Some(turn), fault: Some("the slot was lost".into()) },
        (Ok(()), None) => Life { turn: None, fault: Some("the agent ended before it held".into()) },
        (Err(why), turn) => Life { turn: turn.map(|(turn, _)| turn), fault: Some(why) },
    }
}
