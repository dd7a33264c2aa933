//! Faults as they are done.

use std::rc::Rc;
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::job::Semaphore;
use crate::plan::{Edit, Fault, Planned, ServerFault, Target};
use crate::stage::{Hurt, Stage};
use crate::support::cluster::Cluster;
use crate::support::freezer::SILENCE;
use crate::support::http::{self, Body, Response};
use crate::support::{life, processes};

/// Those of Consul's own locks.
const LOCK_FLAGS: u64 = 3_304_740_253_564_472_344;
/// For one answer to an operator.
const ANSWER: Duration = Duration::from_secs(2);
/// A connection that was reset, and what was lost with it, is made good in this time.
const RECOVERY: Duration = Duration::from_secs(2);
/// A client whose TTL is 10 s has tried to renew its session in this time, and has had no answer.
const NOTICED: Duration = Duration::from_secs(6);

/// For a victim that is worth a fault.
const LOOK: Duration = Duration::from_millis(250);
const LOOKS: u32 = 60;

/// Does what is planned for clients, when it is due.
pub(crate) async fn hurt_clients(stage: Rc<Stage>, plan: Vec<Planned<Fault>>) {
    let began = tokio::time::Instant::now();
    for planned in plan {
        tokio::time::sleep_until(began + planned.after).await;
        // One may have to wait for its victim, or for an answer; the others do not wait for it.
        for place in 0..planned.number {
            let which = planned.which.wrapping_add(place);
            tokio::task::spawn_local(meet(Rc::clone(&stage), Planned { which, ..planned }));
        }
    }
}

async fn meet(stage: Rc<Stage>, planned: Planned<Fault>) {
    let pick = |candidates: Vec<usize>| {
        let which = planned.which.checked_rem(candidates.len())?;
        Some(candidates[which])
    };
    // Who would live on beside its successor, if it were let to; should there be none for a while, anybody.
    let mut victim = None;
    if planned.target == Target::Holder && planned.fault.is_long() {
        for _ in 0..LOOKS {
            let lives_long = |place: &usize| stage.jobs.borrow()[*place].has_long_to_live();
            victim = pick(stage.candidates(Target::Holder).into_iter().filter(lives_long).collect());
            if victim.is_some() {
                break;
            }
            sleep(LOOK).await;
        }
    }
    if let Some(victim) = victim.or_else(|| pick(stage.candidates(planned.target))) {
        hurt(stage, victim, planned.fault).await;
    }
}

async fn hurt(stage: Rc<Stage>, victim: usize, fault: Fault) {
    let (seat, files) = {
        let job = &stage.jobs.borrow()[victim];
        (job.seat, job.files.clone())
    };
    let waits = !files.has_begun();
    let proxy = &stage.seats[seat].proxy;
    let at = life::now();
    let hurt = Hurt { fault: fault.name(), at, taken_away: false, index: 0 };
    let done = |hurt| {
        stage.hurt(victim, hurt);
        let whom = files.0.strip_prefix(&stage.folder).unwrap().display().to_string();
        stage.count(fault.name(), waits, &format!("{whom} {fault:?}"));
    };
    match fault {
        Fault::KillAgent => {
            if stage.take_in_hand(victim) {
                done(hurt);
                stage.signal(victim, Signal::KILL);
            }
        }
        Fault::KillGuard => {
            if let Some(guard) = processes::guard_of(stage.pid(victim))
                && stage.take_in_hand(victim)
            {
                done(hurt);
                let _ = kill_process(guard, Signal::KILL);
            }
        }
        Fault::StopAgent(lasts) => {
            if stage.take_in_hand(victim) {
                done(hurt);
                let trouble = stage.begin_trouble(Some(seat));
                stage.signal(victim, Signal::STOP);
                sleep(lasts).await;
                stage.signal(victim, Signal::CONT);
                sleep(RECOVERY).await;
                stage.let_go(victim);
                stage.is_over(trouble);
            }
        }
        Fault::StopGuard(lasts) => {
            if let Some(guard) = processes::guard_of(stage.pid(victim))
                && stage.take_in_hand(victim)
            {
                done(hurt);
                let trouble = stage.begin_trouble(Some(seat));
                let _ = kill_process(guard, Signal::STOP);
                sleep(lasts).await;
                // It is the same one as long as its agent has it.
                if stage.jobs.borrow()[victim].ended.is_none()
                    && processes::guard_of(stage.pid(victim)) == Some(guard)
                {
                    let _ = kill_process(guard, Signal::CONT);
                }
                sleep(RECOVERY).await;
                stage.let_go(victim);
                stage.is_over(trouble);
            }
        }
        Fault::BlackHole(lasts) => {
            done(hurt);
            let trouble = stage.begin_trouble(Some(seat));
            proxy.block(true);
            sleep(lasts).await;
            proxy.block(false);
            // Where no renewal has failed meanwhile, nobody knows that the connections are dead.
            sleep(if lasts < NOTICED { SILENCE } else { RECOVERY }).await;
            stage.is_over(trouble);
        }
        Fault::Reset => {
            done(hurt);
            let trouble = stage.begin_trouble(Some(seat));
            proxy.reset();
            sleep(RECOVERY).await;
            stage.is_over(trouble);
        }
        Fault::Delay { answers, lasts } => {
            done(hurt);
            let trouble = stage.begin_trouble(Some(seat));
            proxy.delay(answers);
            sleep(lasts).await;
            proxy.delay(Duration::ZERO);
            sleep(RECOVERY).await;
            stage.is_over(trouble);
        }
        Fault::Edit(edit) => {
            let Some(session) = files.session() else { return };
            let Semaphore { prefix, is_lock, .. } = *stage.seats[seat].semaphore;
            // What was granted until now may be meant.
            let Some(before) = ask(&stage, "GET", &format!("/v1/kv/{prefix}/?recurse&consistent"), "").await
            else {
                return;
            };
            let hurt = Hurt { taken_away: true, index: before.index(), at: life::now(), ..hurt };
            let did = match edit {
                Edit::DestroySession => {
                    ask(&stage, "PUT", &format!("/v1/session/destroy/{session}"), "").await.is_some()
                }
                Edit::DeleteContender if is_lock => unlock(&stage, prefix, &session, "delete").await,
                Edit::TakeOutOfLock if is_lock => unlock(&stage, prefix, &session, "unlock").await,
                Edit::DeleteContender => {
                    ask(&stage, "DELETE", &format!("/v1/kv/{prefix}/{session}"), "").await.is_some()
                }
                Edit::TakeOutOfLock => take_out(&stage, prefix, &session).await,
            };
            if did {
                done(hurt);
            }
        }
    }
}

