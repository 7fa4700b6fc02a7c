//! The command line.

use super::operation::Operation;
use super::plan::{MAX_CONNECTIONS, MAX_DEPTH, MAX_SIZE};
use super::plot;
use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum as _};
use std::fmt::Write as _;
use std::path::PathBuf;

/// Measure latency and bandwidth of the operations of librpma between two hosts.
#[derive(Debug, Parser)]
#[command(name = "rpma-perf", version, disable_help_subcommand = true, after_help = more())]
pub struct Cli {
    #[command(subcommand)]
    pub action: Action,
}

#[derive(Debug, Subcommand)]
pub enum Action {
    /// Wait for clients, serve one after another, and have the memory that they work on.
    Server(Server),
    /// Measure, with a server on the other side.
    Client(Box<Client>),
    /// Show two runs beside each other.
    Compare(Compare),
}

#[derive(Debug, Args)]
pub struct Server {
    /// An address of this host that an RDMA device serves.
    pub address: String,
    /// The port to listen at.
    #[arg(value_parser = port)]
    pub port: u16,
    /// Offer persistent memory: a DAX device, a file, or a directory, in which a file is made and
    /// removed at the end. The platform is taken to keep what a device writes there: only its manual
    /// tells.
    #[arg(long, value_name = "PATH")]
    pub pmem: Option<PathBuf>,
    /// Overwrite what is in the file or the device that exists.
    #[arg(long, requires = "pmem")]
    pub overwrite: bool,
    /// How much memory a client may ask for.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = memory)]
    pub memory: u64,
}

#[derive(Debug, Args)]
pub struct Client {
    /// The address that the server listens at.
    pub address: String,
    /// The port that it listens at.
    #[arg(value_parser = port)]
    pub port: u16,
    /// What to measure: any of the operations that 'rpma-perf --help' names, or 'all' that the server
    /// has the memory for.
    #[arg(required = true, value_parser = operation)]
    pub operation: Vec<Choice>,
    /// Bytes of an operation: a list, where 8..1M doubles and 8..1Mx8 takes eight times as many.
    #[arg(short, long, value_name = "LIST", default_value = "8..256Kx8", value_parser = sizes)]
    pub sizes: List<u64>,
    /// Operations under way at once on a connection.
    #[arg(short, long, value_name = "LIST", default_value = "1,16", value_parser = depths)]
    pub depths: List<u32>,
    /// Connections at once. One thread serves all.
    #[arg(short, long, value_name = "LIST", default_value = "1", value_parser = connections)]
    pub connections: List<u32>,
    /// How long each measurement takes.
    #[arg(short = 't', long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub time: f64,
    /// How many operations each measurement takes, in place of a time.
    #[arg(
        short = 'n', long, value_name = "NUMBER", conflicts_with = "time",
        value_parser = RangedU64ValueParser::<u64>::new().range(1..=u64::MAX >> 16)
    )]
    pub operations: Option<u64>,
    /// How long operations go on before they count.
    #[arg(long, value_name = "SECONDS", default_value = "0.1", value_parser = seconds_or_none)]
    pub warm_up: f64,
    /// Wait for events of completion queues, on both sides, rather than poll.
    #[arg(long)]
    pub events: bool,
    /// Have the server poll in one-sided operations, too, where its program has nothing to do. It
    /// makes a device in software faster, and takes a processor.
    #[arg(long, conflicts_with = "events")]
    pub server_polls: bool,
    /// Begin that many operations a second, and count latency from when each was due. All that is
    /// due within the time is done, however long that takes.
    #[arg(long, value_name = "NUMBER", value_parser = rate)]
    pub rate: Option<f64>,
    /// Have one completion for that many operations. The latency is that of those that have one.
    #[arg(
        long, value_name = "NUMBER", default_value = "1",
        value_parser = RangedU64ValueParser::<u32>::new().range(1..=MAX_DEPTH.into())
    )]
    pub signal_every: u32,
    /// Give every operation contents of its own and compare what has come, on both sides. It costs
    /// bandwidth.
    #[arg(long)]
    pub check: bool,
    /// Write all results and what they were measured with. A - in place of a file stands for
    /// stdout, where the table gives way.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a line for each measurement, with commas between the values.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Draw latency and bandwidth against size, as the name says: .svg or .png.
    #[arg(long, value_name = "FILE", value_parser = plot::Target::parse)]
    pub plot: Option<plot::Target>,
}

#[derive(Debug, Args)]
pub struct Compare {
    /// Results that the client has written with --json.
    pub first: PathBuf,
    /// Other ones, to be divided by the first.
    pub second: PathBuf,
    /// Draw both over each other, as the name says: .svg or .png.
    #[arg(long, value_name = "FILE", value_parser = plot::Target::parse)]
    pub plot: Option<plot::Target>,
    /// What to call the two, in place of their files' names.
    #[arg(long, value_name = "NAME", num_args = 2)]
    pub names: Option<Vec<String>>,
}

/// An operation to measure, or all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    All,
    One(Operation),
}

