//! The side that measures.

use super::arguments::{self, Choice};
use super::channel::{Channel, QUEUE, established};
use super::measure::{self, Lane, Limit, Measurement, Method};
use super::operation::Operation;
use super::pattern::Checked;
use super::plan::Plan;
use super::protocol::{Answer, Ask, PROTOCOL, Purpose};
use super::report::{self, FORMAT, Parameters, Run};
use super::side::Side;
use super::{Failure, Stop, plot, table};
use crate::rpma::{
    self, Backing, ConnectionConfig, Device, Memory, Peer, PeerConfig, Region, Remote, Request,
    Usage, sys,
};
use clap::ValueEnum as _;
use indicatif::{ProgressBar, ProgressStyle};
use rustix::rand::{GetRandomFlags, getrandom};
use std::cell::{Cell, RefCell};
use std::fs::{self, File};
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How long the server may take to answer.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long a server may be busy with others.
const QUEUEING: Duration = Duration::from_secs(600);

/// Measures what was asked for, and shows it.
///
/// # Errors
/// If not all of it could be measured, or the contents are not as they should be. What was measured has
/// been shown by then.
pub fn run(arguments: &arguments::Client, stop: &Stop) -> Result<(), Failure> {
    let device = Device::remote(&arguments.address)?;
    let peer = Peer::new(device)?;
    let mut client = Client::new(arguments, device, peer, stop)?;
    let plans = client.plans()?;
    let outputs = Outputs::new(arguments)?;
    let show = Show::new(outputs.table, plans.len());
    let method = method(arguments);
    let mut outcome = Ok(());
    for plan in &plans {
        show.begin(plan);
        match client.measure(plan, &method, stop, &show) {
            Ok(()) => {}
            // The figures stand, and so do those to come.
            Err(failure @ Failure::Mismatch(_)) => outcome = outcome.and(Err(failure)),
            Err(failure) => {
                outcome = Err(failure);
                break;
            }
        }
    }
    let shown = show.end();
    client.run.complete = client.run.measurements.len() == plans.len()
        && client.run.measurements.iter().all(|one| one.complete);
    client.run.error = outcome.as_ref().err().map(ToString::to_string);
    outputs.write(&client.run)?;
    outcome.and(shown)
}

fn method(arguments: &arguments::Client) -> Method {
    Method {
        limit: match arguments.operations {
            Some(operations) => Limit::Operations(operations),
            None => Limit::Time(Duration::from_secs_f64(arguments.time)),
        },
        warm_up: Duration::from_secs_f64(arguments.warm_up),
        rate: arguments.rate,
        signal_every: arguments.signal_every,
    }
}

/// Where results go to.
struct Outputs<'a> {
    json: Option<&'a Path>,
    csv: Option<&'a Path>,
    plot: Option<&'a plot::Target>,
    /// Whether stdout is for the table.
    table: bool,
}

const STDOUT: &str = "-";

impl<'a> Outputs<'a> {
    /// # Errors
    /// If one of them can't be written to, before there is something to lose.
    fn new(arguments: &'a arguments::Client) -> Result<Self, Failure> {
        let (json, csv) = (arguments.json.as_deref(), arguments.csv.as_deref());
        let plot = arguments.plot.as_ref();
        let files = [json, csv, plot.map(plot::Target::file)];
        for file in files.into_iter().flatten().filter(|file| *file != STDOUT) {
            let opened = File::options().append(true).create(true).open(file);
            opened.map_err(|error| named(file, &error))?;
        }
        let table = ![json, csv].contains(&Some(Path::new(STDOUT)));
        Ok(Self {
            json,
            csv,
            plot,
            table,
        })
    }

    /// # Errors
    /// The first that can't be written; the others are.
    fn write(&self, run: &Run) -> Result<(), Failure> {
        let mut outcome = Ok(());
        for (file, text) in [
            (self.json, Run::json as fn(&Run) -> String),
            (self.csv, Run::csv),
        ] {
            let Some(file) = file else { continue };
            let written = if file == STDOUT {
                print(&text(run))
            } else {
                fs::write(file, text(run)).map_err(|error| named(file, &error))
            };
            outcome = outcome.and(written);
        }
        if let Some(target) = self.plot {
            let drawn = plot::draw(target, &[("", run)]);
            outcome = outcome.and(drawn.map_err(|why| Failure::System(io::Error::other(why))));
        }
        outcome
    }
}

