//! Latency and bandwidth against size, as a picture.

use super::operation::Operation;
use super::report::{Measurement, Run};
use super::{count, table};
use plotters::backend::{BitMapBackend, SVGBackend};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontStyle, register_font};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::BufWriter;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A file, and what kind of picture it is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    file: PathBuf,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Svg,
    Png,
}

impl Target {
    /// # Errors
    /// If the name does not tell the kind.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file = PathBuf::from(text);
        let kind = match file.extension().and_then(|extension| extension.to_str()) {
            Some("svg") => Kind::Svg,
            Some("png") => Kind::Png,
            _ => return Err("the name ends neither in .svg nor in .png".into()),
        };
        Ok(Self { file, kind })
    }

    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }
}

const WIDTH: u32 = 1100;
/// Each operation has a row of two charts, under its name.
const ROW: u32 = 330;
const NAME: u32 = 26;
const TITLE: u32 = 60;
const LEGEND: u32 = 190;
const LEGEND_LINE: u32 = 20;
const FONT: &str = "sans-serif";

/// Ten that can be told apart.
const COLOURS: [RGBColor; 10] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
    RGBColor(255, 127, 14),
    RGBColor(23, 150, 170),
    RGBColor(140, 86, 75),
    RGBColor(227, 119, 194),
    RGBColor(110, 110, 110),
    RGBColor(160, 160, 20),
];

/// What a line of a chart is of: a depth and a number of connections.
type Key = (u32, u32);

/// A line: points of size and value.
struct Line {
    colour: RGBColor,
    dashed: bool,
    points: Vec<(f64, f64)>,
}

/// Draws runs over each other: of one the median and the 99th percentile of latency, of two the
/// medians, those of the second dashed. Each has a name.
///
/// # Errors
/// If the file can't be written.
pub fn draw(target: &Target, runs: &[(&str, &Run)]) -> Result<(), String> {
    // A system without fonts has this one all the same.
    register_font(FONT, FontStyle::Normal, dejavu::sans::regular())
        .map_err(|_| "the font is broken".to_owned())?;
    let all = || runs.iter().flat_map(|(_, run)| &run.measurements);
    let operations: BTreeSet<_> = all().map(|one| one.operation).collect();
    let operations: Vec<_> = operations.into_iter().collect();
    let keys: BTreeSet<_> = all().map(key).collect();
    let keys: Vec<_> = keys.into_iter().collect();
    let size = (WIDTH, TITLE + ROW * operations.len().max(1) as u32);
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", target.file.display());
    match target.kind {
        Kind::Svg => {
            let mut text = String::new();
            let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
            picture(&root, runs, &operations, &keys).map_err(|error| named(&error))?;
            drop(root);
            fs::write(&target.file, text).map_err(|error| named(&error))
        }
        Kind::Png => {
            let mut pixels = vec![0; size.0 as usize * size.1 as usize * 3];
            let root = BitMapBackend::with_buffer(&mut pixels, size).into_drawing_area();
            picture(&root, runs, &operations, &keys).map_err(|error| named(&error))?;
            drop(root);
            let file = File::create(&target.file).map_err(|error| named(&error))?;
            let mut encoder = png::Encoder::new(BufWriter::new(file), size.0, size.1);
            encoder.set_color(png::ColorType::Rgb);
            let written = encoder.write_header().and_then(|mut writer| {
                writer
                    .write_image_data(&pixels)
                    .and_then(|()| writer.finish())
            });
            written.map_err(|error| named(&error))
        }
    }
}

fn key(one: &Measurement) -> Key {
    (one.depth, one.connections)
}

/// The lines of an operation in a run, of as many keys as there are colours.
fn lines(
    run: &Run,
    operation: Operation,
    keys: &[Key],
    dashed: bool,
    value: impl Fn(&Measurement) -> Option<f64>,
) -> Vec<Line> {
    let line = |(of, colour): (&Key, &RGBColor)| {
        let of_line = |one: &&Measurement| one.operation == operation && key(one) == *of;
        let point = |one: &Measurement| Some((one.size_bytes as f64, value(one)?));
        let all = run.measurements.iter().filter(of_line).filter_map(point);
        // There is no place for nothing on these axes.
        let mut points: Vec<_> = all.filter(|point| point.1 > 0.0).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        (!points.is_empty()).then_some(Line {
            colour: *colour,
            dashed,
            points,
        })
    };
    keys.iter().zip(&COLOURS).filter_map(line).collect()
}

type Drawn<T, DB> = Result<T, DrawingAreaErrorKind<<DB as DrawingBackend>::ErrorType>>;

