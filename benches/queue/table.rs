//! Figures as text, in tables that are printed row by row: a run takes many minutes.

use std::iter;
use std::time::Duration;

/// Where a figure is not known.
pub(crate) const NONE: &str = "-";

/// A table that has begun.
#[derive(Debug)]
pub(crate) struct Table(Vec<usize>);

impl Table {
    /// Prints the head. Columns are as wide as their heads, whose lines are divided by `/`; the first one has its width
    /// from `first`.
    pub(crate) fn begin(first: usize, columns: &[impl AsRef<str>]) -> Self {
        let columns: Vec<Vec<&str>> =
            columns.iter().map(|column| column.as_ref().split('/').collect()).collect();
        let width = |column: &Vec<&str>| column.iter().map(|line| line.chars().count()).max().unwrap_or(0);
        let table = Self(iter::once(first).chain(columns.iter().skip(1).map(width)).collect());
        for line in 0..columns.iter().map(Vec::len).max().unwrap_or(0) {
            table.row(columns.iter().map(|column| column.get(line).map_or("", |head| head.trim_end())));
        }
        table
    }

    /// Prints a row.
    pub(crate) fn row(&self, cells: impl IntoIterator<Item = impl AsRef<str>>) {
        let mut row = String::new();
        for (number, (cell, width)) in cells.into_iter().zip(&self.0).enumerate() {
            let cell = cell.as_ref();
            row += &if number == 0 { format!("{cell:<width$}") } else { format!("  {cell:>width$}") };
        }
        println!("{}", row.trim_end());
    }
}

pub(crate) fn figure(number: f64) -> String {
    if number < 10.0 { format!("{number:.2}") } else { format!("{number:.1}") }
}

pub(crate) fn millis(time: Option<Duration>) -> String {
    time.map_or(NONE.to_owned(), |time| figure(time.as_secs_f64() * 1e3))
}

#[allow(clippy::cast_precision_loss, reason = "counts are far from where a float would round them")]
pub(crate) fn number(count: u64) -> f64 {
    count as f64
}