/// Takes a session out of `.lock`, where it stands in it; as an operator who takes care not to overwrite anything else.
async fn take_out(stage: &Stage, prefix: &str, session: &str) -> bool {
    for _ in 0..5 {
        let Some(answer) = ask(stage, "GET", &format!("/v1/kv/{prefix}/.lock?consistent"), "").await else {
            return false;
        };
        let pair = &answer.json()[0];
        let (index, flags) = (pair["ModifyIndex"].as_u64().unwrap(), pair["Flags"].as_u64().unwrap());
        let record = ask(stage, "GET", &format!("/v1/kv/{prefix}/.lock?raw&consistent"), "").await;
        let Some(mut record) = record.map(|answer| answer.json()) else { return false };
        let Some(holders) = record["Holders"].as_array_mut() else { return false };
        let held = holders.len();
        holders.retain(|holder| holder.as_str() != Some(session));
        if holders.len() == held {
            return false;
        }
        let path = format!("/v1/kv/{prefix}/.lock?cas={index}&flags={flags}");
        // Where no answer comes it may have been done.
        if ask(stage, "PUT", &path, &record.to_string())
            .await
            .is_none_or(|answer| answer.text().trim() == "true")
        {
            return true;
        }
    }
    false
}

/// Deletes a lock's key, or unlocks it, where the session has it.
async fn unlock(stage: &Stage, prefix: &str, session: &str, verb: &str) -> bool {
    // Unlocking writes the flags too, and a key without a lock's is no lock any more.
    let key = format!("{prefix}/.lock");
    let step = |verb| json!({ "KV": { "Verb": verb, "Key": key, "Session": session, "Flags": LOCK_FLAGS } });
    let steps = json!([step("check-session"), step(verb)]).to_string();
    ask(stage, "PUT", "/v1/txn", &steps).await.is_some()
}

/// The first good answer of a server.
pub(crate) async fn ask(stage: &Stage, method: &str, path: &str, body: &str) -> Option<Response> {
    for server in &stage.servers {
        let asked = http::try_request(*server, method, path, &[], Body::Sized(body.as_bytes()));
        if let Ok(Ok(answer)) = timeout(ANSWER, asked).await
            && answer.status == 200
        {
            return Some(answer);
        }
    }
    None
}

/// Does one fault after the other to the servers, each once they are in order again, until the time is over.
pub(crate) async fn hurt_servers(
    stage: &Stage,
    cluster: &mut Cluster,
    plan: Vec<Planned<ServerFault>>,
    length: Duration,
) {
    let ends = tokio::time::Instant::now() + length;
    for planned in plan {
        sleep(planned.after).await;
        if tokio::time::Instant::now() >= ends {
            return;
        }
        let leader = cluster.await_leader().await;
        let follower = (leader + 1 + planned.which % 2) % 3;
        let trouble = stage.begin_trouble(None);
        let count = |server: usize| {
            stage.count(planned.fault.name(), false, &format!("server {server} {:?}", planned.fault));
        };
        match planned.fault {
            ServerFault::KillLeader(away) => {
                count(leader);
                cluster.stop(leader, Signal::KILL).await;
                sleep(away).await;
                cluster.restart(leader).await;
            }
            ServerFault::Silence { leader: meant, lasts } => {
                let server = if meant { leader } else { follower };
                count(server);
                cluster.signal(server, Signal::STOP);
                sleep(lasts).await;
                cluster.signal(server, Signal::CONT);
            }
            ServerFault::CutOff { leader: meant, lasts } => {
                let server = if meant { leader } else { follower };
                count(server);
                cluster.cut_off(server, true);
                sleep(lasts).await;
                cluster.cut_off(server, false);
            }
            ServerFault::Roll => {
                count(leader);
                cluster.roll().await;
            }
        }
        for server in 0..3 {
            cluster.await_in_order(server).await;
        }
        sleep(RECOVERY).await;
        stage.is_over(trouble);
    }
}