fn picture<DB: DrawingBackend>(
    root: &DrawingArea<DB, Shift>,
    runs: &[(&str, &Run)],
    operations: &[Operation],
    keys: &[Key],
) -> Drawn<(), DB> {
    root.fill(&WHITE)?;
    let (head, rest) = root.split_vertically(TITLE);
    title(&head, runs)?;
    let (rows, side) = rest.split_horizontally(WIDTH - LEGEND);
    let styles = if let [_] = runs {
        ["latency: 50%".to_owned(), "latency: 99%".to_owned()]
    } else {
        let name = |index: usize| runs.get(index).map_or("", |(name, _)| name).to_owned();
        [name(0), name(1)]
    };
    explain(&side, keys, &styles)?;

    let us = |one: &Measurement, name| Some(one.percentile_ns(name) as f64 / 1e3);
    for (row, operation) in rows
        .split_evenly((operations.len().max(1), 1))
        .iter()
        .zip(operations)
    {
        let mut latency = vec![];
        let mut bandwidth = vec![];
        for (index, (_, run)) in runs.iter().enumerate() {
            let of = (*operation, index > 0);
            latency.extend(lines(run, of.0, keys, of.1, |one| us(one, "50")));
            bandwidth.extend(lines(run, of.0, keys, of.1, |one| {
                one.bandwidth().map(|bytes| bytes / 1e6)
            }));
        }
        if let [(_, run)] = runs {
            latency.extend(lines(run, *operation, keys, true, |one| us(one, "99")));
        }
        let (name, charts) = row.split_vertically(NAME);
        name.draw(&Text::new(operation.name(), (24, 6), font(17)))?;
        let charts = charts.split_evenly((1, 2));
        panel(&charts[0], "latency, us", &latency)?;
        if operation.moves_bytes() {
            panel(&charts[1], "bandwidth, MB/s", &bandwidth)?;
        }
    }
    Ok(())
}

fn font(size: u32) -> TextStyle<'static> {
    TextStyle::from((FONT, size).into_font()).color(&RGBColor(40, 40, 40))
}

fn title<DB: DrawingBackend>(
    area: &DrawingArea<DB, Shift>,
    runs: &[(&str, &Run)],
) -> Drawn<(), DB> {
    let middle = |style: TextStyle<'static>| style.pos(Pos::new(HPos::Center, VPos::Top));
    let text = match runs {
        [(first, _), (second, _)] => format!("{first} (solid) and {second} (dashed)"),
        _ => "Latency and bandwidth by size".to_owned(),
    };
    let centre = (WIDTH / 2) as i32;
    area.draw(&Text::new(text, (centre, 12), middle(font(20))))?;
    let about = |(name, run): &(&str, &Run)| {
        let side = &run.client;
        let prefix = if name.is_empty() {
            String::new()
        } else {
            format!("{name}: ")
        };
        let wait = match run.parameters.completions_by.as_str() {
            "events" => ", by events",
            _ => "",
        };
        format!(
            "{prefix}{} on {}{wait}, {}",
            side.library(),
            side.device,
            date(&run.date)
        )
    };
    let about: Vec<_> = runs.iter().map(about).collect();
    area.draw(&Text::new(about.join("; "), (centre, 38), middle(font(12))))
}

/// The day of a date.
fn date(date: &str) -> &str {
    date.split('T').next().unwrap_or(date)
}

/// One chart, with logarithms on both axes.
fn panel<DB: DrawingBackend>(
    area: &DrawingArea<DB, Shift>,
    what: &str,
    lines: &[Line],
) -> Drawn<(), DB> {
    let points = || lines.iter().flat_map(|line| &line.points);
    if points().next().is_none() {
        return area.draw(&Text::new("nothing was measured", (80, 80), font(14)));
    }
    let sizes = range(points().map(|point| point.0), 1.3);
    let values = range(points().map(|point| point.1), 1.2);
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .x_label_area_size(45)
        .y_label_area_size(80)
        .build_cartesian_2d(
            Axis {
                range: sizes,
                marked: sizes_marked(points().map(|point| point.0)),
            },
            Axis {
                range: values.clone(),
                marked: values_marked(&values),
            },
        )?;
    chart
        .configure_mesh()
        .bold_line_style(RGBColor(220, 220, 220))
        .light_line_style(TRANSPARENT)
        .axis_style(RGBColor(90, 90, 90))
        .x_desc("size, bytes")
        .y_desc(what)
        .axis_desc_style(font(15))
        .label_style(font(13))
        .x_label_formatter(&|size| table::size(size.round() as u64))
        .y_label_formatter(&|value| round(*value))
        .draw()?;
    for line in lines {
        let points = line.points.iter().copied();
        let (colour, thin) = (line.colour, line.colour.stroke_width(1));
        let marks = points.clone();
        if line.dashed {
            chart.draw_series(DashedLineSeries::new(points, 6, 4, thin))?;
            chart.draw_series(marks.map(|point| Circle::new(point, 3, thin)))?;
        } else {
            chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
            chart.draw_series(marks.map(|point| Circle::new(point, 3, colour.filled())))?;
        }
    }
    Ok(())
}

