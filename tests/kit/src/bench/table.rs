//! Tables that read well as Markdown and as they are.

/// A table of text.
pub struct Table(Vec<Vec<String>>);

impl Table {
    /// A table with a head.
    pub fn new(head: Vec<String>) -> Table {
        Table(vec![head])
    }

    /// Adds a line; its first cell is its name.
    pub fn push(&mut self, line: Vec<String>) {
        assert_eq!(line.len(), self.0[0].len(), "every line has every column");
        self.0.push(line);
    }

    /// As Markdown: names to the left, figures to the right.
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

/// Three figures at least.
pub fn figure(number: f64) -> String {
    match number {
        _ if number.is_nan() => "–".to_owned(),
        ..9.995 => format!("{number:.2}"),
        ..99.95 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    }
}

/// A ratio; small ones as a fraction.
pub fn ratio(number: f64) -> String {
    if number < 0.5 { format!("1/{}", figure(1.0 / number)) } else { format!("{number:.2}x") }
}
