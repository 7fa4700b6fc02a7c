//! Latency and bandwidth against size, as a picture.

use super::operation::Operation;
use super::report::{Measurement, Run};
use super::{count, table};
use plotters::backend::{BitMapBackend, SVGBackend};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::element::DynElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontStyle, register_font};
use std::collections::BTreeMap;
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
const PANEL: u32 = 400;
const TITLE: u32 = 60;
const LEGEND: u32 = 290;
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

/// What a line is of: an operation at a depth and a number of connections.
type Key = (Operation, u32, u32);

/// A line: points of size and value.
struct Line {
    /// Which of the colours, and which of the marks.
    index: usize,
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
    let legend = legend(runs);
    let needed = TITLE + 30 + LEGEND_LINE * legend.len() as u32;
    let size = (WIDTH, (TITLE + 2 * PANEL).max(needed));
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", target.file.display());
    match target.kind {
        Kind::Svg => {
            let mut text = String::new();
            let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
            picture(&root, runs, &legend).map_err(|error| named(&error))?;
            drop(root);
            fs::write(&target.file, text).map_err(|error| named(&error))
        }
        Kind::Png => {
            let mut pixels = vec![0; size.0 as usize * size.1 as usize * 3];
            let root = BitMapBackend::with_buffer(&mut pixels, size).into_drawing_area();
            picture(&root, runs, &legend).map_err(|error| named(&error))?;
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

/// The lines there are, in order, each with its name.
fn legend(runs: &[(&str, &Run)]) -> Vec<(Key, String)> {
    let all = || runs.iter().flat_map(|(_, run)| &run.measurements);
    let mut keys: Vec<_> = all().map(key).collect();
    keys.sort_unstable();
    keys.dedup();
    let differ = |part: fn(&Key) -> u32| keys.iter().any(|key| part(key) != part(&keys[0]));
    let (depths, connections) = (differ(|key| key.1), differ(|key| key.2));
    let name = |key: &Key| {
        let mut name = key.0.to_string();
        if depths {
            name += &format!(", depth {}", key.1);
        }
        if connections {
            name += &format!(", {}", count(key.2.into(), "conn"));
        }
        name
    };
    keys.iter().map(|key| (*key, name(key))).collect()
}

fn key(one: &Measurement) -> Key {
    (one.operation, one.depth, one.connections)
}

/// The points of each line of a run.
fn lines(
    run: &Run,
    legend: &[(Key, String)],
    dashed: bool,
    value: impl Fn(&Measurement) -> f64,
) -> Vec<Line> {
    let mut points: BTreeMap<Key, Vec<(f64, f64)>> = BTreeMap::new();
    for one in &run.measurements {
        let value = value(one);
        // There is no place for nothing on these axes.
        if value > 0.0 {
            points
                .entry(key(one))
                .or_default()
                .push((one.size_bytes as f64, value));
        }
    }
    let with_index = legend.iter().enumerate().filter_map(|(index, (key, _))| {
        let mut points = points.remove(key)?;
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Some(Line {
            index,
            dashed,
            points,
        })
    });
    with_index.collect()
}

type Drawn<T, DB> = Result<T, DrawingAreaErrorKind<<DB as DrawingBackend>::ErrorType>>;

fn picture<DB: DrawingBackend>(
    root: &DrawingArea<DB, Shift>,
    runs: &[(&str, &Run)],
    legend: &[(Key, String)],
) -> Drawn<(), DB> {
    root.fill(&WHITE)?;
    let (head, rest) = root.split_vertically(TITLE);
    title(&head, runs)?;
    let (panels, side) = rest.split_horizontally(WIDTH - LEGEND);
    let panels = panels.split_evenly((2, 1));

    let us = |one: &Measurement, name| one.percentile_ns(name) as f64 / 1e3;
    let mut latency = vec![];
    let mut bandwidth = vec![];
    for (index, (_, run)) in runs.iter().enumerate() {
        latency.extend(lines(run, legend, index > 0, |one| us(one, "50")));
        bandwidth.extend(lines(run, legend, index > 0, |one| {
            one.bytes_per_second / 1e6
        }));
    }
    let styles = if let [(_, run)] = runs {
        latency.extend(lines(run, legend, true, |one| us(one, "99")));
        ["latency: 50%".to_owned(), "latency: 99%".to_owned()]
    } else {
        let name = |index: usize| runs.get(index).map_or("", |(name, _)| name).to_owned();
        [name(0), name(1)]
    };
    panel(&panels[0], "latency, us", &latency)?;
    panel(&panels[1], "bandwidth, MB/s", &bandwidth)?;
    explain(&side, legend, &styles)
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
        let colour = COLOURS[line.index % COLOURS.len()];
        let points = line.points.iter().copied();
        if line.dashed {
            chart.draw_series(DashedLineSeries::new(
                points.clone(),
                6,
                4,
                colour.stroke_width(1),
            ))?;
        } else {
            chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?;
        }
        chart.draw_series(points.map(|point| mark(point, line.index, line.dashed)))?;
    }
    Ok(())
}

/// The mark of a line: colours come again with another one.
fn mark<DB: DrawingBackend, C: Clone + 'static>(
    at: C,
    index: usize,
    hollow: bool,
) -> DynElement<'static, DB, C> {
    let colour = COLOURS[index % COLOURS.len()];
    let style = if hollow {
        colour.stroke_width(1)
    } else {
        colour.filled()
    };
    match index / COLOURS.len() % 3 {
        0 => Circle::new(at, 3, style).into_dyn(),
        1 => TriangleMarker::new(at, 5, style).into_dyn(),
        _ => Cross::new(at, 4, colour.stroke_width(2)).into_dyn(),
    }
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
    let apart = span.powf(1.0 / 13.0);
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
    legend: &[(Key, String)],
    styles: &[String; 2],
) -> Drawn<(), DB> {
    let (left, text) = (8, 52);
    let mut y = 20;
    let mut entry = |name: &str, index: Option<usize>, dashed: bool| -> Drawn<(), DB> {
        let colour = index.map_or(RGBColor(60, 60, 60), |index| COLOURS[index % COLOURS.len()]);
        let step = if dashed { 10 } else { 36 };
        let width = if dashed { 1 } else { 2 };
        for start in (0..36).step_by(step) {
            let end = if dashed { start + 6 } else { 36 };
            let points = vec![(left + start, y), (left + end, y)];
            area.draw(&PathElement::new(points, colour.stroke_width(width)))?;
        }
        if let Some(index) = index {
            area.draw(&mark((left + 18, y), index, false))?;
        }
        let style = font(13).pos(Pos::new(HPos::Left, VPos::Center));
        area.draw(&Text::new(name.to_owned(), (text, y), style))?;
        y += LEGEND_LINE as i32;
        Ok(())
    };
    entry(&styles[0], None, false)?;
    entry(&styles[1], None, true)?;
    for (index, (_, name)) in legend.iter().enumerate() {
        entry(name, Some(index), false)?;
    }
    Ok(())
}
