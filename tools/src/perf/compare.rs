//! Two runs beside each other.

use super::report::{Measurement, Run};
use super::{arguments, plot, table};
use std::fmt::Write as _;
use std::path::Path;

/// Compares two files, and gives what is to be shown.
///
/// # Errors
/// If one of them can't be read, they have nothing in common, or the plot can't be written.
pub fn run(arguments: &arguments::Compare) -> Result<String, String> {
    let mut runs = [Run::read(&arguments.first)?, Run::read(&arguments.second)?];
    let names = match arguments.names.as_deref() {
        Some([first, second]) => [first.clone(), second.clone()],
        _ => [stem(&arguments.first), stem(&arguments.second)],
    };
    let text = table(&names, &runs)?;
    if let Some(target) = &arguments.plot {
        // What only one of them has can't be compared.
        let [first, second] = &mut runs;
        let among = |all: &[Measurement], one: &Measurement| all.iter().any(|b| same(one, b));
        first
            .measurements
            .retain(|one| among(&second.measurements, one));
        second
            .measurements
            .retain(|one| among(&first.measurements, one));
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

/// Whether both are of the same.
fn same(a: &Measurement, b: &Measurement) -> bool {
    let of = |one: &Measurement| (one.operation, one.size_bytes, one.depth, one.connections);
    of(a) == of(b)
}

/// What both have measured, with what the second has for each of the first.
fn table(names: &[String; 2], runs: &[Run; 2]) -> Result<String, String> {
    let [first, second] = runs;
    let pairs: Vec<_> = first
        .measurements
        .iter()
        .filter_map(|a| {
            second
                .measurements
                .iter()
                .find(|b| same(a, b))
                .map(|b| (a, b))
        })
        .collect();
    if pairs.is_empty() {
        return Err("the two have no measurement in common".into());
    }
    let mut text = String::new();
    for (place, name, run) in [("first", &names[0], first), ("second", &names[1], second)] {
        let (date, side) = (&run.date, &run.client);
        let (library, device, host) = (side.library(), &side.device, &side.host);
        let _ = writeln!(
            text,
            "{place:<6}  {name}: {date}, {library} on {device}, {host}"
        );
    }
    for difference in differences(first, second) {
        let _ = writeln!(text, "They differ in {difference}.");
    }
    text.push_str(
        "Ratios are of the second to the first: less is better of latency, here the median (50%) and\n\
         the 99th percentile (99%), and more of bandwidth (MB/s).\n",
    );

    let mut last = None;
    for (a, b) in &pairs {
        if last != Some(a.operation) {
            last = Some(a.operation);
            let _ = write!(
                text,
                "\n{}: latency in us\n{}\n",
                a.operation,
                table::columns(&HEAD.map(str::to_owned), &WIDTHS)
            );
        }
        let median = |one: &Measurement| one.percentile_ns("50") as f64;
        let late = |one: &Measurement| one.percentile_ns("99") as f64;
        let both = |a: f64, b: f64| format!("{} -> {}", table::short(a), table::short(b));
        let bandwidth = |one: &Measurement| one.bandwidth().unwrap_or(f64::NAN) / 1e6;
        let values = [
            table::size(a.size_bytes),
            a.depth.to_string(),
            a.connections.to_string(),
            both(median(a) / 1e3, median(b) / 1e3),
            table::number(median(b) / median(a)),
            table::number(late(b) / late(a)),
            both(bandwidth(a), bandwidth(b)),
            table::number(bandwidth(b) / bandwidth(a)),
        ];
        let line = table::columns(&values, &WIDTHS);
        let cut = match (a.complete, b.complete) {
            (true, true) => "",
            (false, true) => "  first cut",
            (true, false) => "  second cut",
            (false, false) => "  both cut",
        };
        let _ = writeln!(text, "{line}{cut}");
    }
    let left = first.measurements.len() + second.measurements.len() - 2 * pairs.len();
    if left > 0 {
        let _ = writeln!(text, "\nOf the measurements {left} are in one run only.");
    }
    Ok(text)
}

const HEAD: [&str; 8] = [
    "size",
    "depth",
    "conns",
    "50%",
    "ratio",
    "99%: ratio",
    "MB/s",
    "ratio",
];

const WIDTHS: [usize; 8] = [5, 6, 6, 18, 8, 11, 18, 8];

/// What was done otherwise, and so may be why the figures differ.
fn differences(first: &Run, second: &Run) -> Vec<String> {
    let (a, b) = (&first.parameters, &second.parameters);
    let shown = |value: Option<f64>| value.map_or("none".into(), |value| value.to_string());
    // What one of them does not tell is no difference.
    let told = |a: Option<bool>, b: Option<bool>| {
        a.zip(b)
            .map_or_else(Default::default, |(a, b)| (a.to_string(), b.to_string()))
    };
    let flush = told(first.client.native_flush, second.client.native_flush);
    let atomic_write = told(
        first.client.native_atomic_write,
        second.client.native_atomic_write,
    );
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
        (
            "--server-polls",
            a.server_polls.to_string(),
            b.server_polls.to_string(),
        ),
        ("--check", a.check.to_string(), b.check.to_string()),
        ("whether flushes are native", flush.0, flush.1),
        (
            "whether atomic writes are native",
            atomic_write.0,
            atomic_write.1,
        ),
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
