//! The figures as a drawing, readable on light and on dark ground: requests a client and makespan, over the limit and over
//! the number of clients.

mod panel;

use crate::play::{Play, Program};
use panel::{Axis, Panel, WIDTH};

/// The programs have a shape each besides a colour.
const HEAD: &str = r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 630" role="img"
  font-family="system-ui, sans-serif" font-size="12">
<title>Whole lives in a queue for one semaphore: slotkeeper beside consul lock</title>
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
/// The upper edges of the panels' plot areas, and their left ones.
const ROWS: [(f64, Axis); 2] = [(64.0, Axis::Limit), (364.0, Axis::Clients)];
const LEFT: [f64; 2] = [50.0, 430.0];

/// Draws all plays over the limit, and those of the smallest limit over the number of clients.
pub(crate) fn draw(plays: &[Play]) -> String {
    let all: Vec<_> = plays.iter().collect();
    let least = plays.iter().map(|play| play.point.limit).min();
    let smallest: Vec<_> = plays.iter().filter(|play| Some(play.point.limit) == least).collect();
    let mut out = [HEAD, &legend()].concat();
    if let Some(least) = least {
        for (top, axis) in ROWS {
            let plays = match axis {
                Axis::Limit => &all,
                Axis::Clients => &smallest,
            };
            let what = axis.what(least);
            let panel = |title, left, value| Panel { title, what: &what, top, left, axis, plays, value };
            out += &panel("Requests to Consul a client", LEFT[0], requests).draw();
            let makespan = panel("Makespan over ideal", LEFT[1], Play::over_ideal);
            let (y, right) = (makespan.y(1.0), LEFT[1] + WIDTH);
            out += &makespan.draw();
            out += &(line("ideal", LEFT[1], right, y) + &text(right, y + 15.0, "end", "ideal"));
        }
    }
    out + "</svg>\n"
}

fn requests(play: &Play) -> f64 {
    play.a_client(play.counts.requests())
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
