//! The plots: CPU time and throughput by depth and by tubes, and the delivery latency.

use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::combinators::LogCoord;
use plotters::prelude::*;
use plotters::series::DashedLineSeries;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::failure::Failure;
use crate::matrix::{Group, Row, Work};
use crate::measure::{Figures, Metric, Outcome};
use crate::report::Report;
use crate::servers::Kind;
use beanring_testkit::bench::process::Driver;

const WIDTH: u32 = 1500;
const PANEL_HEIGHT: u32 = 430;
const HEADER_HEIGHT: u32 = 170;
const LEGEND_WIDTH: i32 = 360;
const LEGEND_COLUMNS: usize = 4;
const COLUMNS: usize = 3;
const TEXT: i32 = 17;
/// The length of a dash in a dashed line.
const DASH: i32 = 6;
const INK: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(222, 222, 222);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// A line of a panel.
struct Line {
    kind: Kind,
    points: Vec<(f64, f64)>,
}

/// A plot. Both axes are logarithmic.
struct Panel {
    title: &'static str,
    x_title: &'static str,
    lines: Vec<Line>,
    /// Labels of the horizontal axis.
    ticks: Vec<(f64, String)>,
}

/// Draws everything that has at least two points.
pub fn draw(path: &Path, report: &Report<'_>) -> Result<(), Failure> {
    try_draw(path, report).map_err(|error| Failure::Draw(path.to_owned(), error.to_string()))
}

