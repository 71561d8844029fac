//! The picture of a screen in the documents: an SVG file with its lines as text.

use std::fmt::Write;

/// The size of a character and of a line, and the margin.
const COLUMN: f64 = 8.4;
const LINE: usize = 18;
const MARGIN: usize = 12;

/// What stands before and behind a line in the file.
const OPEN: &str = "<tspan xml:space=\"preserve\" ";
const CLOSE: &str = "</tspan>";

/// Returns the picture of a screen.
pub fn of(screen: &[String], columns: u16) -> String {
    let width = (f64::from(columns) * COLUMN).ceil() as usize + 2 * MARGIN;
    let height = screen.len() * LINE + 2 * MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\">\n\
         <title>beanring top</title>\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"6\" fill=\"#16181d\"/>\n\
         <text font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" font-size=\"14\" fill=\"#e6e6e6\">\n"
    );
    for (at, line) in screen.iter().enumerate() {
        let y = MARGIN + at * LINE + 14;
        let weight = if at == 0 || line.starts_with("TUBE") { " font-weight=\"bold\"" } else { "" };
        let length = (line.chars().count() as f64 * COLUMN).round();
        // Fonts of every width fill the same columns.
        writeln!(
            svg,
            "{OPEN}x=\"{MARGIN}\" y=\"{y}\" textLength=\"{length}\"{weight}>{}{CLOSE}",
            escaped(line)
        )
        .expect("there is memory");
    }
    svg + "</text>\n</svg>\n"
}

/// Returns the lines of a picture.
pub fn lines(svg: &str) -> Vec<String> {
    let line = |line: &str| {
        let text = line.strip_prefix(OPEN)?.strip_suffix(CLOSE)?.split_once('>')?.1;
        Some(text.replace("&lt;", "<").replace("&amp;", "&"))
    };
    svg.lines().filter_map(line).collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