fn named(file: &Path, error: &io::Error) -> Failure {
    Failure::System(io::Error::new(
        error.kind(),
        format!("{}: {error}", file.display()),
    ))
}

/// Whoever does not read to the end has seen enough.
fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(named(Path::new("stdout"), &error))
        }
        _ => Ok(()),
    }
}

/// What the user sees while it goes on: a bar on a terminal, else lines.
struct Show {
    bar: Option<ProgressBar>,
    table: bool,
    total: usize,
    begun: Cell<usize>,
    /// When a line last told of a measurement or its connections.
    told: Cell<Instant>,
    /// Why the table could not be printed, or not all of it.
    failed: RefCell<Option<Failure>>,
}

/// Steps of the bar for each measurement.
const STEPS: u64 = 1000;
/// How often lines tell of connections that are being made.
const CONNECTING: Duration = Duration::from_secs(5);

impl Show {
    fn new(table: bool, total: usize) -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(total as u64 * STEPS);
            let style = "{bar:16} {percent:>3}% {eta:>4} left  {wide_msg}";
            bar.set_style(ProgressStyle::with_template(style).expect("a template"));
            bar
        });
        Self {
            bar,
            table,
            total,
            begun: 0.into(),
            told: Instant::now().into(),
            failed: None.into(),
        }
    }

    fn begin(&self, plan: &Plan) {
        self.begun.set(self.begun.get() + 1);
        self.told.set(Instant::now());
        match &self.bar {
            Some(bar) => bar.set_message(plan.to_string()),
            None => {
                let (number, total) = (self.begun.get(), self.total);
                let _ = writeln!(io::stderr(), "rpma-perf: {number}/{total} {plan}");
            }
        }
    }

    /// Many connections take their time, in which nothing is measured.
    fn connected(&self, plan: &Plan, made: usize) {
        let what = format!("{made} of {} connections are made", plan.connections);
        match &self.bar {
            Some(bar) if made == plan.connections as usize => bar.set_message(plan.to_string()),
            Some(bar) => bar.set_message(what),
            None if self.told.get().elapsed() < CONNECTING => {}
            None => {
                self.told.set(Instant::now());
                let _ = writeln!(io::stderr(), "rpma-perf: {what}");
            }
        }
    }

    fn progress(&self, part: f64) {
        if let Some(bar) = &self.bar {
            let before = self.begun.get().saturating_sub(1) as u64 * STEPS;
            bar.set_position(before + (part.clamp(0.0, 1.0) * STEPS as f64) as u64);
        }
    }

    fn result(&self, last: Option<Operation>, one: &report::Measurement, client: &Side) {
        self.progress(1.0);
        if !self.table {
            return;
        }
        let mut text = String::new();
        if last != Some(one.operation) {
            if last.is_some() {
                text.push('\n');
            }
            text.push_str(&table::head(one.operation, client));
        }
        text.push_str(&table::line(one));
        let print = || print(&text);
        let printed = match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        };
        // The measurements go on, since there may be files for them.
        if let Err(failure) = printed {
            self.failed.borrow_mut().get_or_insert(failure);
        }
    }

    /// # Errors
    /// If the table could not be printed.
    fn end(self) -> Result<(), Failure> {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        self.failed.into_inner().map_or(Ok(()), Err)
    }
}

/// Says what takes so long, if it does, until what it returns is dropped.
fn tell_when_waiting() -> Sender<()> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut wait = Duration::from_secs(1);
        while receiver.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
            let what = "waiting for the server, which may be serving another client";
            let _ = writeln!(io::stderr(), "rpma-perf: {what}");
            wait = Duration::from_secs(10);
        }
    });
    sender
}

struct Client<'a> {
    arguments: &'a arguments::Client,
    peer: Peer,
    channel: Channel,
    run: Run,
}