fn try_draw(path: &Path, report: &Report<'_>) -> Drawn {
    let panels: Vec<Panel> =
        panels(report.results).into_iter().filter(|panel| !panel.lines.is_empty()).collect();
    let lines = panels.len().div_ceil(COLUMNS).max(1);
    let height = HEADER_HEIGHT + PANEL_HEIGHT * lines as u32;
    let root = SVGBackend::new(path, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let (header, body) = root.split_vertically(HEADER_HEIGHT);
    header.draw_text("beanring and other servers", &text(28), (20, 12))?;
    header.draw_text(&report.subtitle(), &text(TEXT), (20, 48))?;
    let areas = body.split_evenly((lines, COLUMNS));
    for (panel, area) in panels.iter().zip(&areas) {
        panel.draw(area)?;
    }
    legend(&header, &report.peers.kinds)?;
    root.present()?;
    Ok(())
}

fn panels(results: &[Outcome]) -> Vec<Panel> {
    let puts = |row: &Row| (row.group == Group::Puts && row.connections == 16).then_some(row.depth);
    let cycles = |row: &Row| (row.group == Group::Cycles && row.connections == 16).then_some(row.depth);
    let tubes = |row: &Row| row.tube_by_job.then_some(row.tubes);
    let us: Metric = |figures| figures.server.cpu_us_per_operation;
    let rate: Metric = |figures| figures.operations_per_s;
    let depth = "operations in flight on each of 16 connections";
    let across = "tubes; 64 connections watch all";
    vec![
        Panel::of(results, "put: server CPU, µs per operation", depth, us, puts),
        Panel::of(results, "put: operations per second", depth, rate, puts),
        Panel::percentiles(results),
        Panel::of(results, "cycle: server CPU, µs per operation", depth, us, cycles),
        Panel::of(results, "cycle: server CPU, µs per operation", across, us, tubes),
        Panel::of(results, "cycle: operations per second", across, rate, tubes),
    ]
}

impl Panel {
    /// Plots `metric` of every server over what `x` returns for a row.
    fn of(
        results: &[Outcome],
        title: &'static str,
        x_title: &'static str,
        metric: Metric,
        x: impl Fn(&Row) -> Option<u32>,
    ) -> Panel {
        let mut points: Vec<(Kind, f64, f64)> = Vec::new();
        let mut ticks = Vec::new();
        for outcome in results {
            let Some(x) = x(&outcome.row) else { continue };
            ticks.push((f64::from(x), x.to_string()));
            points.extend(
                outcome
                    .cells
                    .iter()
                    .filter_map(|cell| Some((cell.kind, f64::from(x), cell.spread(metric)?.median))),
            );
        }
        Panel { title, x_title, lines: lines(points), ticks }
    }

    /// Plots the percentiles of the delivery latency. The last ones are wide apart: each is ten times as rare.
    fn percentiles(results: &[Outcome]) -> Panel {
        const PLACES: [(&str, f64, Metric); 6] = [
            ("50", 2.0, |figures: &Figures| figures.latency_us.p50),
            ("90", 10.0, |figures| figures.latency_us.p90),
            ("99", 100.0, |figures| figures.latency_us.p99),
            ("99.9", 1000.0, |figures| figures.latency_us.p999),
            ("99.99", 10_000.0, |figures| figures.latency_us.p9999),
            ("max", 100_000.0, |figures| figures.latency_us.max),
        ];
        let mut points = Vec::new();
        for outcome in results.iter().filter(|outcome| outcome.row.work == Work::Delivery) {
            for cell in &outcome.cells {
                let at =
                    |&(_, x, metric): &(&str, f64, Metric)| Some((cell.kind, x, cell.spread(metric)?.median));
                points.extend(PLACES.iter().filter_map(at));
            }
        }
        let ticks = PLACES.iter().map(|&(name, x, _)| (x, name.to_owned())).collect();
        let title = "delivery latency at a fixed rate, µs";
        Panel { title, x_title: "percentile", lines: lines(points), ticks }
    }

    fn draw(&self, area: &Area<'_>) -> Drawn {
        let all = || self.lines.iter().flat_map(|line| &line.points);
        let (x_low, x_high) = bounds(all().map(|point| point.0), 1.15);
        let (y_low, y_high) = bounds(all().map(|point| point.1), 1.25);
        area.titled(self.title, text(20))?;
        let (area, _) = area.margin(34, 0, 0, 26).split_vertically(PANEL_HEIGHT - 60);
        let mut chart = ChartBuilder::on(&area)
            .x_label_area_size(58)
            .y_label_area_size(76)
            .build_cartesian_2d((x_low..x_high).log_scale(), (y_low..y_high).log_scale())?;
        let mut axes = chart.configure_mesh();
        // The library would label places where nothing was measured, so labels are drawn here.
        let nothing = |_: &f64| String::new();
        axes.disable_mesh().x_label_formatter(&nothing).y_label_formatter(&nothing);
        axes.set_all_tick_mark_size(0).axis_style(INK);
        axes.x_desc(self.x_title).axis_desc_style(text(TEXT)).draw()?;
        let (left, top) = area.get_base_pixel();
        let pixel = |chart: &Chart<'_, '_>, point: &(f64, f64)| {
            let (across, down) = chart.backend_coord(point);
            (across - left, down - top)
        };
        for (x, name) in &self.ticks {
            let (across, down) = pixel(&chart, &(*x, y_low));
            area.draw_text(name, &text(TEXT).pos(Pos::new(HPos::Center, VPos::Top)), (across, down + 8))?;
        }
        for y in round_numbers(y_low, y_high) {
            chart.draw_series(LineSeries::new([(x_low, y), (x_high, y)], GRID))?;
            let (across, down) = pixel(&chart, &(x_low, y));
            let style = text(TEXT).pos(Pos::new(HPos::Right, VPos::Center));
            area.draw_text(&short(y), &style, (across - 8, down))?;
        }
        for line in &self.lines {
            let (points, style) = (line.points.clone(), color(line.kind).stroke_width(2));
            match gap(line.kind) {
                Some(gap) => chart.draw_series(DashedLineSeries::new(points, DASH, gap, style))?,
                None => chart.draw_series(LineSeries::new(points, style))?,
            };
            for point in &line.points {
                mark(&area, line.kind, pixel(&chart, point))?;
            }
        }
        Ok(())
    }
}

type Logarithmic = LogCoord<f64>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Logarithmic, Logarithmic>>;

fn text(size: i32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}

/// Returns 1, 2, 5, 10 and so on from `low` to `high`, or only powers of ten if there are many.
fn round_numbers(low: f64, high: f64) -> Vec<f64> {
    let steps: &[f64] = if high / low > 300.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let powers = (-6..10).flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)));
    powers.filter(|number| (low..=high).contains(number)).collect()
}

