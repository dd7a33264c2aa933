//! Whole lives in a queue: the table of clients, limits and hold times.

use crate::arguments::Arguments;
use crate::floor::Floor;
use crate::latencies::Latencies;
use crate::play::{Manner, Play, Program, Scene};
use crate::server::Server;
use crate::support::traffic::Kind;
use crate::table::{NONE, Table, figure, millis};
use crate::{commands, in_process, turns};

const COLUMNS: [&str; 17] = [
    "program",
    "as         ",
    "clients",
    "limit",
    "hold      ",
    "requests/a client",
    // A transaction that only reads is one too.
    "PUTs/a client",
    "KB/a client",
    "makespan/over ideal",
    "handoff/p50 ms",
    "handoff/p99 ms",
    "over floor/p50",
    "over floor/p99",
    "peak/held",
    "cores/here",
    "cores/Consul",
    "cores/all",
];

/// Plays all points, and says what was wrong.
pub(crate) async fn measure(arguments: &Arguments, seed: u64) -> (Vec<Play>, Vec<String>) {
    let server = Server::start().await;
    let floor = Floor::measure(server.proxy().addr()).await;
    println!("\nWhole lives in a queue");
    print_floor(&floor, Manner::InProcess, "one write that wakes one blocking read");
    print_floor(
        &floor,
        Manner::Processes,
        "the same between the end of one command and the start of another",
    );
    let table = Table::begin(14, &COLUMNS);
    let (mut plays, mut faults) = (Vec::new(), Vec::new());
    for &point in &arguments.points {
        for spread in arguments.spreads() {
            let scene = Scene { server: &server, point, spread, holds: point.holds(spread, seed) };
            for program in [Program::Slotkeeper, Program::ConsulLock] {
                if program == Program::ConsulLock && !arguments.has_peer(point.clients) {
                    continue;
                }
                let unanswered = server.proxy().unanswered();
                let name = format!("{}: {point}{}", program.as_str(), spread.as_str());
                match play(arguments, program, &scene).await {
                    Ok(play) => {
                        table.row(row(&play, &floor));
                        faults.extend(play.faults().into_iter().map(|fault| format!("{name}: {fault}")));
                        plays.push(play);
                    }
                    Err(why) => faults.push(format!("{name}: {why}")),
                }
                let unanswered = server.proxy().unanswered() - unanswered;
                if unanswered > 0 {
                    faults.push(format!("{name}: {unanswered} requests had no answer of Consul's"));
                }
            }
        }
    }
    if arguments.breakdown {
        print_breakdown(&plays);
    }
    (plays, faults)
}

async fn play(arguments: &Arguments, program: Program, scene: &Scene<'_>) -> Result<Play, String> {
    match (program, arguments.manner(scene.point.clients)) {
        (Program::Slotkeeper, Manner::InProcess) => in_process::play(scene).await,
        _ => commands::play(program, scene).await,
    }
}

fn print_floor(floor: &Floor, manner: Manner, what: &str) {
    let times = floor.of(manner);
    let [p50, p99] = [50, 99].map(|percent| millis(times.percentile(percent)));
    println!("floor, {what}: p50 {p50} ms, p99 {p99} ms");
}

fn row(play: &Play, floor: &Floor) -> Vec<String> {
    let (handoffs, floor) = (play.handoffs(), floor.of(play.manner));
    let times = [50, 99].map(|percent| millis(handoffs.percentile(percent)));
    let ratios = [50, 99].map(|percent| over(&handoffs, floor, percent));
    let mut cells = vec![
        play.program.as_str().to_owned(),
        play.manner.as_str().to_owned(),
        play.point.clients.to_string(),
        play.point.limit.to_string(),
        format!("{}{}", humantime::format_duration(play.point.hold), play.spread.as_str()),
        figure(play.a_client(play.counts.requests())),
        figure(play.a_client(play.counts.writes())),
        figure(play.a_client(play.counts.bytes()) / 1e3),
        format!("{:.2}", play.over_ideal()),
    ];
    cells.extend(times.into_iter().chain(ratios));
    cells.push(turns::peak(&play.turns).to_string());
    cells.extend([play.load.here, play.load.consul, play.load.machine].map(|cores| format!("{cores:.2}")));
    cells
}

fn over(handoffs: &Latencies, floor: &Latencies, percent: usize) -> String {
    let ratio = || {
        let (time, floor) = (handoffs.percentile(percent)?, floor.percentile(percent)?);
        (!floor.is_zero()).then(|| figure(time.as_secs_f64() / floor.as_secs_f64()))
    };
    ratio().unwrap_or(NONE.to_owned())
}

/// Requests by their kind; kinds that did not occur are left out.
fn print_breakdown(plays: &[Play]) {
    let columns = ["program, point", "kind              ", "requests/a client", "KB/a client"];
    let table = Table::begin(36, &columns);
    for play in plays {
        let name = format!("{} {}{}", play.program.as_str(), play.point, play.spread.as_str());
        for kind in Kind::ALL {
            let count = play.counts.of(kind);
            if count.requests > 0 {
                table.row([
                    name.as_str(),
                    kind.as_str(),
                    &figure(play.a_client(count.requests)),
                    &figure(play.a_client(count.bytes) / 1e3),
                ]);
            }
        }
    }
}
