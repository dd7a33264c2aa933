//! One figure over one axis.

use std::collections::BTreeMap;

use super::{PROGRAMS, class, line, mark, text};
use crate::play::Play;

/// Of a panel's plot area.
const HEIGHT: f64 = 210.0;
pub(super) const WIDTH: f64 = 300.0;
/// Free space at both ends of the horizontal axis.
const MARGIN: f64 = 20.0;
/// Lines across a panel at most.
const TICKS: f64 = 6.0;

/// What a figure is drawn over; logarithmic.
#[derive(Clone, Copy)]
pub(super) enum Axis {
    Limit,
    Clients,
}

/// A figure of some plays.
pub(super) struct Panel<'a> {
    pub(super) title: &'static str,
    /// What the axis has.
    pub(super) what: &'a str,
    /// Its plot area's upper edge, and its left one.
    pub(super) top: f64,
    pub(super) left: f64,
    pub(super) axis: Axis,
    pub(super) plays: &'a [&'a Play],
    pub(super) value: fn(&Play) -> f64,
}

impl Axis {
    /// For people; `least` is the limit of those that are drawn over the number of clients.
    pub(super) fn what(self, least: u32) -> String {
        match self {
            Self::Limit => "slots (logarithmic axis); the line joins the highest".to_owned(),
            Self::Clients => format!("clients (logarithmic axis), {least} slots"),
        }
    }

    fn of(self, play: &Play) -> u32 {
        match self {
            Self::Limit => play.point.limit,
            Self::Clients => play.point.clients,
        }
    }
}

impl Panel<'_> {
    pub(super) fn draw(&self) -> String {
        let mut out = String::new();
        let (left, right, bottom) = (self.left, self.left + WIDTH, self.top + HEIGHT);
        let (mut tick, step) = (0.0, step(self.most()));
        // Half a step on top: adding steps up may miss the end by a hair.
        while tick < self.end() + step / 2.0 {
            let y = self.y(tick);
            out += &line("grid", left, right, y);
            out += &text(left - 6.0, y + 4.0, "end", &((tick * 10.0).round() / 10.0).to_string());
            tick += step;
        }
        let marks: BTreeMap<_, _> =
            self.plays.iter().map(|play| (self.axis.of(play), self.x(play))).collect();
        for (number, x) in marks {
            out += &text(x, bottom + 17.0, "middle", &number.to_string());
        }
        out += &text(left + WIDTH / 2.0, bottom + 38.0, "middle", self.what);
        out += &format!("<text class='title' x='{left}' y='{}'>{}</text>\n", self.top - 14.0, self.title);
        for program in PROGRAMS {
            let mut highest = BTreeMap::new();
            for play in self.plays.iter().filter(|play| play.program == program) {
                let (x, value) = (self.x(play), (self.value)(play));
                out += &mark(program, x, self.y(value));
                let (_, most) = highest.entry(self.axis.of(play)).or_insert((x, value));
                *most = most.max(value);
            }
            let path: String =
                highest.values().map(|(x, most)| format!("{x:.1},{:.1} ", self.y(*most))).collect();
            out += &format!("<polyline class='{}' points='{path}'/>\n", class(program));
        }
        out
    }

    pub(super) fn y(&self, value: f64) -> f64 {
        self.top + HEIGHT * (1.0 - value / self.end())
    }

    fn x(&self, play: &Play) -> f64 {
        let log = |play: &Play| f64::from(self.axis.of(play)).ln();
        let all = || self.plays.iter().map(|play| log(play));
        let least = all().fold(f64::INFINITY, f64::min);
        let span = all().fold(least, f64::max) - least;
        let share = if span > 0.0 { (log(play) - least) / span } else { 0.5 };
        self.left + MARGIN + share * (WIDTH - 2.0 * MARGIN)
    }

    /// The vertical axis' upper end: a tick.
    fn end(&self) -> f64 {
        let step = step(self.most());
        (self.most() / step).ceil() * step
    }

    fn most(&self) -> f64 {
        self.plays.iter().map(|play| (self.value)(play)).fold(1.0, f64::max)
    }
}

/// The smallest of 1, 2 and 5 times a power of ten that is not too many steps to `most`.
fn step(most: f64) -> f64 {
    let power = 10_f64.powf((most / TICKS).log10().floor());
    let steps = [1.0, 2.0, 5.0].map(|step| step * power);
    steps.into_iter().find(|step| most / step <= TICKS).unwrap_or(10.0 * power)
}
