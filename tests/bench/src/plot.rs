//! Charts of a record as SVG. The record says what to draw (`scripts/bench-report` decides that); here is how.

use crate::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde::Deserialize;
use std::path::Path;

/// A chart of the record's list `charts`.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Chart {
    /// Horizontal bars in groups, from 0 on, with the spread as a thin line.
    Bars {
        file: String,
        title: String,
        foot: String,
        /// A line across, where a value has a meaning of its own.
        mark: Option<f64>,
        series: Vec<String>,
        groups: Vec<Group>,
    },
    /// Lines over a number.
    Lines { file: String, title: String, foot: String, x: String, panels: Vec<Panel> },
}

#[derive(Debug, Deserialize)]
struct Group {
    label: String,
    bars: Vec<Bar>,
}

#[derive(Debug, Deserialize)]
struct Bar {
    series: usize,
    value: f64,
    low: f64,
    high: f64,
    text: String,
}

#[derive(Debug, Deserialize)]
struct Panel {
    title: String,
    lines: Vec<Line>,
}

#[derive(Debug, Deserialize)]
struct Line {
    label: String,
    series: usize,
    points: Vec<(f64, f64)>,
}

const COLOURS: [RGBColor; 4] =
    [RGBColor(0x1f, 0x6f, 0x8b), RGBColor(0xb0, 0xb0, 0xb0), RGBColor(0x6f, 0xb3, 0xc9), RGBColor(0xd9, 0x8e, 0x32)];
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const FAINT: RGBColor = RGBColor(0x66, 0x66, 0x66);
const WIDTH: u32 = 760;

fn style(size: u32, colour: &'static RGBColor, h: HPos, v: VPos) -> TextStyle<'static> {
    // plotters takes the height of a line for the size and writes 1.24 times less.
    TextStyle::from(("sans-serif", f64::from(size) * 1.24)).color(colour).pos(Pos::new(h, v))
}

/// Draws all charts of a record into a folder and returns their names.
pub fn all(record: &serde_json::Value, folder: &Path) -> Result<Vec<String>> {
    let charts: Vec<Chart> = Deserialize::deserialize(&record["charts"])?;
    charts.iter().map(|chart| draw(chart, folder)).collect()
}

fn draw(chart: &Chart, folder: &Path) -> Result<String> {
    match chart {
        Chart::Bars { file, title, foot, mark, series, groups } => {
            bars(&folder.join(file), title, foot, *mark, series, groups)?;
            Ok(file.clone())
        }
        Chart::Lines { file, title, foot, x, panels } => {
            lines(&folder.join(file), title, foot, x, panels)?;
            Ok(file.clone())
        }
    }
}

fn bars(path: &Path, title: &str, foot: &str, mark: Option<f64>, series: &[String], groups: &[Group]) -> Result<()> {
    const BAR: i32 = 15;
    const GAP: i32 = 12;
    const LEFT: i32 = 270;
    let top = 60;
    let body: i32 = groups.iter().map(|g| g.bars.len() as i32 * BAR + GAP).sum();
    let height = top + body + 34;
    let root = SVGBackend::new(path, (WIDTH, height as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    root.draw(&Text::new(title.to_owned(), (16, 12), style(16, &INK, HPos::Left, VPos::Top)))?;
    let mut x = 16;
    for (name, colour) in series.iter().zip(COLOURS).filter(|(name, _)| !name.is_empty()) {
        root.draw(&Rectangle::new([(x, 36), (x + 11, 47)], colour.filled()))?;
        root.draw(&Text::new(name.clone(), (x + 16, 42), style(12, &INK, HPos::Left, VPos::Center)))?;
        x += 30 + 7 * name.chars().count() as i32;
    }
    let most = groups.iter().flat_map(|g| &g.bars).map(|b| b.high).fold(mark.unwrap_or(0.0), f64::max).max(f64::MIN_POSITIVE);
    let room = f64::from(WIDTH as i32 - LEFT - 150);
    let at = |value: f64| LEFT + (value / most * room).round() as i32;
    let mut y = top;
    for group in groups {
        let middle = y + group.bars.len() as i32 * BAR / 2;
        root.draw(&Text::new(group.label.clone(), (LEFT - 10, middle), style(12, &INK, HPos::Right, VPos::Center)))?;
        for bar in &group.bars {
            root.draw(&Rectangle::new([(LEFT, y + 1), (at(bar.value), y + BAR - 1)], COLOURS[bar.series % COLOURS.len()].filled()))?;
            root.draw(&PathElement::new([(at(bar.low), y + BAR / 2), (at(bar.high), y + BAR / 2)], INK.mix(0.6)))?;
            let text = style(11, &INK, HPos::Left, VPos::Center);
            root.draw(&Text::new(bar.text.clone(), (at(bar.value.max(bar.high)) + 6, y + BAR / 2), text))?;
            y += BAR;
        }
        y += GAP;
    }
    if let Some(mark) = mark {
        root.draw(&PathElement::new([(at(mark), top - 4), (at(mark), top + body - GAP + 4)], INK.stroke_width(1)))?;
    }
    root.draw(&Text::new(foot.to_owned(), (16, height - 14), style(11, &FAINT, HPos::Left, VPos::Center)))?;
    root.present()?;
    Ok(())
}

fn lines(path: &Path, title: &str, foot: &str, x: &str, panels: &[Panel]) -> Result<()> {
    let height = 330;
    let root = SVGBackend::new(path, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    root.draw(&Text::new(title.to_owned(), (16, 12), style(16, &INK, HPos::Left, VPos::Top)))?;
    root.draw(&Text::new(foot.to_owned(), (16, height as i32 - 12), style(11, &FAINT, HPos::Left, VPos::Center)))?;
    let middle = root.margin(36, 24, 8, 8);
    for (area, panel) in middle.split_evenly((1, panels.len().max(1))).iter().zip(panels) {
        let points = || panel.lines.iter().flat_map(|l| &l.points);
        let most_x = points().map(|p| p.0).fold(1.0, f64::max);
        let most_y = points().map(|p| p.1).fold(f64::MIN_POSITIVE, f64::max) * 1.1;
        let mut chart = ChartBuilder::on(area)
            .caption(&panel.title, ("sans-serif", 13).into_font().color(&INK))
            .margin(6)
            .x_label_area_size(34)
            .y_label_area_size(40)
            .build_cartesian_2d(0.0..most_x * 1.02, 0.0..most_y)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(WHITE)
            .x_labels(4)
            .y_labels(5)
            .x_desc(x)
            .x_label_formatter(&|v| format!("{v:.0}"))
            .y_label_formatter(&|v| format!("{v:.0}"))
            .label_style(("sans-serif", 11).into_font().color(&FAINT))
            .draw()?;
        for line in &panel.lines {
            let colour = COLOURS[line.series % COLOURS.len()];
            chart.draw_series(LineSeries::new(line.points.iter().copied(), colour.stroke_width(2)))?;
            chart.draw_series(line.points.iter().map(|&p| Circle::new(p, 3, colour.filled())))?;
            if let Some(&last) = line.points.last() {
                let text = style(11, &INK, HPos::Right, VPos::Bottom);
                chart.draw_series([Text::new(line.label.clone(), (last.0, last.1 + most_y * 0.015), text)])?;
            }
        }
    }
    root.present()?;
    Ok(())
}