impl Client {
    /// What of it does not go together.
    ///
    /// # Errors
    /// Says what.
    pub fn validate(&self) -> Result<(), String> {
        let every = self.signal_every;
        if let Some(depth) = self.depths.0.iter().find(|depth| **depth < every) {
            return Err(format!(
                "with --signal-every {every} at depth {depth} nothing would ever complete"
            ));
        }
        let files = [
            ("--json", self.json.as_deref()),
            ("--csv", self.csv.as_deref()),
            ("--plot", self.plot.as_ref().map(plot::Target::file)),
        ];
        let mut before: Vec<(&str, PathBuf)> = vec![];
        for (option, file) in files {
            let Some(file) = file else { continue };
            let place = std::path::absolute(file).unwrap_or_else(|_| file.into());
            if let Some((other, _)) = before.iter().find(|(_, other)| *other == place) {
                let shown = file.display();
                return Err(format!(
                    "{other} and {option} would both write to '{shown}'"
                ));
            }
            before.push((option, place));
        }
        Ok(())
    }
}

/// Values with commas between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List<T>(pub Vec<T>);

/// What else a user may want to know; the manual page has it too.
fn more() -> String {
    let mut text = String::from("Operations:\n");
    for operation in Operation::value_variants() {
        let _ = writeln!(text, "  {operation:<23} {}", operation.about());
    }
    text.push_str(
        "
Exit status:
  0            All was measured, and the contents are as they should be
  1            Something failed, or contents differ; the results until then are there
  2            The arguments are not understood
  130, 143     SIGINT or SIGTERM has ended the client; the results until then are there

Examples:
  rpma-perf server 192.168.0.1 7204
  rpma-perf client 192.168.0.1 7204 read write ping-pong --json first.json
  rpma-perf client 192.168.0.1 7204 write -s 8..1M -d 1 -c 1,8 --plot write.svg
  rpma-perf compare first.json second.json --plot both.png
  softverbs run -- rpma-perf server 127.0.0.1 7204 --pmem /var/tmp",
    );
    text
}

fn operation(text: &str) -> Result<Choice, String> {
    match Operation::from_str(text, false) {
        Ok(operation) => Ok(Choice::One(operation)),
        Err(_) if text == "all" => Ok(Choice::All),
        Err(_) => {
            let names = Operation::value_variants().iter().map(|one| one.name());
            let names: Vec<_> = names.chain(["all"]).collect();
            Err(format!("none of {}", names.join(", ")))
        }
    }
}

fn port(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(port @ 1..) => Ok(port),
        _ => Err("a port is a number within 1 and 65535".into()),
    }
}

/// A number of bytes, with or without a unit.
fn bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.strip_suffix(['K', 'M', 'G']) {
        Some(digits) => (
            digits,
            if text.ends_with('K') {
                10
            } else if text.ends_with('M') {
                20
            } else {
                30
            },
        ),
        None => (text, 0),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("'{text}' is no size, such as 8, 4K or 1M"))?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("'{text}' is too much"))
}

fn memory(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        0 => Err("there has to be some".into()),
        size if usize::try_from(size).is_ok_and(|size| isize::try_from(size).is_ok()) => Ok(size),
        _ => Err(format!("'{text}' is too much")),
    }
}

fn sizes(text: &str) -> Result<List<u64>, String> {
    let mut all = vec![];
    for part in text.split(',') {
        let Some((first, rest)) = part.split_once("..") else {
            all.push(bytes(part)?);
            continue;
        };
        let (last, factor) = rest.split_once('x').unwrap_or((rest, "2"));
        let (first, last) = (bytes(first)?, bytes(last)?);
        let factor: u64 = factor
            .parse()
            .ok()
            .filter(|factor| *factor >= 2)
            .ok_or_else(|| format!("'{factor}' is no number to multiply sizes by"))?;
        if first == 0 || first > last {
            return Err(format!(
                "'{part}' is no range: its first size is not within 1 and the last"
            ));
        }
        let next = |size: &u64| size.checked_mul(factor);
        all.extend(std::iter::successors(Some(first), next).take_while(|size| *size <= last));
    }
    list(all, MAX_SIZE, "size")
}

fn depths(text: &str) -> Result<List<u32>, String> {
    list(numbers(text)?, MAX_DEPTH, "depth")
}

fn connections(text: &str) -> Result<List<u32>, String> {
    list(numbers(text)?, MAX_CONNECTIONS, "number of connections")
}

fn numbers(text: &str) -> Result<Vec<u32>, String> {
    let number = |part: &str| part.parse().map_err(|_| format!("'{part}' is no number"));
    text.split(',').map(number).collect()
}

/// The values in order and once each, if they are within 1 and `most`.
fn list<T>(mut values: Vec<T>, most: T, what: &str) -> Result<List<T>, String>
where
    T: Ord + Copy + From<u8> + std::fmt::Display,
{
    if let Some(value) = values
        .iter()
        .find(|value| **value < T::from(1) || **value > most)
    {
        return Err(format!("a {what} of {value} is not within 1 and {most}"));
    }
    values.sort_unstable();
    values.dedup();
    Ok(List(values))
}

fn seconds(text: &str) -> Result<f64, String> {
    match seconds_or_none(text)? {
        0.0 => Err("not more than 0 seconds".into()),
        seconds => Ok(seconds),
    }
}

fn seconds_or_none(text: &str) -> Result<f64, String> {
    let seconds = text
        .parse()
        .ok()
        .filter(|seconds| (0.0..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| "not within 0 and 86400 seconds".into())
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text
        .parse()
        .ok()
        .filter(|rate| (0.001..=1e9).contains(rate));
    rate.ok_or_else(|| "not within 0.001 and 1e9 operations a second".into())
}
