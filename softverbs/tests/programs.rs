//! Debian's programs for RDMA, as they are, over softverbs.
//!
//!     cargo test -p softverbs --test programs                 all of them
//!     cargo test -p softverbs --test programs -- rping        those whose name has this in it
//!
//! `scripts/install-deps softverbs` installs the programs. What is between two hosts needs network
//! namespaces; where one may not make them, or the kernel lacks something, a test ends as `ignored`. A line
//! that loses is tried in a virtual machine where this machine's kernel has none.

mod library;
mod support;
#[path = "../../tests/support/trials.rs"]
mod trials;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::{Command, ExitCode};
use support::{Hosts, Index, Network, Run, ignored, in_virtual_machine};
use trials::{Ignored, Outcome, trials};

fn main() -> ExitCode {
    let mut all = trials![
        ibv_devices_lists_the_device,
        ibv_devinfo_describes_the_device,
        ibv_devinfo_in_valgrind,
        rping_ipv4,
        rping_ipv6,
        rping_own_address,
        rping_sizes,
        rping_many_rounds,
        rping_own_queue_pair,
        rping_from_an_address,
        rping_wildcard,
        rping_persistent,
        rping_in_valgrind,
        c_suite_operations_in_valgrind,
        c_suite_queues_in_valgrind,
        rping_peer_killed,
        rdma_client_and_server,
        rdma_client_and_server_ipv6,
        rdma_xclient_and_xserver,
        ucmatose_one_connection,
        ucmatose_ipv6,
        ucmatose_many_connections,
        ucmatose_many_messages,
        ucmatose_large_messages,
        ucmatose_without_messages,
        ucmatose_migrates,
        ucmatose_with_options,
        cmtime_many_connections,
        connecting_to_nobody,
        refuses_what_it_has_not,
        perftest_own_address,
        fio_write,
        fio_read,
        fio_send,
        fio_send_verified,
        hosts_rping,
        hosts_write_bw,
        hosts_ucmatose,
        hosts_cut_rping,
        hosts_cut_write_bw,
        hosts_cut_read_bw,
        hosts_slow_line,
        hosts_delay_and_loss,
    ];
    all.extend(perftest::all());
    trials::run(all)
}

const LOOPBACK: &str = "127.0.0.1";
const LOOPBACK6: &str = "::1";

/// One server and one client on this machine, both of which have to succeed.
fn pair(address: &str, server: &str, client: &str) -> Run {
    again_if_rping_races(|| {
        let mut run = Run::at(address);
        let here = Network::default();
        run.start_server(&here, server);
        run.start(&here, client);
        run.all_succeed();
        run
    })
}

/// When rping ends, its main thread destroys the event channel, and frees its state, while another of
/// its threads may be about to ask for the next event. That thread then uses what is freed, over any
/// device, and more often on a busy machine. Such a run says nothing of softverbs: it is done again.
/// Three in a row are a failure.
fn again_if_rping_races<T>(run: impl Fn() -> T) -> T {
    const TRIES: usize = 3;
    let mut tries = 1;
    loop {
        match catch_unwind(AssertUnwindSafe(&run)) {
            Ok(result) => return result,
            Err(panic) => {
                let report = panic.downcast_ref::<String>().map_or("", String::as_str);
                if tries == TRIES || !shows_race_of_rping(report) {
                    resume_unwind(panic);
                }
                tries += 1;
            }
        }
    }
}

fn shows_race_of_rping(report: &str) -> bool {
    let next = report.lines().skip(1);
    let in_valgrind = |(line, next): (&str, &str)| {
        line.contains("Invalid read") && next.ends_with("(in /usr/bin/rping)")
    };
    report.contains("rping") && report.contains("rdma_get_cm_event: Bad file descriptor")
        || report.lines().zip(next).any(in_valgrind)
}

const SERVER: Index = 0;
const CLIENT: Index = 1;

/// The address by which others know this machine.
fn own_address() -> Result<String, Ignored> {
    global_address().ok_or_else(|| ignored("this machine has no address but loopback"))
}

