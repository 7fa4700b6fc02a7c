//! What a run has come to, as it is written down: with all that is needed to do it again.

use super::measure::{Limit, Method, Sample};
use super::operation::Operation;
use super::pattern::Checked;
use super::plan::Plan;
use super::side::Side;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

/// What a file of this kind says of itself.
pub const FORMAT: &str = "rpma-perf 1";
/// The percentiles that are shown.
pub const PERCENTILES: [&str; 5] = ["50", "90", "99", "99.9", "99.99"];

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub format: String,
    /// Of the tool.
    pub version: String,
    /// When it began, in UTC.
    pub date: String,
    /// Whether all that was wanted was measured.
    pub complete: bool,
    /// Why not.
    pub error: Option<String>,
    pub client: Side,
    pub server: Side,
    pub parameters: Parameters,
    /// What looking at the clock takes, twice of which is part of every latency.
    pub clock_ns: f64,
    pub measurements: Vec<Measurement>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Parameters {
    pub address: String,
    pub port: u16,
    pub operations: Vec<Operation>,
    pub sizes_bytes: Vec<u64>,
    pub depths: Vec<u32>,
    pub connections: Vec<u32>,
    /// One of these two.
    pub seconds_each: Option<f64>,
    pub operations_each: Option<u64>,
    pub warm_up_seconds: f64,
    /// `poll` or `events`.
    pub completions_by: String,
    /// Whether the server polled where its program took no part.
    pub server_polls: bool,
    pub rate_per_second: Option<f64>,
    pub signal_every: u32,
    pub check: bool,
    /// Of the contents.
    pub seed: u64,
    /// What is behind the server's memory: a file or a device, else it is DRAM.
    pub server_pmem: Option<String>,
}

impl Parameters {
    /// The limit as it is written down.
    pub fn set_limit(&mut self, method: &Method) {
        (self.seconds_each, self.operations_each) = match method.limit {
            Limit::Time(time) => (Some(time.as_secs_f64()), None),
            Limit::Operations(operations) => (None, Some(operations)),
        };
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    pub operation: Operation,
    pub size_bytes: u64,
    pub depth: u32,
    pub connections: u32,
    /// Whether it went on to its end.
    pub complete: bool,
    pub operations: u64,
    pub elapsed_seconds: f64,
    pub operations_per_second: f64,
    pub bytes_per_second: f64,
    pub latency: Latency,
    pub checked: Option<Contents>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// What it is the time of.
    pub of: String,
    /// How many were taken.
    pub samples: u64,
    pub mean_ns: f64,
    pub deviation_ns: f64,
    pub min_ns: u64,
    pub max_ns: u64,
    /// By percentile, those that [`PERCENTILES`] has.
    pub percentiles_ns: BTreeMap<String, u64>,
    /// All of them: how many percent took no longer than that.
    pub distribution_percent_ns: Vec<(f64, u64)>,
}

/// What the comparison of contents has come to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Contents {
    pub operations: u64,
    pub mismatches: u64,
    pub first: Option<String>,
}

impl Measurement {
    #[must_use]
    pub fn new(plan: &Plan, sample: &Sample, complete: bool) -> Self {
        let latency = &sample.latency;
        let seconds = sample.elapsed.as_secs_f64();
        let rate = if seconds > 0.0 {
            sample.operations as f64 / seconds
        } else {
            0.0
        };
        let percentile = |name: &&str| {
            let percentile: f64 = name.parse().expect("a number");
            (
                (*name).to_owned(),
                latency.value_at_percentile(percentile).min(latency.max()),
            )
        };
        let mut distribution: Vec<(f64, u64)> = vec![];
        for step in latency.iter_quantiles(5) {
            let percent = (step.quantile() * 1e11).round() / 1e9;
            let value = step.value_iterated_to().min(latency.max());
            match distribution.last_mut() {
                Some(last) if last.1 == value => last.0 = percent,
                _ => distribution.push((percent, value)),
            }
        }
        Self {
            operation: plan.operation,
            size_bytes: plan.size,
            depth: plan.depth,
            connections: plan.connections,
            complete,
            operations: sample.operations,
            elapsed_seconds: seconds,
            operations_per_second: rate,
            bytes_per_second: rate * plan.size as f64,
            latency: Latency {
                of: plan.operation.latency_of().into(),
                samples: latency.len(),
                mean_ns: latency.mean(),
                deviation_ns: latency.stdev(),
                min_ns: if latency.is_empty() { 0 } else { latency.min() },
                max_ns: latency.max(),
                percentiles_ns: PERCENTILES.iter().map(percentile).collect(),
                distribution_percent_ns: distribution,
            },
            checked: plan.check.then(|| Contents::from(&sample.checked)),
        }
    }

