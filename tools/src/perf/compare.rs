//! Two runs beside each other.

use super::report::{Measurement, Run};
use super::{arguments, plot, table};
use std::path::Path;

/// Compares two files, and gives what is to be shown.
///
/// # Errors
/// If one of them can't be read, they have nothing in common, or the plot can't be written.
pub fn run(arguments: &arguments::Compare) -> Result<String, String> {
    let runs = [Run::read(&arguments.first)?, Run::read(&arguments.second)?];
    let names = match arguments.names.as_deref() {
        Some([first, second]) => [first.clone(), second.clone()],
        _ => [stem(&arguments.first), stem(&arguments.second)],
    };
    let text = table(&names, &runs)?;
    if let Some(target) = &arguments.plot {
        plot::draw(target, &[(&names[0], &runs[0]), (&names[1], &runs[1])])?;
    }
    Ok(text)
}

fn stem(file: &Path) -> String {
    file.file_stem()
        .unwrap_or(file.as_os_str())
        .to_string_lossy()
        .into_owned()
}

/// What both have measured, with what the second has for each of the first.
fn table(names: &[String; 2], runs: &[Run; 2]) -> Result<String, String> {
    let [first, second] = runs;
    let same = |a: &&Measurement, b: &Measurement| {
        let of = |one: &Measurement| (one.operation, one.size_bytes, one.depth, one.connections);
        of(a) == of(b)
    };
    let pairs: Vec<_> = first
        .measurements
        .iter()
        .filter_map(|a| {
            second
                .measurements
                .iter()
                .find(|b| same(&a, b))
                .map(|b| (a, b))
        })
        .collect();
    if pairs.is_empty() {
        return Err("the two have no measurement in common".into());
    }
    let mut text = String::new();
    for (index, run) in runs.iter().enumerate() {
        text.push_str(&format!(
            "{} {}: {}, {} on {}, {}\n",
            if index == 0 { "first " } else { "second" },
            names[index],
            run.date,
            run.client.library(),
            run.client.device,
            run.client.host
        ));
    }
    for difference in differences(first, second) {
        text.push_str(&format!("They differ in {difference}\n"));
    }
    text.push_str("Ratios are of the second to the first: of latency less than 1 is better, of bandwidth more.\n");

    let mut last = None;
    for (a, b) in &pairs {
        if last != Some(a.operation) {
            last = Some(a.operation);
            text.push_str(&format!(
                "\n{}: latency in us\n{:>5} {:>5} {:>5} {:>17} {:>6} {:>6} {:>17} {:>6}\n",
                a.operation, "size", "depth", "conns", "50%", "ratio", "99%", "MB/s", "ratio"
            ));
        }
        let median = |one: &Measurement| one.percentile_ns("50") as f64;
        let ratio = |a: f64, b: f64| {
            if a > 0.0 {
                format!("{:.2}", b / a)
            } else {
                "-".into()
            }
        };
        let both = |a: f64, b: f64| format!("{} > {}", table::number(a), table::number(b));
        let late = |one: &Measurement| one.percentile_ns("99") as f64;
        text.push_str(&format!(
            "{:>5} {:>5} {:>5} {:>17} {:>6} {:>6} {:>17} {:>6}\n",
            table::size(a.size_bytes),
            a.depth,
            a.connections,
            both(median(a) / 1e3, median(b) / 1e3),
            ratio(median(a), median(b)),
            ratio(late(a), late(b)),
            both(a.bytes_per_second / 1e6, b.bytes_per_second / 1e6),
            ratio(a.bytes_per_second, b.bytes_per_second),
        ));
    }
    let left = first.measurements.len() + second.measurements.len() - 2 * pairs.len();
    if left > 0 {
        text.push_str(&format!(
            "\nOf the measurements {left} are in one run only.\n"
        ));
    }
    Ok(text)
}

/// What was done otherwise, and so may be why the figures differ.
fn differences(first: &Run, second: &Run) -> Vec<String> {
    let (a, b) = (&first.parameters, &second.parameters);
    let shown = |value: Option<f64>| value.map_or("none".into(), |value| value.to_string());
    let pairs = [
        (
            "how completions are taken",
            a.completions_by.clone(),
            b.completions_by.clone(),
        ),
        ("--rate", shown(a.rate_per_second), shown(b.rate_per_second)),
        (
            "--signal-every",
            a.signal_every.to_string(),
            b.signal_every.to_string(),
        ),
        ("--check", a.check.to_string(), b.check.to_string()),
        (
            "the client's host",
            first.client.host.clone(),
            second.client.host.clone(),
        ),
        (
            "the server's host",
            first.server.host.clone(),
            second.server.host.clone(),
        ),
        (
            "the client's kernel",
            first.client.kernel.clone(),
            second.client.kernel.clone(),
        ),
    ];
    let differ = pairs.into_iter().filter(|(_, a, b)| a != b);
    differ
        .map(|(what, a, b)| format!("{what}: {a}, {b}"))
        .collect()
}
