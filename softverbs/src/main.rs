//! `softverbs`, the launcher: runs a program with the library preloaded, and tells about the device.

mod program;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};
use serde_json::{Map, Value, json};
use softverbs::limits;
use softverbs::objects::device::{self, attributes, port};
use softverbs::settings::{self, Origin, Reading, Settings, Variable};
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, iter};

const LIBRARY: &str = "libsoftverbs.so";
/// What shells say of a program that can't be run, and of one that is not there.
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// A software RDMA device for any program: libibverbs and librdmacm over TCP.
#[derive(Parser)]
#[command(name = "softverbs", version, disable_help_subcommand = true, after_help = more())]
struct Cli {
    #[command(subcommand)]
    action: Action,
}

/// What else a user may want to know; the manual page has it too.
fn more() -> String {
    let mut text = String::from("Environment:\n");
    for Reading { variable, .. } in settings::read(|_| None).1 {
        let Variable {
            name, words, about, ..
        } = variable;
        let (default, other) = (
            usize::from(variable.default),
            usize::from(!variable.default),
        );
        let [default, other] = [words[default], words[other]];
        let _ = writeln!(
            text,
            "  {name:<23} {about}: {default}, which is the default, or {other}"
        );
    }
    let _ = write!(
        text,
        "
Exit status:
  0            Of the program that was run, its own status, whatever that is
  2            The arguments or the environment are not understood
  {CANNOT_RUN}          The program can't be run, or not with the library, or that is not there
  {NOT_FOUND}          There is no such program

Examples:
  softverbs run -- ./server 127.0.0.1 7204
  softverbs run --no-flush -- ./client 127.0.0.1 7204
  softverbs info"
    );
    text
}

#[derive(Subcommand)]
enum Action {
    /// Run a program with the software RDMA device.
    Run {
        #[command(flatten)]
        device: Device,
        /// The program and its arguments.
        #[arg(required = true, trailing_var_arg = true)]
        program: Vec<OsString>,
    },
    /// Show the device, its limits and settings, and the addresses to use it with.
    Info {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}

/// What the device is to be like, whatever the environment says.
#[derive(Args)]
struct Device {
    /// No native FLUSH.
    #[arg(long)]
    no_flush: bool,
    /// No native ATOMIC WRITE.
    #[arg(long)]
    no_atomic_write: bool,
    /// No on-demand paging.
    #[arg(long)]
    no_odp: bool,
    /// An iWARP device, which has neither FLUSH nor atomics.
    #[arg(long)]
    iwarp: bool,
    /// Let any memory be registered for persistent flush, not only that of files.
    #[arg(long)]
    any_persistent: bool,
    /// No line on stderr about peers that speak something else and the like.
    #[arg(long)]
    no_warn: bool,
}

impl Device {
    /// The variables that these options are for, and their values.
    fn variables(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let options = [
            (self.no_flush, &settings::FLUSH),
            (self.no_atomic_write, &settings::ATOMIC_WRITE),
            (self.no_odp, &settings::ODP),
            (self.iwarp, &settings::TRANSPORT),
            (self.any_persistent, &settings::PERSISTENT),
            (self.no_warn, &settings::WARN),
        ];
        let other = |variable: &Variable| variable.words[usize::from(!variable.default)];
        let given = options.into_iter().filter(|(given, _)| *given);
        given.map(move |(_, variable)| (variable.name, other(variable)))
    }
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => return print(&error.to_string()),
        Err(error) => return refuse(&first_line(&error)),
    };
    match cli.action {
        Action::Run { device, program } => run(&device, &program),
        Action::Info { json } => info(json),
    }
}

/// What is wrong with the arguments, without the advice that follows it.
fn first_line(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "nothing to do: say 'run' or 'info'".into();
    }
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let lines = text.lines().take_while(|line| !line.is_empty());
    lines.map(str::trim).collect::<Vec<_>>().join(" ")
}

/// Says that the launcher was asked wrongly.
fn refuse(why: &str) -> ExitCode {
    fail(&format!("{why}; see 'softverbs --help'"), 2)
}

fn fail(why: &str, status: u8) -> ExitCode {
    // Whoever closed stderr sees the status.
    let _ = writeln!(io::stderr(), "softverbs: {why}");
    ExitCode::from(status)
}

/// Whoever does not read to the end has seen enough.
fn print(text: &str) -> ExitCode {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => fail(&error.to_string(), 1),
        _ => ExitCode::SUCCESS,
    }
}

/// What the environment says; an error if it says what nobody understands.
fn settings() -> Result<[Reading; 6], ExitCode> {
    let (_, readings) = settings::read(|name| env::var_os(name));
    let complaint = readings.iter().find_map(Reading::complaint);
    complaint.map_or(Ok(readings), |complaint| Err(refuse(&complaint)))
}

/// The library, where it lies beside this program or is installed with it.
fn library() -> Result<PathBuf, String> {
    let exe = env::current_exe().map_err(|error| format!("this program's own path: {error}"))?;
    let here = exe.parent().unwrap_or(Path::new("/"));
    let prefix = here.parent().unwrap_or(here);
    let lib = prefix.join("lib");
    let multiarch = lib.join(format!("{}-linux-gnu", env::consts::ARCH));
    let dirs = [here.to_owned(), lib, multiarch, prefix.join("lib64")];
    let found = dirs
        .iter()
        .map(|dir| dir.join(LIBRARY))
        .find(|file| file.exists());
    found.ok_or_else(|| {
        let dirs: Vec<_> = dirs.iter().map(|dir| dir.to_string_lossy()).collect();
        format!("{LIBRARY} is in none of {}", dirs.join(", "))
    })
}