    /// What was moved, in bytes a second; nothing is by a flush alone.
    #[must_use]
    pub fn bandwidth(&self) -> Option<f64> {
        self.operation
            .moves_bytes()
            .then_some(self.bytes_per_second)
    }

    /// The percentile of that name.
    #[must_use]
    pub fn percentile_ns(&self, name: &str) -> u64 {
        self.latency.percentiles_ns.get(name).copied().unwrap_or(0)
    }
}

impl From<&Checked> for Contents {
    fn from(checked: &Checked) -> Self {
        Self {
            operations: checked.operations,
            mismatches: checked.mismatches,
            first: checked.first.clone(),
        }
    }
}

/// The time as it is written down.
#[must_use]
pub fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

impl Run {
    #[must_use]
    pub fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("numbers and strings");
        text.push('\n');
        text
    }

    /// A line for each measurement, under the names of the columns.
    #[must_use]
    pub fn csv(&self) -> String {
        let mut writer = csv::Writer::from_writer(vec![]);
        let mut head: Vec<String> = [
            "operation",
            "size_bytes",
            "depth",
            "connections",
            "complete",
            "operations",
            "elapsed_seconds",
            "operations_per_second",
            "bytes_per_second",
            "latency_mean_ns",
            "latency_deviation_ns",
            "latency_min_ns",
        ]
        .map(Into::into)
        .into();
        head.extend(PERCENTILES.map(|name| format!("latency_p{name}_ns")));
        head.extend(["latency_max_ns", "checked_operations", "mismatches"].map(Into::into));
        let mut records = vec![head];
        for one in &self.measurements {
            let mut record = vec![
                one.operation.to_string(),
                one.size_bytes.to_string(),
                one.depth.to_string(),
                one.connections.to_string(),
                one.complete.to_string(),
                one.operations.to_string(),
                one.elapsed_seconds.to_string(),
                one.operations_per_second.to_string(),
                one.bytes_per_second.to_string(),
                one.latency.mean_ns.to_string(),
                one.latency.deviation_ns.to_string(),
                one.latency.min_ns.to_string(),
            ];
            record.extend(PERCENTILES.map(|name| one.percentile_ns(name).to_string()));
            record.push(one.latency.max_ns.to_string());
            let checked = one.checked.as_ref();
            let number = |number: Option<u64>| number.map_or(String::new(), |n| n.to_string());
            record.push(number(checked.map(|checked| checked.operations)));
            record.push(number(checked.map(|checked| checked.mismatches)));
            records.push(record);
        }
        for record in records {
            writer
                .write_record(record)
                .expect("memory can be written to");
        }
        String::from_utf8(writer.into_inner().expect("as above")).expect("text")
    }

    /// Reads what [`Self::json`] has written.
    ///
    /// # Errors
    /// Says what is wrong with the file.
    pub fn read(file: &Path) -> Result<Self, String> {
        let shown = file.display();
        let text = fs::read_to_string(file).map_err(|error| format!("{shown}: {error}"))?;
        let value: serde_json::Value =
            serde_json::from_str(&text).map_err(|error| format!("{shown}: no JSON: {error}"))?;
        match value["format"].as_str() {
            Some(FORMAT) => {}
            Some(other) => return Err(format!("{shown}: it is '{other}', not '{FORMAT}'")),
            None => return Err(format!("{shown}: no results of rpma-perf")),
        }
        serde_json::from_value(value).map_err(|error| format!("{shown}: {error}"))
    }
}