/// Returns the points by server, without servers that have only one.
fn lines(points: Vec<(Kind, f64, f64)>) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for (kind, x, y) in points {
        match lines.iter_mut().find(|line| line.kind == kind) {
            Some(line) => line.points.push((x, y)),
            None => lines.push(Line { kind, points: vec![(x, y)] }),
        }
    }
    lines.retain(|line| line.points.len() > 1);
    lines
}

/// Returns the minimum and the maximum, with some space at both ends.
fn bounds(values: impl Iterator<Item = f64>, room: f64) -> (f64, f64) {
    let (least, most) = values.fold((f64::MAX, f64::MIN), |(least, most), x| (least.min(x), most.max(x)));
    (least / room, most * room)
}

/// Colors of the palette by Okabe and Ito, which are distinct for all kinds of color blindness. A driver and its no-op
/// baseline have the same color.
fn color(kind: Kind) -> RGBColor {
    match kind {
        Kind::Ours(Driver::Epoll) | Kind::Bare(Driver::Epoll) => RGBColor(0, 114, 178),
        Kind::Ours(Driver::Uring) | Kind::Bare(Driver::Uring) => RGBColor(0, 158, 115),
        Kind::Ours(Driver::TokioUring) | Kind::Bare(Driver::TokioUring) => RGBColor(86, 180, 233),
        Kind::Beanstalkd => RGBColor(213, 94, 0),
        Kind::BeanstalkdRs => RGBColor(230, 159, 0),
        Kind::Redis => RGBColor(204, 121, 167),
    }
}

/// Returns the gaps in a line, if it has any.
fn gap(kind: Kind) -> Option<i32> {
    matches!(kind, Kind::Bare(_)).then_some(4)
}

/// Draws a mark around a pixel, so that servers are distinct without colors too.
fn mark(area: &Area<'_>, kind: Kind, (x, y): (i32, i32)) -> Drawn {
    let style = color(kind).filled();
    match kind {
        Kind::Ours(_) => area.draw(&Circle::new((x, y), 5, style))?,
        Kind::Bare(_) => area.draw(&Circle::new((x, y), 3, style))?,
        Kind::Beanstalkd => area.draw(&Rectangle::new([(x - 5, y - 5), (x + 5, y + 5)], style))?,
        Kind::BeanstalkdRs => area.draw(&Cross::new((x, y), 5, style))?,
        Kind::Redis => area.draw(&TriangleMarker::new((x, y), 7, style))?,
    }
    Ok(())
}

fn legend(area: &Area<'_>, kinds: &[Kind]) -> Drawn {
    for (number, &kind) in kinds.iter().enumerate() {
        let x = 20 + LEGEND_WIDTH * (number % LEGEND_COLUMNS) as i32;
        let y = 92 + 28 * (number / LEGEND_COLUMNS) as i32;
        let line = color(kind).stroke_width(2);
        let (dash, step) = gap(kind).map_or((60, 60), |gap| (DASH, (DASH + gap) as usize));
        for begin in (x..x + 60).step_by(step) {
            area.draw(&PathElement::new([(begin, y), ((begin + dash).min(x + 60), y)], line))?;
        }
        mark(area, kind, (x + 30, y))?;
        let name = match kind {
            Kind::Bare(driver) => format!("{} no-op baseline", driver.name()),
            _ => kind.name(),
        };
        area.draw_text(&name, &text(TEXT).pos(Pos::new(HPos::Left, VPos::Center)), (x + 72, y))?;
    }
    Ok(())
}

/// Formats a number for an axis.
fn short(number: f64) -> String {
    match number {
        1e6.. => format!("{}M", number / 1e6),
        1e3.. => format!("{}k", number / 1e3),
        _ => format!("{number}"),
    }
}