fn run(device: &Device, program: &[OsString]) -> ExitCode {
    if let Err(status) = settings() {
        return status;
    }
    let library = match library() {
        Ok(library) => library.into_os_string(),
        Err(error) => return fail(&error, CANNOT_RUN),
    };
    if library.as_bytes().iter().any(|byte| b" :".contains(byte)) {
        let why = format!("{library:?} can't be preloaded: the path has a space or a colon");
        return fail(&why, CANNOT_RUN);
    }
    let others = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty());
    let preload: Vec<_> = iter::once(library).chain(others).collect();
    let [name, arguments @ ..] = program else {
        return refuse("no program to run");
    };
    if let Some((file, why)) = program::obstacle(name) {
        let file = file.to_string_lossy();
        return fail(
            &format!("{file} can't be run with softverbs: {why}"),
            CANNOT_RUN,
        );
    }
    let error = Command::new(name)
        .args(arguments)
        .env("LD_PRELOAD", preload.join(OsStr::new(":")))
        .envs(device.variables())
        .exec();
    let name = name.to_string_lossy();
    if error.kind() == io::ErrorKind::NotFound {
        fail(&format!("{name}: not found"), NOT_FOUND)
    } else {
        fail(&format!("{name}: can't be run: {error}"), CANNOT_RUN)
    }
}

fn info(as_json: bool) -> ExitCode {
    let readings = match settings() {
        Ok(readings) => readings,
        Err(status) => return status,
    };
    let library = match library() {
        Ok(library) => library,
        Err(error) => return fail(&error, 1),
    };
    let addresses = match port::addresses() {
        Ok(addresses) => addresses,
        Err(error) => return fail(&format!("the addresses of this host: {error}"), 1),
    };
    let all = describe(&readings, &library, &addresses);
    let text = if as_json {
        format!("{all:#}\n")
    } else {
        let mut text = String::new();
        lines(&mut text, 0, &all);
        text
    };
    print(&text)
}

fn describe(readings: &[Reading], library: &Path, addresses: &[port::Address]) -> Value {
    let attr = attributes::attributes(Settings::get());
    let has = |flag| attr.device_cap_flags_ex & flag != 0;
    let settings = readings.iter().map(|reading| {
        let from = match reading.origin {
            Origin::Default => "default",
            Origin::Environment => "environment",
            Origin::Transport => "transport",
        };
        let about = reading.variable.about;
        let setting = json!({ "value": reading.word(), "from": from, "about": about });
        (reading.variable.name.to_owned(), setting)
    });
    let settings: Map<_, _> = settings.collect();
    // Those of one link need its name, too, to be of use.
    let usable = addresses.iter().map(|address| address.ip);
    let usable = usable.filter(|ip| !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()));
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "library": library.to_string_lossy(),
        "device": {
            "name": device::NAME,
            "guid": device::guid().map(|byte| format!("{byte:02x}")).concat(),
            "flush": has(verbs_ext::DEVICE_FLUSH_PERSISTENT),
            "atomic_write": has(verbs_ext::DEVICE_ATOMIC_WRITE),
            "odp": attr.odp_caps.general_caps != 0,
        },
        "limits": {
            "max_qp": limits::MAX_QP,
            "max_qp_wr": limits::MAX_QP_WR,
            "max_sge": limits::MAX_SGE,
            "max_inline": limits::MAX_INLINE,
            "max_qp_rd_atom": limits::MAX_QP_RD_ATOM,
            "max_qp_init_rd_atom": limits::MAX_QP_INIT_RD_ATOM,
            "max_message": limits::MAX_MESSAGE,
            "max_cq": limits::MAX_CQ,
            "max_cqe": limits::MAX_CQE,
            "max_srq": limits::MAX_SRQ,
            "max_srq_wr": limits::MAX_SRQ_WR,
            "max_srq_sge": limits::MAX_SRQ_SGE,
            "max_pd": limits::MAX_PD,
            "max_mr": limits::MAX_MR,
            "max_mr_size": limits::MAX_MR_SIZE,
        },
        "settings": settings,
        "addresses": usable.map(|ip| ip.to_string()).collect::<Vec<_>>(),
    })
}

/// For people: a line for each value, under the name of what it belongs to.
fn lines(text: &mut String, depth: usize, value: &Value) {
    const WIDTH: usize = 26;
    let indent = 2 * depth;
    let plain = |value: &Value| value.as_str().map_or(value.to_string(), str::to_owned);
    for (name, member) in value.as_object().into_iter().flatten() {
        let said = match member {
            Value::Object(setting) if setting.contains_key("from") => {
                let [value, about, from] =
                    ["value", "about", "from"].map(|key| plain(&setting[key]));
                format!("{value:<8} {about} (from {from})")
            }
            Value::Object(_) => {
                let _ = writeln!(text, "{:indent$}{name}", "");
                lines(text, depth + 1, member);
                continue;
            }
            Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join(" "),
            other => plain(other),
        };
        let _ = writeln!(text, "{:indent$}{name:<1$}{said}", "", WIDTH - indent);
    }
}
