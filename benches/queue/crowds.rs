//! What dead, stopped and cut-off waiters cost the living.
//!
//! All clients stand in line. Then the waiters at the head are hurt, and the holders end at one instant. The living have their turns.
//! The ideal is that of slots that are never idle: living waiters × time ÷ limit.

use std::time::Duration;

use futures_util::future::try_join_all;
use rustix::process::Signal;
use slotkeeper::internals::clock;
use tokio::time::timeout;

use crate::arguments::Arguments;
use crate::commands::end;
use crate::line::{Line, endless, signal, works};
use crate::play::Program;
use crate::table::{Table, figure, number};
use crate::turns::{self, Turn};

/// For all of the living to have had their turns.
const PATIENCE: Duration = Duration::from_secs(300);
/// From the arrival of the last client to the deaths.
const SETTLING: Duration = Duration::from_secs(3);

/// What is done to waiters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Harm {
    Kill,
    Stop,
    CutOff,
}

struct Crowd {
    name: &'static str,
    harm: Harm,
    limit: u32,
    hold: Duration,
    /// The first waiters.
    hurt: usize,
    living: usize,
}

const CROWDS: [Crowd; 5] = [
    of_24("first 6 waiters killed", Harm::Kill),
    of_24("first 6 waiters stopped", Harm::Stop),
    of_24("first 6 waiters cut off", Harm::CutOff),
    Crowd {
        name: "first 10 waiters killed",
        harm: Harm::Kill,
        limit: 5,
        hold: Duration::from_secs(2),
        hurt: 10,
        living: 25,
    },
    Crowd {
        name: "first 60 waiters killed",
        harm: Harm::Kill,
        limit: 1,
        hold: Duration::from_secs(1),
        hurt: 60,
        living: 20,
    },
];

const fn of_24(name: &'static str, harm: Harm) -> Crowd {
    Crowd { name, harm, limit: 3, hold: Duration::from_secs(1), hurt: 6, living: 15 }
}

/// Measures and prints, and says what was wrong.
pub(crate) async fn measure(arguments: &Arguments) -> Vec<String> {
    println!(
        "\nCrowds in which waiters die: from the end of the holders to the end of the last living client"
    );
    let heads = [
        "what",
        "program       ",
        "clients",
        "limit",
        "hold/s",
        "living/waiters",
        "ideal/s",
        "took/s",
        "over/ideal",
        "longest/idle s",
        "cores/all",
    ];
    let table = Table::begin(24, &heads);
    let mut faults = Vec::new();
    for crowd in &CROWDS {
        for program in arguments.programs() {
            match crowd.play(program).await {
                Ok(row) => table.row(row),
                Err(why) => faults.push(format!("{}, {}: {why}", crowd.name, program.as_str())),
            }
        }
    }
    faults
}

impl Crowd {
    async fn play(&self, program: Program) -> Result<Vec<String>, String> {
        let limit = self.limit as usize;
        let folder = tempfile::tempdir().unwrap();
        let mut line = Line::new(program, self.limit, &[]).await;
        let mut holders = line.add(false, &endless(limit)).await?;
        let hurt = line.add(self.harm == Harm::CutOff, &endless(self.hurt)).await?;
        let works = works(self.living, self.hold, folder.path());
        let living = line.add(false, &works).await?;
        tokio::time::sleep(SETTLING).await;

        match self.harm {
            Harm::Kill => signal(&hurt, Signal::KILL),
            Harm::Stop => signal(&hurt, Signal::STOP),
            Harm::CutOff => line.tap.cut_off(),
        }
        let (meter, begun) = (line.server.meter(), clock::now());
        signal(&holders, Signal::TERM);
        let all = try_join_all(living.into_iter().zip(&works).map(|(child, work)| end(child, work)));
        let turns = timeout(PATIENCE, all).await.map_err(|_| {
            let served = works.iter().filter(|work| work.turn().is_some()).count();
            format!("{served} of {} living clients were served in {PATIENCE:?}", self.living)
        })??;
        let load = meter.load();
        try_join_all(holders.iter_mut().map(tokio::process::Child::wait)).await.unwrap();
        let ended = turns.iter().map(|turn| turn.to).max().unwrap_or(begun);
        // With what the holders had, whose slots were idle from then on.
        let held = Turn { from: begun, to: begun, planned: Duration::ZERO };
        let all: Vec<_> = std::iter::repeat_n(held, limit).chain(turns).collect();
        let peak = turns::peak(&all);
        if peak > limit {
            return Err(format!("{peak} slots were held at once"));
        }
        let idle = turns::handoffs(&all, self.limit).percentile(100).unwrap_or_default();
        let ideal = self.hold.as_secs_f64() * number(self.living as u64) / f64::from(self.limit);
        let took = ended.since(begun).as_secs_f64();
        Ok(vec![
            self.name.to_owned(),
            program.as_str().to_owned(),
            (limit + self.hurt + self.living).to_string(),
            limit.to_string(),
            figure(self.hold.as_secs_f64()),
            self.living.to_string(),
            figure(ideal),
            figure(took),
            figure(took / ideal),
            figure(idle.as_secs_f64()),
            figure(load.machine),
        ])
    }
}
