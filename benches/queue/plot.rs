//! The figures as a drawing: two panels over the number of clients, readable on light and on dark ground.

use std::collections::BTreeSet;

use crate::play::{Play, Program};

/// The programs have a shape each besides a colour.
const HEAD: &str = r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 330" role="img"
  font-family="system-ui, sans-serif" font-size="12">
<title>Whole lives in line for one semaphore: slotkeeper beside consul lock</title>
<style>
  text { fill: #333; }
  .title { font-size: 14px; font-weight: 600; }
  .grid { stroke: #8884; }
  .ideal { stroke: #888; stroke-dasharray: 4 3; }
  .ours { stroke: #0b62c4; fill: #0b62c4; } .theirs { stroke: #c2410c; fill: #c2410c; }
  polyline.ours, polyline.theirs { stroke-width: 2; fill: none; }
  @media (prefers-color-scheme: dark) {
    text { fill: #ccc; }
    .ours { stroke: #6cb0ff; fill: #6cb0ff; } .theirs { stroke: #ff9a5c; fill: #ff9a5c; }
  }
</style>
"#;
const PROGRAMS: [Program; 2] = [Program::Slotkeeper, Program::ConsulLock];
/// Of a panel's plot area: its upper edge, and its size.
const TOP: f64 = 64.0;
const HEIGHT: f64 = 210.0;
const WIDTH: f64 = 300.0;
/// Free space at both ends of the axis of clients.
const MARGIN: f64 = 20.0;
/// Lines across a panel at most.
const TICKS: f64 = 6.0;

pub(crate) fn draw(plays: &[Play]) -> String {
    let requests = Panel {
        title: "Requests to Consul a client",
        left: 50.0,
        plays,
        value: |play| play.a_client(play.counts.requests()),
    };
    let makespan = Panel { title: "Makespan over ideal", left: 430.0, plays, value: Play::over_ideal };
    let (y, right) = (makespan.y(1.0), makespan.left + WIDTH);
    let ideal = line("ideal", makespan.left, right, y) + &text(right, y + 15.0, "end", "ideal");
    [HEAD, &legend(), &requests.draw(), &makespan.draw(), &ideal, "</svg>\n"].concat()
}

/// One figure over the number of clients, which has a logarithmic axis.
struct Panel<'a> {
    title: &'static str,
    /// Its plot area's left edge.
    left: f64,
    plays: &'a [Play],
    value: fn(&Play) -> f64,
}

impl Panel<'_> {
    fn draw(&self) -> String {
        let mut out = String::new();
        let (left, right, bottom) = (self.left, self.left + WIDTH, TOP + HEIGHT);
        let (mut tick, step) = (0.0, step(self.most()));
        // Half a step on top: adding steps up may miss the top by a hair.
        while tick < self.top() + step / 2.0 {
            let y = self.y(tick);
            out += &line("grid", left, right, y);
            out += &text(left - 6.0, y + 4.0, "end", &((tick * 10.0).round() / 10.0).to_string());
            tick += step;
        }
        for clients in self.clients().collect::<BTreeSet<_>>() {
            out += &text(self.x(clients), bottom + 17.0, "middle", &clients.to_string());
        }
        out += &text(left + WIDTH / 2.0, bottom + 38.0, "middle", "clients (3 slots, logarithmic axis)");
        out += &format!("<text class='title' x='{left}' y='{}'>{}</text>\n", TOP - 14.0, self.title);
        for program in PROGRAMS {
            let plays = self.plays.iter().filter(|play| play.program == program);
            let point = |play: &Play| (self.x(play.clients), self.y((self.value)(play)));
            let points: Vec<_> = plays.map(point).collect();
            let path: String = points.iter().map(|(x, y)| format!("{x:.1},{y:.1} ")).collect();
            out += &format!("<polyline class='{}' points='{path}'/>\n", class(program));
            out.extend(points.into_iter().map(|(x, y)| mark(program, x, y)));
        }
        out
    }

    fn x(&self, clients: u32) -> f64 {
        let log = |n: u32| f64::from(n).ln();
        let least = log(self.clients().min().unwrap());
        let span = log(self.clients().max().unwrap()) - least;
        let share = if span > 0.0 { (log(clients) - least) / span } else { 0.5 };
        self.left + MARGIN + share * (WIDTH - 2.0 * MARGIN)
    }

    fn y(&self, value: f64) -> f64 {
        TOP + HEIGHT * (1.0 - value / self.top())
    }

    /// The axis' upper end: a tick.
    fn top(&self) -> f64 {
        let step = step(self.most());
        (self.most() / step).ceil() * step
    }

    fn most(&self) -> f64 {
        self.plays.iter().map(self.value).fold(1.0, f64::max)
    }

    fn clients(&self) -> impl Iterator<Item = u32> {
        self.plays.iter().map(|play| play.clients)
    }
}

/// The smallest of 1, 2 and 5 times a power of ten that is not too many steps to `most`.
fn step(most: f64) -> f64 {
    let power = 10_f64.powf((most / TICKS).log10().floor());
    let steps = [1.0, 2.0, 5.0].map(|step| step * power);
    steps.into_iter().find(|step| most / step <= TICKS).unwrap_or(10.0 * power)
}

fn legend() -> String {
    let item = |(program, x): (Program, f64)| {
        line(class(program), x, x + 24.0, 16.0)
            + &mark(program, x + 12.0, 16.0)
            + &text(x + 30.0, 20.0, "start", program.as_str())
    };
    PROGRAMS.into_iter().zip([50.0, 160.0]).map(item).collect()
}

fn mark(program: Program, x: f64, y: f64) -> String {
    let (class, left, top) = (class(program), x - 3.5, y - 3.5);
    match program {
        Program::Slotkeeper => format!("<circle class='{class}' cx='{x:.1}' cy='{y:.1}' r='4'/>\n"),
        Program::ConsulLock => {
            format!("<rect class='{class}' x='{left:.1}' y='{top:.1}' width='7' height='7'/>\n")
        }
    }
}

fn class(program: Program) -> &'static str {
    match program {
        Program::Slotkeeper => "ours",
        Program::ConsulLock => "theirs",
    }
}

fn line(class: &str, left: f64, right: f64, y: f64) -> String {
    format!("<line class='{class}' x1='{left}' x2='{right}' y1='{y:.1}' y2='{y:.1}'/>\n")
}

fn text(x: f64, y: f64, anchor: &str, text: &str) -> String {
    format!("<text x='{x:.1}' y='{y:.1}' text-anchor='{anchor}'>{text}</text>\n")
}
