//! Tables that are readable as Markdown and as plain text.

/// A table of text.
pub struct Table(Vec<Vec<String>>);

impl Table {
    /// Creates a table with a header.
    pub fn new(head: Vec<String>) -> Table {
        Table(vec![head])
    }

    /// Adds a line. Its first cell is its name.
    pub fn push(&mut self, line: Vec<String>) {
        assert_eq!(line.len(), self.0[0].len(), "every line has every column");
        self.0.push(line);
    }

    /// Renders Markdown: names are left-aligned, numbers right-aligned.
    pub fn markdown(&self) -> String {
        let length = |cell: &String| cell.chars().count();
        let widths: Vec<usize> = (0..self.0[0].len())
            .map(|column| self.0.iter().map(|line| length(&line[column])).max().unwrap_or(0).max(3))
            .collect();
        let mut out = String::new();
        for (number, line) in self.0.iter().enumerate() {
            for (column, (cell, &width)) in line.iter().zip(&widths).enumerate() {
                out +=
                    &if column == 0 { format!("| {cell:<width$} |") } else { format!(" {cell:>width$} |") };
            }
            out.push('\n');
            if number == 0 {
                for (column, width) in widths.iter().enumerate() {
                    let dashes = "-".repeat(*width);
                    out +=
                        &if column == 0 { format!("| {dashes} |") } else { format!(" {}: |", &dashes[1..]) };
                }
                out.push('\n');
            }
        }
        out
    }
}

/// Renders a number with at least three digits.
pub fn rounded(number: f64) -> String {
    match number {
        _ if number.is_nan() => "–".to_owned(),
        ..9.995 => format!("{number:.2}"),
        ..99.95 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    }
}
