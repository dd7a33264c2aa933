//! Tables: named columns, narrow or wide, cut at the width of the terminal.

use unicode_width::UnicodeWidthStr;

use super::window;

/// The cell of a missing value.
pub(super) const NONE: &str = "-";
/// Blanks between two columns.
const GAP: usize = 2;
/// The least width to which a flexible column shrinks.
const LEAST: usize = 12;

/// How tables are printed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// All columns.
    pub(super) wide: bool,
    /// Whether session ids may be abbreviated.
    pub(super) short_ids: bool,
    /// Whether there is a line of headers.
    pub(super) headers: bool,
    /// The width at which rows are cut.
    pub(super) columns: usize,
}

impl Layout {
    /// All columns of any width.
    #[cfg(test)]
    pub(super) const WIDE: Self =
        Self { wide: true, short_ids: false, headers: true, columns: window::ENDLESS };
    /// The usual columns of any width.
    #[cfg(test)]
    pub(super) const NARROW: Self = Self { wide: false, ..Self::WIDE };
}

/// When a column is shown.
enum Show {
    Always,
    /// In the wide form.
    Wide,
    /// In the wide form, and in the narrow one if a row has another value than this one. A missing value is usual.
    Unless(&'static str),
}

/// A column: its header, and the cell of a row.
pub(super) struct Column<'a, T> {
    header: &'static str,
    show: Show,
    /// Whether it shrinks first if the table is too wide.
    flexible: bool,
    cell: Box<dyn Fn(&T) -> String + 'a>,
}

/// A column that is always shown.
pub(super) fn always<'a, T>(header: &'static str, cell: impl Fn(&T) -> String + 'a) -> Column<'a, T> {
    Column { header, show: Show::Always, flexible: false, cell: Box::new(cell) }
}

/// A column of the wide form.
pub(super) fn wide<'a, T>(header: &'static str, cell: impl Fn(&T) -> String + 'a) -> Column<'a, T> {
    Column { show: Show::Wide, ..always(header, cell) }
}

/// A column of the wide form, and of the narrow one if a row has another value than `usual`.
pub(super) fn unless<'a, T>(
    usual: &'static str,
    header: &'static str,
    cell: impl Fn(&T) -> String + 'a,
) -> Column<'a, T> {
    Column { show: Show::Unless(usual), ..always(header, cell) }
}

impl<T> Column<'_, T> {
    /// The column that shrinks first if the table is too wide.
    pub(super) fn flexible(self) -> Self {
        Self { flexible: true, ..self }
    }
}

/// The text of a table: one line for each row, below the headers.
pub(super) fn table<T>(columns: &[Column<'_, T>], rows: &[T], layout: Layout) -> String {
    let shown = columns.iter().filter_map(|column| {
        let cells: Vec<_> = rows.iter().map(|row| (column.cell)(row)).collect();
        let is_shown = match column.show {
            Show::Always => true,
            Show::Wide => layout.wide,
            Show::Unless(usual) => layout.wide || cells.iter().any(|cell| cell != usual && cell != NONE),
        };
        let header = layout.headers.then(|| column.header.to_owned());
        let cells: Vec<_> = header.into_iter().chain(cells).collect();
        let width = cells.iter().map(|cell| cell.width()).max().unwrap_or(0);
        is_shown.then_some((column.flexible, width, cells))
    });
    let mut shown: Vec<_> = shown.collect();
    let whole: usize = shown.iter().map(|(_, width, _)| width + GAP).sum::<usize>().saturating_sub(GAP);
    let excess = whole.saturating_sub(layout.columns);
    if let Some((_, width, _)) = shown.iter_mut().find(|(flexible, ..)| *flexible) {
        *width = width.saturating_sub(excess).max(LEAST.min(*width));
    }
    let lines = rows.len() + usize::from(layout.headers);
    let line = |nth: usize| {
        let mut line = String::new();
        let mut blanks = 0;
        for (_, width, cells) in &shown {
            let Some(cell) = cells.get(nth) else { continue };
            let cell = window::cut(cell, *width);
            line.push_str(&" ".repeat(blanks));
            line.push_str(&cell);
            blanks = width - cell.width() + GAP;
        }
        format!("{}\n", window::cut(&line, layout.columns))
    };
    (0..lines).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns<'a>() -> [Column<'a, [&'static str; 3]>; 3] {
        [
            always("NAME", |row: &[&str; 3]| row[0].into()).flexible(),
            unless("0", "PRIORITY", |row: &[&str; 3]| row[1].into()),
            wide("MORE", |row: &[&str; 3]| row[2].into()),
        ]
    }

    #[test]
    fn a_column_is_shown_if_a_value_is_unusual() {
        let usual = [["a", "0", "x"], ["b", NONE, "y"]];
        assert_eq!(table(&columns(), &usual, Layout::NARROW), "NAME\na\nb\n");
        let expected = "NAME  PRIORITY  MORE\na     0         x\nb     -         y\n";
        assert_eq!(table(&columns(), &usual, Layout::WIDE), expected);
        let unusual = [["a", "0", "x"], ["b", "7", "y"]];
        assert_eq!(table(&columns(), &unusual, Layout::NARROW), "NAME  PRIORITY\na     0\nb     7\n");
    }

    #[test]
    fn without_headers_there_are_rows_alone() {
        let layout = Layout { headers: false, ..Layout::NARROW };
        assert_eq!(table(&columns(), &[["aé☃", "1", "x"], ["b", "12", "y"]], layout), "aé☃  1\nb    12\n");
        assert_eq!(table(&columns(), &[], layout), "");
        assert_eq!(table(&columns(), &[], Layout::NARROW), "NAME\n");
    }

    #[test]
    fn too_wide_a_table_shrinks_where_it_may_and_is_then_cut() {
        let rows = [["import-batch-2026-01-02", "7", "last"]];
        let fits = |width| table(&columns(), &rows, Layout { columns: width, ..Layout::WIDE });
        assert_eq!(fits(32), "NAME              PRIORITY  MORE\nimport-batch-20…  7         last\n");
        assert_eq!(fits(20), "NAME          PRIOR…\nimport-batc…  7    …\n");
        assert_eq!(fits(39), fits(window::ENDLESS));
    }
}