/// An axis of logarithms.
struct Axis {
    range: Range<f64>,
    /// The values that have a line and a name.
    marked: Vec<f64>,
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (start, end): (i32, i32)) -> i32 {
        let part = (value / self.range.start).ln() / (self.range.end / self.range.start).ln();
        start + (f64::from(end - start) * part).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() {
            vec![]
        } else {
            self.marked.clone()
        }
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

/// From the least to the most, and some more on both sides: `more` times, or what it takes.
fn range(values: impl Iterator<Item = f64>, more: f64) -> Range<f64> {
    let (least, most) = values.fold((f64::MAX, f64::MIN), |(least, most), value| {
        (least.min(value), most.max(value))
    });
    let more = more.max((most / least).powf(0.03));
    least / more..most * more
}

/// The sizes that are named on the axis: as many of those measured as there is room for.
fn sizes_marked(sizes: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut sizes: Vec<_> = sizes.collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    let span = sizes
        .last()
        .zip(sizes.first())
        .map_or(1.0, |(last, first)| last / first);
    let apart = span.powf(1.0 / 8.0);
    let mut marked: Vec<f64> = vec![];
    for size in sizes {
        if marked.last().is_none_or(|last| size / last >= apart) {
            marked.push(size);
        }
    }
    marked
}

/// The values that are named on the axis, round ones: as few to a power of ten as will do.
fn values_marked(range: &Range<f64>) -> Vec<f64> {
    const CHOICES: [&[f64]; 4] = [
        &[1.0],
        &[1.0, 2.0, 5.0],
        &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0],
        &[
            1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0,
        ],
    ];
    let powers = range.start.log10().floor() as i32..=range.end.log10().ceil() as i32;
    let all = |steps: &&[f64]| -> Vec<f64> {
        let of = |power| steps.iter().map(move |step| step * 10f64.powi(power));
        powers
            .clone()
            .flat_map(of)
            .filter(|value| range.contains(value))
            .collect()
    };
    let mut choices = CHOICES.iter().map(all);
    let enough = choices.find(|marked| marked.len() >= 4);
    enough.unwrap_or_else(|| all(&CHOICES[CHOICES.len() - 1]))
}

/// A round value in as few characters as it takes.
fn round(value: f64) -> String {
    let (value, unit) = match value {
        _ if value > 9.99e5 => (value / 1e6, "M"),
        _ if value > 9.99e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    // Powers of ten are not exact.
    let text = format!("{value:.6}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Which line is which.
fn explain<DB: DrawingBackend>(
    area: &DrawingArea<DB, Shift>,
    keys: &[Key],
    styles: &[String; 2],
) -> Drawn<(), DB> {
    const DARK: RGBColor = RGBColor(60, 60, 60);
    let (left, text) = (4, 48);
    let mut y = NAME as i32;
    let mut entry = |name: &str, colour: RGBColor, dashed: bool| -> Drawn<(), DB> {
        let (step, length, width) = if dashed { (10, 6, 1) } else { (36, 36, 2) };
        for start in (left..left + 36).step_by(step) {
            let points = vec![(start, y), (start + length, y)];
            area.draw(&PathElement::new(points, colour.stroke_width(width)))?;
        }
        let filled = if dashed {
            colour.stroke_width(1)
        } else {
            colour.filled()
        };
        area.draw(&Circle::new((left + 18, y), 3, filled))?;
        area.draw(&Text::new(name.to_owned(), (text, y), beside()))?;
        y += LEGEND_LINE as i32;
        Ok(())
    };
    entry(&styles[0], DARK, false)?;
    entry(&styles[1], DARK, true)?;
    let connections = keys.iter().any(|key| key.1 != keys[0].1);
    for (key, colour) in keys.iter().zip(COLOURS) {
        let mut name = format!("depth {}", key.0);
        if connections {
            name += &format!(", {}", count(key.1.into(), "conn"));
        }
        entry(&name, colour, false)?;
    }
    if let Some(more @ 1..) = keys.len().checked_sub(COLOURS.len()) {
        let more = format!("{more} more, not drawn");
        area.draw(&Text::new(more, (left, y), beside()))?;
    }
    Ok(())
}

/// Of text beside a line of the legend.
fn beside() -> TextStyle<'static> {
    font(13).pos(Pos::new(HPos::Left, VPos::Center))
}