impl<'a> Client<'a> {
    /// Finds the server, and learns what it is.
    fn new(
        arguments: &'a arguments::Client,
        device: Device,
        peer: Peer,
        stop: &Stop,
    ) -> Result<Self, Failure> {
        let waiting = tell_when_waiting();
        let config = ConnectionConfig::new(QUEUE, QUEUE)?;
        let (address, port) = (&arguments.address, arguments.port);
        let request = Request::new(&peer, address, &port.to_string(), &config)?;
        let purpose = Purpose::Control.encode();
        let channel = Channel::new(&peer, request, &purpose, QUEUEING, stop);
        let mut channel = channel.map_err(|failure| match failure {
            Failure::Rejected => Failure::Absent(format!(
                "no rpma-perf server listens at {address} port {port}"
            )),
            Failure::Unreachable => Failure::Absent(format!(
                "{address} port {port} can't be reached: is the host up, and do firewalls let it through?"
            )),
            other => other,
        })?;
        channel.send(&Ask::Hello { protocol: PROTOCOL }, PATIENCE)?;
        // It answers when it is done with those that came before.
        let (server, persistent) = match channel.receive(QUEUEING, stop)? {
            Answer::Welcome {
                protocol: PROTOCOL,
                persistent,
                side,
            } => (*side, persistent),
            other => return Err(unexpected(other)),
        };
        drop(waiting);
        let mut seed = [0; 8];
        getrandom(&mut seed[..], GetRandomFlags::empty()).map_err(io::Error::from)?;
        let mut parameters = Parameters {
            address: arguments.address.clone(),
            port,
            operations: vec![],
            sizes_bytes: arguments.sizes.0.clone(),
            depths: arguments.depths.0.clone(),
            connections: arguments.connections.0.clone(),
            seconds_each: None,
            operations_each: None,
            warm_up_seconds: arguments.warm_up,
            server_polls: arguments.server_polls,
            completions_by: if arguments.events { "events" } else { "poll" }.into(),
            rate_per_second: arguments.rate,
            signal_every: arguments.signal_every,
            check: arguments.check,
            // Readers of JSON may take all numbers for floating point.
            seed: u64::from_ne_bytes(seed) >> 11,
            server_pmem: persistent,
        };
        parameters.set_limit(&method(arguments));
        let run = Run {
            format: FORMAT.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            date: report::now(),
            complete: false,
            error: None,
            client: Side::here(device),
            server,
            parameters,
            clock_ns: measure::clock_cost().as_secs_f64() * 1e9,
            measurements: vec![],
        };
        Ok(Self {
            arguments,
            peer,
            channel,
            run,
        })
    }

    /// What is to be measured, in turn.
    fn plans(&mut self) -> Result<Vec<Plan>, Failure> {
        let pmem = self.run.parameters.server_pmem.is_some();
        let chosen = &self.arguments.operation;
        for operation in Operation::value_variants() {
            let named = chosen.contains(&Choice::One(*operation));
            if !named && !(chosen.contains(&Choice::All) && (pmem || !operation.is_persistent())) {
                continue;
            }
            if operation.is_persistent() && !pmem {
                let why = format!(
                    "{operation} needs persistent memory of the server: see its option --pmem"
                );
                return Err(Failure::Refused(why));
            }
            self.run.parameters.operations.push(*operation);
        }
        let parameters = &self.run.parameters;
        let mut plans = vec![];
        for operation in parameters.operations.iter().copied() {
            let sizes: &[u64] = match operation {
                Operation::AtomicWrite => &[8],
                _ => &parameters.sizes_bytes,
            };
            for connections in parameters.connections.iter().copied() {
                for depth in parameters.depths.iter().copied() {
                    plans.extend(sizes.iter().map(|size| Plan {
                        operation,
                        size: *size,
                        depth,
                        connections,
                        events: self.arguments.events,
                        server_polls: self.arguments.server_polls,
                        check: parameters.check,
                        seed: parameters.seed,
                    }));
                }
            }
        }
        Ok(plans)
    }