fn global_address() -> Option<String> {
    let addresses = Network::default()
        .sh("ip -o -4 addr show scope global up")
        .ok()?;
    let first = addresses.lines().next()?;
    let mut words = first.split_whitespace().skip_while(|word| *word != "inet");
    let address = words.nth(1)?.split('/').next()?;
    Some(address.to_string())
}

// ---- the device ----

fn ibv_devices_lists_the_device() {
    let mut run = Run::at(LOOPBACK);
    let program = run.start(&Network::default(), "ibv_devices");
    run.all_succeed();
    let output = run.output(program);
    // Two lines of heading, and one for each device: its name and its GUID.
    let devices: Vec<Vec<_>> = output
        .lines()
        .skip(2)
        .map(|line| line.split_whitespace().collect())
        .collect();
    let good = match &devices[..] {
        [device] => {
            device.len() == 2 && u64::from_str_radix(device[1], 16).is_ok_and(|guid| guid > 0)
        }
        _ => false,
    };
    run.expect(good, "one device with a GUID");
}

fn ibv_devinfo_describes_the_device() {
    let mut run = Run::at(LOOPBACK);
    let program = run.start(&Network::default(), "ibv_devinfo -v");
    run.all_succeed();
    for text in ["PORT_ACTIVE (4)", "ATOMIC_HCA (1)", "InfiniBand (0)"] {
        run.says(program, text);
    }
    let output = run.output(program);
    let value = |key: &str| {
        let line = output
            .lines()
            .find(|line| line.trim_start().starts_with(key));
        line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
    };
    for limit in [
        "max_qp:",
        "max_qp_wr:",
        "max_sge:",
        "max_cq:",
        "max_cqe:",
        "max_mr:",
        "max_pd:",
        "max_qp_rd_atom:",
        "max_qp_init_rd_atom:",
        "max_srq:",
        "max_srq_wr:",
        "phys_port_cnt:",
    ] {
        run.expect(value(limit) > Some(0), &format!("{limit} above 0"));
    }
}

/// Beside what it finds, valgrind is another place to run in: without a vDSO, among others.
fn ibv_devinfo_in_valgrind() {
    let mut run = Run::at(LOOPBACK);
    let line = format!("{VALGRIND} ibv_devinfo -v");
    let program = run.start(&Network::default(), &line);
    run.all_succeed();
    run.says(program, "PORT_ACTIVE (4)");
}

const VALGRIND: &str = "valgrind -q --error-exitcode=9";

// ---- rping: the client's bytes are read by the server, and written back ----

fn rping(address: &str, options: &str) -> Run {
    let common = format!("-a {{address}} -p {{port}} -V {options}");
    pair(
        address,
        &format!("rping -s {common}"),
        &format!("rping -c {common}"),
    )
}

/// The client checks the bytes that came back, round by round.
fn rping_rounds(address: &str, options: &str, rounds: usize) {
    let mut run = rping(address, &format!("-v -C {rounds} {options}"));
    for (side, prefix) in [(SERVER, "server ping data: "), (CLIENT, "ping data: ")] {
        let output = run.output(side);
        let seen = output.lines().filter_map(|line| line.strip_prefix(prefix));
        let good = (0..rounds)
            .map(|i| format!("rdma-ping-{i}: "))
            .collect::<Vec<_>>();
        let seen: Vec<_> = seen.collect();
        let all = seen.len() == rounds
            && seen
                .iter()
                .zip(&good)
                .all(|(s, g)| s.starts_with(g.as_str()));
        run.expect(
            all,
            &format!("`{prefix}rdma-ping-N: ...` of all {rounds} rounds in process {side}"),
        );
    }
}

fn rping_ipv4() {
    rping_rounds(LOOPBACK, "", 1000);
}

fn rping_ipv6() {
    rping_rounds(LOOPBACK6, "", 100);
}

fn rping_own_address() -> Outcome {
    rping_rounds(&own_address()?, "", 100);
    Ok(())
}

fn rping_sizes() {
    for size in [23, 64, 100, 4096, 65535] {
        rping_rounds(LOOPBACK, &format!("-S {size}"), 20);
    }
}

fn rping_many_rounds() {
    rping(LOOPBACK, "-C 20000 -S 1000");
}

/// The program makes the queue pair itself, and moves it through its states.
fn rping_own_queue_pair() {
    rping_rounds(LOOPBACK, "-q", 100);
}

