//! What must hold of all that was played.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::job::Semaphore;
use crate::plan::{Edit, Fault, LEASE};
use crate::stage::{Played, SEMAPHORES, Stage};
use crate::support::lives::{self, Lived};

/// An agent learns of what an operator has done within this time, in calm weather.
const LEARNING: f64 = 1.0;
/// And of an edit of `.lock` alone, or one whose news was lost on the way, as a holder reads both once a minute (docs/guarantees.md, "It
/// does not protect from operators").
pub(crate) const READING: f64 = 60.0;
/// From the signal that nothing survives, and from the last beat, to what is written; on a busy machine.
const SLACK: f64 = 4.0;

/// What is printed, and what is wrong.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) lines: Vec<String>,
    pub(crate) violations: Vec<String>,
}

pub(crate) fn judge(stage: &Stage) -> Verdict {
    let mut verdict = Verdict::default();
    let jobs = stage.jobs.borrow();
    ends(stage, &jobs, &mut verdict);
    for semaphore in &SEMAPHORES {
        let here = |job: &&Played| stage.seats[job.seat].semaphore.prefix == semaphore.prefix;
        of_semaphore(stage, semaphore, jobs.iter().filter(here), &mut verdict);
    }
    verdict
}

/// How the jobs have ended, and whether they had cause to.
fn ends(stage: &Stage, jobs: &[Played], verdict: &mut Verdict) {
    let mut by_end: BTreeMap<String, u32> = BTreeMap::new();
    for job in jobs {
        let was = |fault: &str| job.hurt.iter().any(|hurt| hurt.fault == fault);
        let Some(ended) = job.ended else {
            verdict.violations.push(format!("it has not come to an end: {job:#?}\n{}", job.files.log()));
            continue;
        };
        let troubled = !job.hurt.is_empty() || stage.was_troubled(job.seat, job.begun, ended.at);
        let (end, fine) = match ended.code {
            Some(0) => ("served: 0", job.files.beats() == job.job.beats),
            Some(80) => ("slot lost: 80", troubled),
            Some(75) => ("not in its time: 75", job.job.patience.is_some()),
            Some(69) => ("Consul not there in its time: 69", job.job.patience.is_some() && troubled),
            Some(1) => ("with its guard: 1", was("guard killed")),
            None => ("killed", was("agent killed")),
            Some(_) => ("otherwise", false),
        };
        *by_end.entry(end.to_owned()).or_default() += 1;
        if !fine {
            let log = job.files.log();
            verdict.violations.push(format!(
                "this end has no cause: {ended:?}, {} beats of {job:#?}\n{log}",
                job.files.beats()
            ));
        }
    }
    verdict.lines.push(format!("jobs {}: {by_end:?}", jobs.len()));
}

fn of_semaphore<'a>(
    stage: &Stage,
    semaphore: &Semaphore,
    jobs: impl Iterator<Item = &'a Played>,
    verdict: &mut Verdict,
) {
    let (mut lives, mut latest, mut taken, mut in_calm) = (Vec::new(), 0.0_f64, 0, 0);
    for job in jobs {
        let Some(mut life) = job.files.lived(job.job.slots) else { continue };
        // What an operator does to one that waits makes it go to the end of the line, and means no later life.
        let meant = job
            .hurt
            .iter()
            .find(|hurt| hurt.taken_away && (life.token <= hurt.index || life.first <= hurt.at + LEARNING));
        if let Some(hurt) = meant {
            life.taken_away = Some(hurt.at);
            let over = life.last - hurt.at;
            let kill_after = job.job.kill_after.as_secs_f64();
            let of_lock_alone = !semaphore.is_lock && hurt.fault == Fault::Edit(Edit::TakeOutOfLock).name();
            let learning = if of_lock_alone { READING } else { LEARNING };
            let calm = job.hurt.len() == 1 && !stage.was_troubled(job.seat, hurt.at, hurt.at + learning);
            // A black hole may swallow the answer of a watch, which Consul does not repeat: the holder's read of each minute
            // finds the edit then. A destroyed session is found by the next renewal.
            let black_hole = Fault::BlackHole(Duration::ZERO).name();
            let may_be_lost = hurt.fault != Fault::Edit(Edit::DestroySession).name()
                && job.hurt.iter().any(|hurt| hurt.fault == black_hole);
            let without_watch = if of_lock_alone || may_be_lost { READING - LEARNING } else { 0.0 };
            let bound =
                if calm { learning } else { without_watch + LEASE.as_secs_f64() } + kill_after + SLACK;
            if over > 0.0 {
                taken += 1;
                in_calm += u32::from(calm);
                latest = latest.max(if calm { over } else { 0.0 });
            }
            if over > bound {
                let log = job.files.log();
                verdict.violations.push(format!(
                    "lived on for {over:.2} s, of {bound:.2} s, after an operator's edit: {job:#?}\n{log}"
                ));
            }
        }
        lives.push(life);
    }
    let prefix = semaphore.prefix;
    for fault in lives::faults(&lives, semaphore.limit) {
        verdict.violations.push(format!("{prefix}: {fault}"));
    }
    let rightful =
        lives::overlap(&lives, semaphore.limit, |life| life.taken_away.unwrap_or(life.last).min(life.last));
    let all = lives::overlap(&lives, semaphore.limit, |life: &Lived| life.last);
    verdict.lines.push(format!(
        "{prefix}: {} lives, at most {} of {} slots lived on at once",
        lives.len(),
        rightful.most,
        semaphore.limit
    ));
    verdict.lines.push(format!(
        "{prefix}: {taken} lives went on after an operator had taken their slot away, {in_calm} of them in calm weather, \
         there for at most {latest:.2} s; with these at most {} slots lived on at once, {:.2} s over the limit in all",
        all.most, all.too_many_for
    ));
}
