//! The figures as text.

use std::io::Write;
use std::time::Duration;

use tabwriter::{Alignment, TabWriter};

use crate::latencies::Latencies;
use crate::play::{LIMIT, Play};
use crate::support::traffic::Kind;

/// Where a figure is not known.
const NONE: &str = "-";

pub(crate) fn print(plays: &[Play], floor: &Latencies, hold: Duration) {
    let percentiles = [50, 99];
    let mut rows = vec![
        "program\tN\trequests\twrites\tKB\tmakespan\thandoff\thandoff\tover floor\tover floor\tpeak\tcores\t"
            .to_owned(),
        "\t\ta client\ta client\ta client\tover ideal\tp50 ms\tp99 ms\tp50\tp99\theld\tbusy here\t"
            .to_owned(),
    ];
    for play in plays {
        let handoffs = play.handoffs();
        let times = percentiles.map(|percent| handoffs.percentile(percent));
        let ratios =
            percentiles.map(|percent| ratio(handoffs.percentile(percent)?, floor.percentile(percent)?));
        let mut cells = vec![
            play.program.as_str().to_owned(),
            play.clients.to_string(),
            figure(play.a_client(play.counts.requests())),
            figure(play.a_client(play.counts.writes())),
            kilobytes(play, play.counts.bytes()),
            format!("{:.2}", play.over_ideal()),
        ];
        cells.extend(times.map(millis));
        cells.extend(ratios.map(|ratio| ratio.map_or(NONE.to_owned(), figure)));
        cells.push(if play.holds.is_empty() { NONE.to_owned() } else { play.peak().to_string() });
        cells.push(format!("{:.2}", play.cores()));
        rows.push(line(&cells));
    }
    println!("limit {LIMIT}, held for {hold:?}");
    println!(
        "floor, one write that wakes one blocking read: p50 {} ms, p99 {} ms",
        millis(floor.percentile(50)),
        millis(floor.percentile(99))
    );
    write(&rows);
}

/// Requests by their kind; kinds that did not occur are left out.
pub(crate) fn print_breakdown(plays: &[Play]) {
    let mut rows = vec!["program\tN\tkind\trequests a client\tKB a client\t".to_owned()];
    for play in plays {
        for kind in Kind::ALL {
            let count = play.counts.of(kind);
            if count.requests > 0 {
                rows.push(line(&[
                    play.program.as_str().to_owned(),
                    play.clients.to_string(),
                    kind.as_str().to_owned(),
                    figure(play.a_client(count.requests)),
                    kilobytes(play, count.bytes),
                ]));
            }
        }
    }
    write(&rows);
}

fn write(rows: &[String]) {
    let mut table = TabWriter::new(std::io::stdout()).alignment(Alignment::Right);
    writeln!(table, "\n{}", rows.join("\n")).unwrap();
    table.flush().unwrap();
}

fn line(cells: &[String]) -> String {
    cells.iter().map(|cell| format!("{cell}\t")).collect()
}

fn kilobytes(play: &Play, bytes: u64) -> String {
    figure(play.a_client(bytes) / 1e3)
}

fn figure(number: f64) -> String {
    format!("{number:.1}")
}

fn millis(time: Option<Duration>) -> String {
    time.map_or(NONE.to_owned(), |time| format!("{:.2}", time.as_secs_f64() * 1e3))
}

fn ratio(time: Duration, floor: Duration) -> Option<f64> {
    (!floor.is_zero()).then(|| time.as_secs_f64() / floor.as_secs_f64())
}
