//! Results as tables for people.

use super::count;
use super::operation::Operation;
use super::report::Measurement;
use super::side::Side;
use std::fmt::Write as _;

/// Three digits that count, no more: `1.23e-3`, `0.123`, `1.23`, `12.3`, `123`, `1234`.
#[must_use]
pub fn number(value: f64) -> String {
    match value {
        _ if !value.is_finite() => "-".into(),
        0.0 => "0".into(),
        _ if value < 0.00995 => format!("{value:.2e}"),
        _ if value < 0.09995 => format!("{value:.4}"),
        _ if value < 0.9995 => format!("{value:.3}"),
        _ if value < 9.995 => format!("{value:.2}"),
        _ if value < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// With a prefix, so that it stays short: `12.3k`.
#[must_use]
pub fn short(value: f64) -> String {
    match value {
        _ if value < 9_995.0 => number(value),
        _ if value < 999_500.0 => format!("{}k", number(value / 1e3)),
        _ => format!("{}M", number(value / 1e6)),
    }
}

/// As sizes are given: `4K`.
#[must_use]
pub fn size(bytes: u64) -> String {
    for (unit, name) in [(1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")] {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{}{name}", bytes / unit);
        }
    }
    bytes.to_string()
}

/// With the unit.
#[must_use]
pub fn bytes(number: u64) -> String {
    if number < 1 << 10 || !number.is_multiple_of(1 << 10) {
        count(number, "byte")
    } else {
        size(number)
    }
}

/// The head of an operation's table, which is as wide as a terminal.
#[must_use]
pub fn head(operation: Operation, client: &Side) -> String {
    let about = operation.latency_of();
    let mut text = format!("{operation}: latency in us, {about}\n");
    if let Some(instead) = client.stand_in(operation) {
        let _ = writeln!(text, "({instead})");
    }
    text + &columns(&HEAD.map(str::to_owned), &WIDTHS) + "\n"
}

const HEAD: [&str; 11] = [
    "size", "depth", "conns", "op/s", "MB/s", "mean", "50%", "99%", "99.9%", "99.99%", "max",
];

const WIDTHS: [usize; 11] = [5, 6, 6, 8, 8, 7, 7, 7, 7, 7, 7];

/// Columns of these widths. One that holds more is wider, and never touches the one before.
#[must_use]
pub fn columns<const N: usize>(columns: &[String; N], widths: &[usize; N]) -> String {
    let mut text = String::new();
    for (column, width) in columns.iter().zip(widths) {
        let space = if text.is_empty() { "" } else { " " };
        let width = width - space.len();
        let _ = write!(text, "{space}{column:>width$}");
    }
    text
}

/// The line of a measurement.
#[must_use]
pub fn line(one: &Measurement) -> String {
    let us = |ns: f64| short(ns / 1e3);
    let percentile = |name| us(one.percentile_ns(name) as f64);
    let mut remark = String::new();
    if !one.complete {
        remark += "  cut";
    }
    if let Some(checked) = one
        .checked
        .as_ref()
        .filter(|checked| checked.mismatches > 0)
    {
        let _ = write!(
            remark,
            "  {} of {} differ",
            checked.mismatches, checked.operations
        );
    }
    let values = [
        size(one.size_bytes),
        one.depth.to_string(),
        one.connections.to_string(),
        short(one.operations_per_second),
        one.bandwidth()
            .map_or_else(|| "-".into(), |bytes| short(bytes / 1e6)),
        us(one.latency.mean_ns),
        percentile("50"),
        percentile("99"),
        percentile("99.9"),
        percentile("99.99"),
        us(one.latency.max_ns as f64),
    ];
    columns(&values, &WIDTHS) + &remark + "\n"
}