fn rping_from_an_address() {
    let common = "-a {address} -p {port} -V -C 20";
    pair(
        LOOPBACK,
        &format!("rping -s {common}"),
        &format!("rping -c -I 127.0.0.1 {common}"),
    );
}

fn rping_wildcard() {
    pair(
        LOOPBACK,
        "rping -s -p {port} -V -C 20",
        "rping -c -a {address} -p {port} -V -C 20",
    );
    pair(
        LOOPBACK6,
        "rping -s -a ::0 -p {port} -V -C 20",
        "rping -c -a {address} -p {port} -V -C 20",
    );
}

/// A server that lives on, with a thread for each of its clients, which are there at the same time.
/// They come one by one, as the server mixes up those that ask at once.
fn rping_persistent() {
    again_if_rping_races(rping_persistent_once);
}

fn rping_persistent_once() {
    const CLIENTS: usize = 8;
    const ROUNDS: usize = 2000;
    let mut run = Run::at(LOOPBACK);
    let here = Network::default();
    let server = run.start_server(&here, "rping -s -P -a {address} -p {port} -V -S 1000");
    for wave in 0..2 {
        let line = format!("rping -c -a {{address}} -p {{port}} -v -V -S 1000 -C {ROUNDS}");
        let mut clients = vec![];
        for _ in 0..CLIENTS {
            let client = run.start(&here, &line);
            run.wait_until(client, "gets going", |run| !run.output(client).is_empty());
            clients.push(client);
        }
        for client in clients {
            let status = run.status(client);
            run.expect(
                status.success(),
                &format!("client {client} of wave {wave} to succeed"),
            );
            let rounds = run.output(client).matches("ping data: rdma-ping-").count();
            run.expect(
                rounds == ROUNDS,
                &format!("{ROUNDS} rounds, not {rounds}, of client {client}"),
            );
        }
    }
    let lives = run.is_running(server);
    run.expect(lives, "the server to live on");
}

/// Memcheck, content only if nothing is lost, or may be.
fn memcheck(more: &[String]) -> String {
    const KINDS: &str = "definite,possible";
    let kinds = format!("--show-leak-kinds={KINDS} --errors-for-leak-kinds={KINDS}");
    in_tool(&format!("--leak-check=full {kinds}"), more)
}

fn helgrind(more: &[String]) -> String {
    in_tool("--tool=helgrind", more)
}

fn in_tool(options: &str, more: &[String]) -> String {
    let ours = suppressions("softverbs.supp");
    [&[VALGRIND.to_string(), options.to_string(), ours], more]
        .concat()
        .join(" ")
}

/// A file of the sources, as an option.
fn suppressions(file: &str) -> String {
    let root = env!("CARGO_MANIFEST_DIR");
    format!("--suppressions={root}/{file}")
}

/// With what is softverbs' own suppressed, and what is rping's.
fn rping_in_valgrind() {
    let common = "-a {address} -p {port} -V -C 50 -S 5000";
    let own = [suppressions("tests/programs/rping.supp")];
    for valgrind in [memcheck(&own), helgrind(&own)] {
        pair(
            LOOPBACK,
            &format!("{valgrind} rping -s {common}"),
            &format!("{valgrind} rping -c {common}"),
        );
    }
}