    /// Makes one measurement. Where that fails, there may be a part of it all the same.
    fn measure(
        &mut self,
        plan: &Plan,
        method: &Method,
        stop: &Stop,
        show: &Show,
    ) -> Result<(), Failure> {
        let (token, remote, peer_config) = self.prepare(plan, stop)?;
        let region = self.region(plan)?;
        let lanes = self.connect(plan, token, &peer_config, stop, show)?;
        let mut measurement = Measurement::new(plan, method, &region, &remote, lanes)?;
        let channel = &mut self.channel;
        let mut outcome = measurement.run(stop, |part| {
            if let Some(part) = part {
                show.progress(part);
            }
            channel.show_life().map_err(|failure| match failure {
                Failure::Closed => Failure::lost("it has closed the connection"),
                other => other,
            })
        });
        let (mut sample, lanes) = measurement.end();
        let complete = outcome.is_ok();
        if matches!(outcome, Ok(()) | Err(Failure::Interrupted)) {
            // All that was begun has completed, so that it can be said whether it is right.
            let operations = lanes.iter().map(Lane::posted).collect();
            match self.finish(operations) {
                Ok(Answer::Finished {
                    operations,
                    mismatches,
                    first,
                }) => {
                    sample.checked.add(Checked {
                        operations,
                        mismatches,
                        first,
                    });
                }
                Ok(other) => outcome = outcome.and(Err(unexpected(other))),
                Err(failure) => outcome = outcome.and(Err(failure)),
            }
        }
        if let (Ok(()), Some(first)) = (&outcome, &sample.checked.first) {
            outcome = Err(Failure::Mismatch(format!("{plan}: {first}")));
        }
        if sample.operations > 0 {
            let measured = report::Measurement::new(plan, &sample, complete);
            show.result(
                self.run.measurements.last().map(|last| last.operation),
                &measured,
                &self.run.client,
            );
            self.run.measurements.push(measured);
        }
        outcome
    }

    /// Has the server get ready.
    fn prepare(&mut self, plan: &Plan, stop: &Stop) -> Result<(u64, Remote, PeerConfig), Failure> {
        stop.check()?;
        self.channel.send(&Ask::Prepare(*plan), PATIENCE)?;
        // It has memory to fill.
        match self.channel.receive(4 * PATIENCE, stop)? {
            Answer::Ready {
                token,
                region,
                peer_config,
            } => {
                let remote = Remote::new(&region)?;
                if (remote.size() as u64) < plan.server_memory() {
                    return Err(Failure::lost("it offers less memory than was asked for"));
                }
                Ok((token, remote, PeerConfig::from_descriptor(&peer_config)?))
            }
            other => Err(unexpected(other)),
        }
    }

    fn region(&self, plan: &Plan) -> Result<Region, Failure> {
        let size = measure::client_memory(plan);
        let size = usize::try_from(size).map_err(io::Error::other)?;
        let memory = Memory::new(size, Backing::Dram, 1)?;
        let usage = sys::RPMA_MR_USAGE_READ_DST
            | sys::RPMA_MR_USAGE_WRITE_SRC
            | sys::RPMA_MR_USAGE_SEND
            | sys::RPMA_MR_USAGE_RECV;
        let region = Region::new(&self.peer, memory, Usage(usage))?;
        rpma::take_warnings();
        Ok(region)
    }

    /// Makes the connections to measure over.
    fn connect(
        &mut self,
        plan: &Plan,
        token: u64,
        peer_config: &PeerConfig,
        stop: &Stop,
        show: &Show,
    ) -> Result<Vec<Lane>, Failure> {
        let replies = if plan.operation == Operation::PingPong {
            plan.depth
        } else {
            0
        };
        let config = ConnectionConfig::new(plan.depth * plan.operation.requests(), replies.max(1))?;
        let purpose = Purpose::Data(token).encode();
        let mut lanes = vec![];
        for index in 0..plan.connections as usize {
            let arguments = self.arguments;
            let port = arguments.port.to_string();
            let request = Request::new(&self.peer, &arguments.address, &port, &config)?;
            let connection = request.connect(&purpose)?;
            established(&connection, PATIENCE, stop).map_err(|failure| match failure {
                Failure::Rejected => {
                    let number = index + 1;
                    Failure::Lost(format!(
                        "it can't make connection {number}, and tells why itself"
                    ))
                }
                other => other,
            })?;
            connection.apply(peer_config)?;
            lanes.push(Lane::new(connection, index, plan));
            self.channel.show_life()?;
            show.connected(plan, lanes.len());
        }
        Ok(lanes)
    }

    /// Has the server say what it has got.
    fn finish(&mut self, operations: Vec<u64>) -> Result<Answer, Failure> {
        self.channel.send(&Ask::Finish { operations }, PATIENCE)?;
        // Also when the user does not want to go on: the answer is what the user has asked for.
        self.channel.receive(4 * PATIENCE, &Stop::default())
    }
}

fn unexpected(answer: Answer) -> Failure {
    match answer {
        Answer::Refused { why } => Failure::Refused(why),
        other => Failure::Lost(format!("it answers something else: {other:?}")),
    }
}