/// A program of the C suite, built against Debian's librpma.
fn of_the_c_suite(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let source = root.join(format!("c-tests/device/{name}.c"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("programs-{name}"));
    let built = Command::new("cc")
        .args(["-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([&program, &source])
        .args(["-lrpma", "-lrdmacm", "-libverbs"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{name}: {said}");
    program.to_str().unwrap().to_string()
}

/// Both sides of cases of a program, which tells the port that it has found.
fn in_valgrind(name: &str, cases: &[&str]) {
    let program = of_the_c_suite(name);
    for valgrind in [memcheck(&[]), helgrind(&[])] {
        for case in cases {
            let mut run = Run::at(LOOPBACK);
            let here = Network::default();
            let line = format!("{valgrind} {program} {case}");
            let server = run.start(&here, &format!("{line} server {{address}}"));
            let told = |run: &Run| {
                let output = run.output(server);
                let port = output.lines().find_map(|line| line.strip_prefix("port: "));
                port.map(str::to_string)
            };
            run.wait_until(server, "tells its port", |run| told(run).is_some());
            let port = told(&run).unwrap();
            run.start(&here, &format!("{line} client {{address}} {port}"));
            run.all_succeed();
        }
    }
}

fn c_suite_operations_in_valgrind() {
    in_valgrind("ops", &["write", "read", "messages", "flush"]);
}

fn c_suite_queues_in_valgrind() {
    in_valgrind("queues", &["one-cq", "srq-rcq-and-shared-channel"]);
}

/// Who is left sees the end, and ends with an error.
fn rping_peer_killed() {
    for (killed, left) in [(SERVER, CLIENT), (CLIENT, SERVER)] {
        let mut run = Run::at(LOOPBACK);
        let here = Network::default();
        run.start_server(&here, "rping -s -a {address} -p {port} -V -v -S 1000");
        run.start(&here, "rping -c -a {address} -p {port} -V -v -S 1000");
        // What is printed comes in pieces once there is a lot of it: they are in mid-transfer.
        run.wait_until(CLIENT, "gets going", |run| {
            run.output(CLIENT).len() > 10_000
        });
        run.kill(killed);
        run.status(left);
        // Of what it waits for, it may be told first that there was no answer.
        let told = run.errors(left);
        let gone = ["DISCONNECT EVENT", "cq completion failed status 12"];
        let told = gone.iter().any(|text| told.contains(text));
        run.expect(told, &format!("process {left} to tell one of {gone:?}"));
    }
}

// ---- librdmacm's examples ----

fn rdma_client_and_server() {
    for _ in 0..20 {
        let mut run = pair(
            LOOPBACK,
            "rdma_server -s {address} -p {port}",
            "rdma_client -s {address} -p {port}",
        );
        run.says(SERVER, "rdma_server: end 0");
        run.says(CLIENT, "rdma_client: end 0");
    }
}

fn rdma_client_and_server_ipv6() {
    let mut run = pair(
        LOOPBACK6,
        "rdma_server -s {address} -p {port}",
        "rdma_client -s {address} -p {port}",
    );
    run.says(SERVER, "rdma_server: end 0");
    run.says(CLIENT, "rdma_client: end 0");
}

fn rdma_xclient_and_xserver() {
    let mut run = pair(
        LOOPBACK,
        "rdma_xserver -p {port}",
        "rdma_xclient -s {address} -p {port}",
    );
    run.says(SERVER, "rdma_xserver: end 0");
    run.says(CLIENT, "rdma_xclient: end 0");
}

fn ucmatose(address: &str, options: &str) -> Run {
    let mut run = pair(
        address,
        &format!("ucmatose -b {{address}} -p {{port}} {options}"),
        &format!("ucmatose -s {{address}} -p {{port}} {options}"),
    );
    for side in [SERVER, CLIENT] {
        run.says(side, "test complete");
        run.says(side, "return status 0");
    }
    run
}

/// The messages of all connections, both ways.
fn ucmatose_data(address: &str, options: &str) {
    let mut run = ucmatose(address, options);
    for side in [SERVER, CLIENT] {
        run.says(side, "data transfers complete");
    }
}

fn ucmatose_one_connection() {
    ucmatose_data(LOOPBACK, "-c 1");
}

fn ucmatose_ipv6() {
    ucmatose_data(LOOPBACK6, "-c 4");
}

fn ucmatose_many_connections() {
    ucmatose_data(LOOPBACK, "-c 300");
}

fn ucmatose_many_messages() {
    ucmatose_data(LOOPBACK, "-c 4 -C 1000 -S 1");
}

fn ucmatose_large_messages() {
    ucmatose_data(LOOPBACK, "-c 3 -C 30 -S 1000000");
}

fn ucmatose_without_messages() {
    ucmatose(LOOPBACK, "-c 20 -C 0");
}

/// Its ids move to another event channel in between.
fn ucmatose_migrates() {
    let mut run = ucmatose(LOOPBACK, "-c 10 -m");
    for side in [SERVER, CLIENT] {
        run.says(side, "migrating to new event channel");
        run.says(side, "data transfers complete");
    }
}

fn ucmatose_with_options() {
    ucmatose_data(LOOPBACK, "-c 5 -a 10 -t 8 -f ip");
}

/// How long each step of many connections takes. The server goes on until it is killed.
fn cmtime_many_connections() {
    let mut run = Run::at(LOOPBACK);
    let here = Network::default();
    let server = run.start_server(&here, "cmtime -b {address} -p {port} -c 500");
    let client = run.start(&here, "cmtime -s {address} -p {port} -c 500");
    let status = run.status(client);
    run.expect(status.success(), "the client to succeed");
    for step in [
        "create id",
        "resolve addr",
        "resolve route",
        "create qp",
        "connect",
        "disconnect",
        "destroy",
    ] {
        let output = run.output(client);
        let row = output
            .lines()
            .find_map(|line| line.strip_prefix(step)?.split_once(':'));
        let total = row.and_then(|(_, row)| row.split_whitespace().next()?.parse::<f64>().ok());
        run.expect(total > Some(0.0), &format!("a time for `{step}`"));
    }
    run.kill(server);
}

/// Nobody is there: the programs are told, and do not wait for it for ever.
fn connecting_to_nobody() {
    for (line, complaint) in [
        (
            "rping -c -a {address} -p {port} -C 1",
            "RDMA_CM_EVENT_REJECTED, error 8",
        ),
        (
            "rdma_client -s {address} -p {port}",
            "rdma_connect: Connection refused",
        ),
        (
            "ucmatose -s {address} -p {port}",
            "RDMA_CM_EVENT_REJECTED, error: 8",
        ),
        (
            "ib_write_bw -R -p {port} {address}",
            "Unexpected CM event bl blka 8",
        ),
    ] {
        let mut run = Run::at(LOOPBACK);
        let client = run.start(&Network::default(), line);
        run.fails(client);
        run.says(client, complaint);
    }
}

/// What softverbs does not have is refused, and the program can say so.
fn refuses_what_it_has_not() {
    for line in [
        "udaddy -b {address} -p {port}",
        "mckey -m 239.1.1.1 -b {address}",
        "rstream -b {address} -p {port}",
        "ibv_ud_pingpong -p {port}",
        "ibv_uc_pingpong -p {port}",
    ] {
        let mut run = Run::at(LOOPBACK);
        let program = run.start(&Network::default(), line);
        run.fails(program);
    }
}

// ---- perftest ----

/// The rows of the table that perftest prints: bytes, iterations, and what was measured.
fn rows(output: &str) -> Vec<Vec<f64>> {
    let table = output
        .lines()
        .skip_while(|line| !line.starts_with(" #bytes"))
        .skip(1);
    table
        .take_while(|line| !line.starts_with("---"))
        .map(|line| {
            line.split_whitespace()
                .map_while(|word| word.parse().ok())
                .collect()
        })
        .collect()
}

/// Runs a program of perftest. The client has to have measured something for each size, and all
/// iterations of it; None is for as many as there was time for.
fn perftest(address: &str, line: &str, sizes: &[u64], iterations: Option<u64>) {
    let server = format!("{line} -R -F -p {{port}}");
    let mut run = pair(address, &server, &format!("{server} {{address}}"));
    check_rows(&mut run, sizes, iterations);
}

fn check_rows(run: &mut Run, sizes: &[u64], iterations: Option<u64>) {
    let rows = rows(&run.output(CLIENT));
    let seen: Vec<_> = rows
        .iter()
        .filter_map(|row| row.first().map(|size| *size as u64))
        .collect();
    run.expect(
        seen == sizes,
        &format!("a row for each of the sizes {sizes:?}, not {seen:?}"),
    );
    for row in rows {
        let all = match iterations {
            Some(count) => row.get(1) == Some(&(count as f64)),
            None => row.get(1) > Some(&0.0),
        };
        run.expect(all, &format!("{iterations:?} iterations: {row:?}"));
        // Average and rate of a bandwidth, or maximum, typical value and average of a latency. The
        // peak before is not told where there is a time limit, a deviation behind can be NaN.
        let good = row.len() > 4 && row[3..row.len().min(6)].iter().all(|value| *value > 0.0);
        run.expect(good, &format!("measurements above 0: {row:?}"));
    }
}

/// 2 to 8 MiB.
fn all_sizes() -> Vec<u64> {
    (1..=23).map(|power| 1 << power).collect()
}

macro_rules! perftest {
    ($($name:ident: $line:literal, $sizes:expr, $iterations:expr;)*) => {
        mod perftest {
            use super::*;
            use libtest_mimic::Trial;

            pub fn all() -> Vec<Trial> {
                vec![$(trials::trial(concat!("perftest::", stringify!($name)), || {
                    perftest(LOOPBACK, $line, $sizes, $iterations)
                })),*]
            }
        }
    };
}

perftest! {
    write_bw: "ib_write_bw -n 5000", &[65536], Some(5000);
    write_bw_all_sizes: "ib_write_bw -a -n 50", &all_sizes(), Some(50);
    write_bw_both_ways: "ib_write_bw -b -n 2000", &[65536], Some(2000);
    write_bw_queue_pairs: "ib_write_bw -q 8 -n 1000", &[65536], Some(8000);
    write_bw_queue_pairs_both_ways: "ib_write_bw -q 8 -b -n 500", &[65536], Some(4000);
    write_bw_lists: "ib_write_bw -s 512 -l 8 -Q 8 -n 4000", &[512], Some(4000);
    write_bw_old_posting: "ib_write_bw --use_old_post_send -s 1000 -n 2000", &[1000], Some(2000);
    write_bw_for_a_time: "ib_write_bw -D 2", &[65536], None;
    write_lat: "ib_write_lat -n 2000", &[2], Some(2000);
    write_lat_all_sizes: "ib_write_lat -a -n 20", &all_sizes(), Some(20);
    read_bw: "ib_read_bw -n 2000", &[65536], Some(2000);
    read_bw_all_sizes: "ib_read_bw -a -n 50", &all_sizes(), Some(50);
    read_bw_both_ways: "ib_read_bw -b -n 1000", &[65536], Some(1000);
    read_bw_queue_pairs: "ib_read_bw -q 8 -n 500", &[65536], Some(4000);
    read_bw_events: "ib_read_bw -e -n 1000", &[65536], Some(1000);
    read_bw_one_outstanding: "ib_read_bw -o 1 -s 4096 -n 1000", &[4096], Some(1000);
    read_lat: "ib_read_lat -n 2000", &[2], Some(2000);
    read_lat_all_sizes: "ib_read_lat -a -n 20", &all_sizes(), Some(20);
    read_lat_events: "ib_read_lat -e -n 500", &[2], Some(500);
    send_bw: "ib_send_bw -n 5000", &[65536], Some(5000);
    send_bw_all_sizes: "ib_send_bw -a -n 50", &all_sizes(), Some(50);
    send_bw_both_ways: "ib_send_bw -b -n 2000", &[65536], Some(2000);
    send_bw_queue_pairs: "ib_send_bw -q 8 -n 500", &[65536], Some(4000);
    send_bw_events: "ib_send_bw -e -n 2000", &[65536], Some(2000);
    send_bw_shared_receives: "ib_send_bw --use-srq -q 4 -n 500 -s 4096", &[4096], Some(2000);
    send_bw_few_receives: "ib_send_bw -r 8 -n 2000 -s 4096", &[4096], Some(2000);
    send_lat: "ib_send_lat -n 2000", &[2], Some(2000);
    send_lat_all_sizes: "ib_send_lat -a -n 20", &all_sizes(), Some(20);
    send_lat_events: "ib_send_lat -e -n 500", &[2], Some(500);
    send_lat_shared_receives: "ib_send_lat --use-srq -n 500", &[2], Some(500);
    atomic_bw_fetch_and_add: "ib_atomic_bw -A FETCH_AND_ADD -n 2000", &[8], Some(2000);
    atomic_bw_compare_and_swap: "ib_atomic_bw -A CMP_AND_SWAP -n 2000", &[8], Some(2000);
    atomic_bw_queue_pairs_both_ways: "ib_atomic_bw -b -q 4 -n 500", &[8], Some(2000);
    atomic_bw_events: "ib_atomic_bw -e -n 500", &[8], Some(500);
    atomic_lat: "ib_atomic_lat -n 1000", &[8], Some(1000);
    // Queue pairs as the program makes them, connected over rdma_cm.
    write_bw_regular_queue_pairs: "ib_write_bw -z -n 500", &[65536], Some(500);
}

fn perftest_own_address() -> Outcome {
    perftest(&own_address()?, "ib_read_bw -n 500", &[65536], Some(500));
    Ok(())
}

// ---- fio ----

/// Client and server of fio's rdma engine.
fn fio(verb: &str, client: &str, common: &str) -> Run {
    let common = format!("--port={{port}} {common}");
    let server = format!("fio --ioengine=rdma --name=server --rw=read {common}");
    let client = format!(
        "fio --ioengine=rdma --name=client --hostname={{address}} --verb={verb} {common} {client}"
    );
    let mut run = pair(LOOPBACK, &server, &client);
    // It ends with status 0 whatever happens.
    for side in [SERVER, CLIENT] {
        run.says(side, "err= 0");
        run.says_not(side, "fio: cq completion");
    }
    run
}

fn fio_write() {
    let mut run = fio("write", "--rw=write", "--bs=64k --size=256m --iodepth=16");
    run.says(CLIENT, "io=256MiB");
}

fn fio_read() {
    let mut run = fio("read", "--rw=write", "--bs=64k --size=256m --iodepth=16");
    run.says(CLIENT, "io=256MiB");
}

/// fio's server asks for no retries of a message that finds no receive, and posts receives in its own
/// time: so it has one for each message from the start.
fn fio_send() {
    let mut run = fio(
        "send",
        "--rw=write --iodepth=4",
        "--bs=64k --size=24m --iodepth=512",
    );
    for side in [SERVER, CLIENT] {
        run.says(side, "io=24.0MiB");
    }
}

/// The receiver checks each block: its header, its place and a sum over all of it.
fn fio_send_verified() {
    let options = "--bs=4k --size=1m --iodepth=512 --verify=crc32c";
    let mut run = fio("send", "--rw=write --iodepth=4 --do_verify=0", options);
    run.says_not(SERVER, "verify");
}

// ---- between two hosts ----

/// The hosts, where there can be any.
fn hosts() -> Result<Hosts, Ignored> {
    Hosts::new().map_err(|why| ignored(&format!("no network namespaces: {why}")))
}

/// A server on one host and a client on the other, with the same options.
fn between(hosts: &Hosts, address: &str, server: &str, client: &str) -> Run {
    let mut run = Run::at(address);
    run.start_server(&hosts.server, server);
    run.start(&hosts.client, client);
    run
}

fn rping_between(hosts: &Hosts, address: &str, options: &str) -> Run {
    let common = format!("-a {{address}} -p {{port}} {options}");
    between(
        hosts,
        address,
        &format!("rping -s {common}"),
        &format!("rping -c {common}"),
    )
}

fn perftest_between(hosts: &Hosts, line: &str) -> Run {
    let server = format!("{line} -R -F -p {{port}}");
    between(
        hosts,
        Hosts::SERVER,
        &server,
        &format!("{server} {{address}}"),
    )
}

fn hosts_rping() -> Outcome {
    let hosts = hosts()?;
    rping_between(&hosts, Hosts::SERVER, "-V -C 1000 -S 4096").all_succeed();
    rping_between(&hosts, Hosts::SERVER6, "-V -C 1000 -S 4096").all_succeed();
    Ok(())
}

fn hosts_write_bw() -> Outcome {
    let hosts = hosts()?;
    let mut run = perftest_between(&hosts, "ib_write_bw -a -n 50");
    run.all_succeed();
    check_rows(&mut run, &all_sizes(), Some(50));
    Ok(())
}

fn hosts_ucmatose() -> Outcome {
    let hosts = hosts()?;
    let server = "ucmatose -b {address} -p {port} -c 50";
    let mut run = between(
        &hosts,
        Hosts::SERVER,
        server,
        "ucmatose -s {address} -p {port} -c 50",
    );
    run.all_succeed();
    for side in [SERVER, CLIENT] {
        run.says(side, "data transfers complete");
    }
    Ok(())
}

/// The cable is cut in mid-transfer: both sides end, and say why.
fn cut(hosts: &Hosts, mut run: Run) {
    const MID_TRANSFER: u64 = 1 << 20;
    run.wait_until(CLIENT, "has sent a MiB", |run| {
        sent(run, CLIENT) > MID_TRANSFER
    });
    let cable = Hosts::CABLE;
    hosts
        .client
        .sh(&format!("ip link set {cable} down"))
        .unwrap();
    for side in [CLIENT, SERVER] {
        run.status(side);
    }
    hosts.client.sh(&format!("ip link set {cable} up")).unwrap();
    let told = run.output(CLIENT) + &run.errors(CLIENT);
    let endings = [
        "DISCONNECT EVENT",
        "cq completion failed",
        "Completion with error",
    ];
    let told = endings.iter().any(|text| told.contains(text));
    run.expect(told, "the client to tell of an error or of the end");
}

/// The bytes that have left a process's host by the cable.
fn sent(run: &Run, of: Index) -> u64 {
    let table = fs::read_to_string(format!("/proc/{}/net/dev", run.pid(of))).unwrap_or_default();
    let cable = format!("{}:", Hosts::CABLE);
    let row = table
        .lines()
        .find_map(|line| line.trim_start().strip_prefix(&cable));
    let bytes = row.and_then(|row| row.split_whitespace().nth(8)?.parse().ok());
    bytes.unwrap_or(0)
}

fn hosts_cut_rping() -> Outcome {
    let hosts = hosts()?;
    cut(&hosts, rping_between(&hosts, Hosts::SERVER, "-V -S 4096"));
    Ok(())
}

fn hosts_cut_write_bw() -> Outcome {
    let hosts = hosts()?;
    cut(&hosts, perftest_between(&hosts, "ib_write_bw -D 60"));
    Ok(())
}

fn hosts_cut_read_bw() -> Outcome {
    let hosts = hosts()?;
    cut(&hosts, perftest_between(&hosts, "ib_read_bw -D 60"));
    Ok(())
}

/// A slow line with a short queue, which drops what TCP sends too fast.
fn hosts_slow_line() -> Outcome {
    let hosts = hosts()?;
    let slow = "root tbf rate 40mbit burst 16kb limit 24kb";
    let cable = Hosts::CABLE;
    for host in [&hosts.server, &hosts.client] {
        if let Err(why) = host.sh(&format!("tc qdisc add dev {cable} {slow}")) {
            return Err(ignored(&why));
        }
    }
    rping_between(&hosts, Hosts::SERVER, "-V -C 50 -S 65535").all_succeed();
    let mut run = perftest_between(&hosts, "ib_write_bw -s 1048576 -n 10");
    run.all_succeed();
    check_rows(&mut run, &[1 << 20], Some(10));
    drops(&hosts);
    Ok(())
}

/// The line has dropped something, at one of its ends.
#[track_caller]
fn drops(hosts: &Hosts) {
    let show = format!("tc -s qdisc show dev {}", Hosts::CABLE);
    let queues = [&hosts.server, &hosts.client].map(|host| host.sh(&show).unwrap());
    let dropped = queues.iter().any(|queue| {
        let dropped = queue.split("dropped ").nth(1);
        let dropped = dropped.and_then(|rest| rest.split(',').next());
        dropped.is_some_and(|dropped| dropped != "0")
    });
    assert!(dropped, "expected the line to drop something: {queues:?}");
}

/// A long line that loses and reorders.
fn hosts_delay_and_loss() -> Outcome {
    let hosts = hosts()?;
    let far = "root netem delay 5ms 2ms loss 1%";
    for host in [&hosts.server, &hosts.client] {
        if let Err(why) = host.sh(&format!("tc qdisc add dev {} {far}", Hosts::CABLE)) {
            return in_virtual_machine(&format!("the kernel has no netem: {why}"));
        }
    }
    rping_between(&hosts, Hosts::SERVER, "-V -C 100 -S 4096").all_succeed();
    let mut run = perftest_between(&hosts, "ib_write_bw -n 100");
    run.all_succeed();
    check_rows(&mut run, &[65536], Some(100));
    drops(&hosts);
    Ok(())
}
