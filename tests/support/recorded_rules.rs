//! What is known to differ between the original's traces and ours, as rewrites of the original's.
//!
//! A rewrite makes of the original's trace the one that ours has to give, to the letter; it is
//! never a reason not to compare.

use super::recorded::{ApiCall, Case, Fault, Trace, error_text, name};
use std::collections::HashMap;

/// All of them, each of which has to show somewhere.
pub const ALL: [&str; 14] = [
    "D1",
    "D2",
    "D3",
    "D4",
    "D5",
    "D6",
    "D7",
    "D8",
    "D9",
    "D10",
    "D11",
    "D12",
    "channel last",
    "asked once",
];

/// Where release 1.2.0 of the original, as Debian has it, differs from 1.3.0.
pub const OF_1_2_0: [&str; 3] = [
    "no native operations",
    "no extended QPs",
    "asks a device once",
];

/// The scenario without the words of its name for native operations, of which 1.2.0 makes no use.
pub fn without_native(scenario: &str) -> String {
    let Some((what, device)) = scenario.split_once(" on ") else {
        return scenario.to_string();
    };
    let others = device.split(' ').filter(|word| {
        !["native", "atomic", "volatile", "no-extension"].contains(word)
            && !word.starts_with("flush")
            && !word.starts_with("refuse")
    });
    let others: Vec<_> = others.collect();
    match others.is_empty() {
        true => format!("{what} on plain"),
        false => format!("{what} on {}", others.join(" ")),
    }
}

/// The trace that 1.2.0 has to give by that of 1.3.0, and the differences that show in it.
pub fn expected_of_1_2_0(
    case: &Case,
    original: &str,
    clean: &HashMap<String, String>,
) -> (String, Vec<&'static str>) {
    let mut seen = vec![];
    let mut trace = Trace::parse(original);
    let plain = without_native(&case.scenario);
    if plain != case.scenario {
        let plain = [plain.clone(), plain.replace(" on plain", " by default")]
            .iter()
            .find_map(|name| clean.get(&format!("{name}\tclean")))
            .unwrap_or_else(|| panic!("no such scenario: {plain}"));
        trace = Trace::parse(plain);
        seen.push("no native operations");
    }
    let asks = |line: &String| name(line).starts_with("ibv_query_device");
    if let Some(Fault { point, .. }) = &case.fault
        && asks(&point.call)
        && point.nth > 1
    {
        trace = Trace::parse(&clean[&case.clean()]);
    }
    for call in &mut trace.calls {
        for line in &mut call.lines {
            if name(line) == "rdma_create_qp_ex" {
                *line = line.replace("mask 0x41", "mask 0x1");
                seen.push("no extended QPs");
            }
        }
        call.lines.retain(|line| name(line) != "ibv_qp_to_qp_ex");
        if call.is("rpma_peer_new") && call.lines.iter().any(asks) {
            // The old way to ask is for where there is no new one.
            let first = call.lines.iter().take_while(|line| asks(line));
            let old = first
                .skip(1)
                .take_while(|line| name(line) == "ibv_query_device");
            let old = match name(&call.lines[0]) {
                "ibv_query_device" => 0,
                _ => old.count(),
            };
            let asked = call.lines.iter().take_while(|line| asks(line)).count();
            call.lines.drain(1 + old..asked);
            call.log.retain(|line| line != "INFO");
            call.log.insert(0, "INFO".to_string());
            seen.push("asks a device once");
        }
    }
    seen.dedup();
    (trace.to_string(), seen)
}

/// What rewriting one case needs.
pub struct Rewrite<'a> {
    case: &'a Case,
    /// The original's trace of each scenario as it is.
    clean: &'a HashMap<String, String>,
    trace: Trace,
    /// The differences that show in this case.
    seen: Vec<&'static str>,
}

/// The trace that ours has to give, and the differences that show in it.
pub fn expected(
    case: &Case,
    original: &str,
    clean: &HashMap<String, String>,
) -> (String, Vec<&'static str>) {
    let mut rewrite = Rewrite {
        case,
        clean,
        trace: Trace::parse(original),
        seen: vec![],
    };
    rewrite.d11();
    rewrite.asked_once();
    rewrite.d12();
    rewrite.d1();
    rewrite.d9();
    if rewrite.d1_on_the_way() {
        return (rewrite.trace.to_string(), rewrite.seen);
    }
    for api in 0..rewrite.trace.calls.len() {
        rewrite.d2(api);
        rewrite.d3(api);
        rewrite.d4(api);
        rewrite.channel_last(api);
        rewrite.d5(api);
        rewrite.d6(api);
        rewrite.d7(api);
        rewrite.d8(api);
        rewrite.d10(api);
    }
    rewrite.seen.dedup();
    (rewrite.trace.to_string(), rewrite.seen)
}

impl<'a> Rewrite<'a> {
    fn fault(&self) -> Option<&'a Fault> {
        self.case.fault.as_ref()
    }

    fn call(&mut self, api: usize) -> &mut ApiCall {
        &mut self.trace.calls[api]
    }

    /// Whether all that can fail does, where `api`'s line `at` would be.
    fn is_broken(&self, api: usize, at: usize) -> bool {
        let Some(Fault {
            point, on: true, ..
        }) = self.fault()
        else {
            return false;
        };
        let of_api = |i: usize| {
            let lines = &self.trace.calls[i].lines;
            let lines = if i == api { &lines[..at] } else { lines };
            lines.iter().filter(|line| name(line) == point.call).count()
        };
        // The calls of the interface are counted from 1.
        match (point.api - 1).cmp(&api) {
            std::cmp::Ordering::Greater => false,
            _ => of_api(point.api - 1) >= point.nth,
        }
    }

    /// Inserts a call, which fails if the case says so; then with which errno.
    fn insert(&mut self, api: usize, at: usize, line: &str) -> Option<String> {
        let before = &self.trace.calls[api].lines[..at];
        let nth = 1 + before.iter().filter(|l| name(l) == name(line)).count();
        let fault = self.fault().cloned();
        let hit = fault.as_ref().is_some_and(|Fault { point, .. }| {
            point.api == api + 1 && point.call == name(line) && point.nth == nth
        });
        let error = (hit || self.is_broken(api, at)).then(|| fault.unwrap().error);
        let result = match &error {
            Some(error) => format!("-1 {error}"),
            None => "0".to_string(),
        };
        let line = format!("{line} = {result}");
        self.call(api).lines.insert(at, line);
        error
    }

    /// Inserts the end of an id, which is no longer alive then.
    fn destroy_id(&mut self, api: usize, at: usize, id: &str) -> Option<String> {
        let error = self.insert(api, at, &format!("rdma_destroy_id({id})"));
        if error.is_none() {
            self.trace.released(id);
        }
        error
    }

    /// No device: an error where the original gives NULL.
    fn d1(&mut self) {
        for call in &mut self.trace.calls {
            if call.is("rpma_utils_get_ibv_context") && call.code == "0" && call.shown == ["NULL"] {
                call.code = "PROVIDER".to_string();
                call.out = "kept".to_string();
                call.log = vec!["ERROR".to_string()];
                call.shown.clear();
                self.seen.push("D1");
            }
        }
    }

    /// No device: an error where the original crashes, or does so later. Whether that shows.
    fn d1_on_the_way(&mut self) -> bool {
        let (text, id) = match self.case.scenario.as_str() {
            "no_device_to_request" => (
                "rpma_conn_req_new(in.peer, \"10.77.0.1\", \"7471\", NULL, OUT)",
                "id0",
            ),
            "no_device_to_accept" => ("rpma_ep_next_conn_req(in.ep, NULL, OUT)", "id1"),
            _ => return false,
        };
        let Some(at) = self.call(0).find("ibv_create_comp_channel") else {
            return false;
        };
        // It is not asked for a channel; that it crashes later on is no concern.
        let mut call = ApiCall {
            lines: self.call(0).lines[..at].to_vec(),
            text: text.to_string(),
            code: "PROVIDER".to_string(),
            out: "kept".to_string(),
            log: vec!["ERROR".to_string()],
            ..ApiCall::default()
        };
        let looked_up = call.find("rdma_getaddrinfo").is_some();
        if looked_up {
            call.lines.push("rdma_freeaddrinfo(info0)".to_string());
        }
        self.trace = Trace {
            calls: vec![call, ApiCall::default()],
            alive: Some(vec![id.to_string()]),
            ..Trace::default()
        };
        if looked_up {
            self.destroy_id(0, at, id);
        } else {
            self.insert(0, at, "rdma_ack_cm_event(event0)");
            self.insert(0, at + 1, &format!("rdma_reject({id}, NULL, 0)"));
            self.destroy_id(0, at + 2, id);
        }
        self.seen.push("D1");
        true
    }

    /// Nothing has come yet: no error.
    fn d2(&mut self, api: usize) {
        let call = self.call(api);
        let waits = call.is("rpma_ep_next_conn_req") || call.is("rpma_conn_next_event");
        if waits && call.lines.len() == 1 && call.lines[0].ends_with(" = -1 EAGAIN") {
            assert_eq!(
                call.log,
                ["ERROR(rdma_get_cm_event: Resource temporarily unavailable)"]
            );
            call.code = "NO_EVENT".to_string();
            call.log.clear();
            self.seen.push("D2");
        }
    }

    /// A request that is deleted: the id goes too.
    fn d3(&mut self, api: usize) {
        let call = self.call(api);
        let Some(reject) = call.find("rdma_reject") else {
            return;
        };
        let deletes = call.is("rpma_conn_req_delete");
        let id = call.lines[reject]["rdma_reject(".len()..]
            .split(',')
            .next()
            .unwrap()
            .to_string();
        if let Some(error) = self.destroy_id(api, reject + 1, &id) {
            let call = self.call(api);
            // Behind it is the shared channel.
            let behind = call.lines.get(reject + 2);
            let logged = behind.is_some_and(|line| !line.ends_with(" = 0"));
            let at = call.log.len() - usize::from(logged);
            let text = error_text(&error);
            call.log
                .insert(at, format!("ERROR(rdma_destroy_id: {text})"));
            if deletes && call.code == "0" {
                call.code = "PROVIDER".to_string();
            }
        }
        self.seen.push("D3");
    }

    /// A request that can't be equipped: the client is told, the id goes. The original destroys it
    /// if it finds no memory for private data, but before the event is acknowledged.
    fn d4(&mut self, api: usize) {
        let call = self.call(api);
        if let (Some(0), Some(destroyed), Some(ack)) = (
            call.find("rdma_get_cm_event"),
            call.find("rdma_destroy_id"),
            call.find("rdma_ack_cm_event"),
        ) && destroyed < ack
        {
            call.lines.remove(destroyed);
        }
        let (Some(0), Some(ack)) = (
            call.find("rdma_get_cm_event"),
            call.find("rdma_ack_cm_event"),
        ) else {
            return;
        };
        let request = call.lines[0].ends_with(" CONNECT_REQUEST");
        let deleted = call.find("rdma_reject").is_some();
        if !request || call.code == "0" || deleted {
            return;
        }
        let id = self.id_of_request(api);
        self.insert(api, ack + 1, &format!("rdma_reject({id}, NULL, 0)"));
        self.destroy_id(api, ack + 2, &id);
        self.seen.push("D4");
    }

    /// The id that a request has brought: the endpoint's is the first.
    fn id_of_request(&self, api: usize) -> String {
        let lines = self.trace.calls[..=api].iter().flat_map(|call| &call.lines);
        let made = lines.filter(|line| {
            line.ends_with(" CONNECT_REQUEST")
                || (name(line) == "rdma_create_id" && !line.contains(" = NULL"))
        });
        format!("id{}", made.count())
    }

    /// A connection that can't be made on the passive side: the id goes, and the client is told
    /// where it was not accepted.
    fn d5(&mut self, api: usize) {
        let call = self.call(api);
        let (Some(accept), true) = (call.find("rdma_accept"), call.code != "0") else {
            return;
        };
        let accepted = call.lines[accept].ends_with(" = 0");
        let id = call.lines[accept]["rdma_accept(".len()..]
            .split(',')
            .next()
            .unwrap()
            .to_string();
        // The shared channel comes after the id, and so may the event channel.
        let shared = self.case.scenario.contains("shared");
        let last = self.call(api).lines.last();
        let events = last.is_some_and(|line| name(line) == "rdma_destroy_event_channel");
        let mut at = self.call(api).lines.len() - usize::from(shared) - usize::from(events);
        if !accepted {
            self.insert(api, at, &format!("rdma_reject({id}, NULL, 0)"));
            at += 1;
        }
        self.destroy_id(api, at, &id);
        self.seen.push("D5");
    }

    /// An event channel goes after the ids on it. Where the connection was accepted, its id stays
    /// on the channel until it goes (D5), since without one to disconnect is to wait for the other
    /// side; else only where it can't be taken off.
    fn channel_last(&mut self, api: usize) {
        let call = &mut self.trace.calls[api];
        let (Some(end), false) = (call.find("rdma_destroy_event_channel"), call.code == "0") else {
            return;
        };
        let back = end - 1;
        if name(&call.lines[back]) != "rdma_migrate_id" || !call.lines[back].contains(", NULL)") {
            return;
        }
        let accepted = call.find("rdma_accept").is_some();
        if accepted || !call.lines[back].ends_with(" = 0") {
            let line = call.lines.remove(end);
            call.lines.push(line);
            self.seen.push("channel last");
        }
        if accepted {
            call.lines.remove(back);
        }
    }

    /// A length that verbs can't express.
    fn d6(&mut self, api: usize) {
        let call = self.call(api);
        if call.text.contains("0x100000004") {
            call.lines.clear();
            call.code = "INVAL".to_string();
            call.log.clear();
            self.seen.push("D6");
        }
    }

    /// A flush by a read stays inside the region, of which there are two in the scenarios.
    fn d7(&mut self, api: usize) {
        const ENDS: [u64; 2] = [0x1000_1000, 0x8000_0004_1000_0003];
        let call = &mut self.trace.calls[api];
        if !call.is("rpma_flush") {
            return;
        }
        for line in &mut call.lines {
            let Some((_, to)) = line.split_once(", to 0x") else {
                continue;
            };
            let to = u64::from_str_radix(to.split(',').next().unwrap(), 16).unwrap();
            let rests = ENDS.map(|end| end.saturating_sub(to));
            let rest = rests.into_iter().find(|rest| (1..8).contains(rest));
            if let (true, Some(rest)) = (line.contains("RDMA_READ"), rest) {
                assert!(line.contains(", length 8,"), "{line}");
                *line = line.replace(", length 8,", &format!(", length {rest},"));
                self.seen.push("D7");
            }
        }
    }

    /// A type of flush that there is not.
    fn d8(&mut self, api: usize) {
        let call = self.call(api);
        if call.is("rpma_flush")
            && (call.text.contains(" 8, 2, ") || call.text.contains(" 8, -1, "))
        {
            call.lines.clear();
            call.code = "INVAL".to_string();
            call.log.clear();
            self.seen.push("D8");
        }
    }

    /// Advice on no region.
    fn d9(&mut self) {
        if self.case.scenario == "advice_on_nothing" {
            assert_eq!(self.trace.rest, ["killed by SIGSEGV"]);
            self.trace = Trace::parse("rpma_mr_advise(NULL, 0, 8, 0, 0) = INVAL log -\nalive -\n");
            self.seen.push("D9");
        }
    }

    /// A context in an error line.
    fn d10(&mut self, api: usize) {
        for shown in &mut self.trace.calls[api].shown {
            if shown == "context cut in the log" {
                *shown = "context whole in the log".to_string();
                self.seen.push("D10");
            }
        }
    }

    /// A provider that refuses the operations of a QP is asked for fewer of them.
    fn d11(&mut self) {
        let Some(api) = self.trace.calls.iter().position(|call| {
            call.find("rdma_create_qp_ex").is_some_and(|at| {
                let line = &call.lines[at];
                let refused = line.ends_with(" = -1 EOPNOTSUPP") || line.ends_with(" = -1 ENOSYS");
                refused && !line.contains("ops 0)")
            })
        }) else {
            return;
        };
        let at = self.trace.calls[api].find("rdma_create_qp_ex").unwrap();
        let line = self.trace.calls[api].lines[at].clone();
        let (call, error) = line.rsplit_once(" = ").unwrap();
        let with = |ops: &str| {
            let (front, _) = call.split_once("mask 0x41").unwrap();
            let (_, back) = call.split_once("mask 0x41").unwrap();
            let (pd, _) = back.split_once("ops ").unwrap();
            let mask = if ops == "0" { "mask 0x1" } else { "mask 0x41" };
            format!("{front}{mask}{pd}ops {ops})")
        };
        let tries: &[&str] = match call.rsplit_once("ops ").unwrap().1 {
            "0x1800)" => &["0x1000", "0"],
            "0x1000)" | "0x800)" => &["0"],
            other => panic!("a QP with other operations: {other}"),
        };
        self.seen.push("D11");
        let on = self.fault().is_some_and(|fault| fault.on);
        let scenario = self.case.scenario.as_str();
        let refused = |ops: &str| match scenario {
            name if name.ends_with("refuse-flush") => ops == "0x1800" || ops == "0x800",
            name if name.ends_with("refuse-ops") => ops != "0",
            _ => on,
        };
        let mut at = at + 1;
        for ops in tries {
            if refused(ops) {
                let line = format!("{} = {error}", with(ops));
                self.trace.calls[api].lines.insert(at, line);
                at += 1;
                continue;
            }
            // From here on it is as with a device that has no more than this.
            let like = match *ops {
                "0" => "plain",
                _ => "atomic",
            };
            self.go_on_like(api, at, like, &with(ops));
            return;
        }
    }

    /// From line `at` of `api` on, the trace is that of the same scenario on a device that has no
    /// more than the QP that is made there.
    fn go_on_like(&mut self, api: usize, at: usize, device: &str, made: &str) {
        let (what, _) = self.case.scenario.split_once(" on ").unwrap();
        let names = [
            format!("{what} on {device}\tclean"),
            format!("{what} by default\tclean"),
        ];
        let other = names.iter().find_map(|name| self.clean.get(name));
        let mut other = Trace::parse(other.unwrap_or_else(|| panic!("none of {names:?}")));
        let own = Trace::parse(&self.clean[&self.case.clean()]);
        for (i, call) in other.calls.iter_mut().enumerate() {
            let Some(create) = call.find("rdma_create_qp_ex") else {
                continue;
            };
            if i < api {
                *call = self.trace.calls[i].clone();
            } else if i > api {
                // The next one is made as if nothing had happened.
                call.lines[create] = own.calls[i].lines[create].clone();
            } else {
                let mut lines = self.trace.calls[i].lines[..at].to_vec();
                let (_, result) = call.lines[create].rsplit_once(" = ").unwrap();
                lines.push(format!("{made} = {result}"));
                lines.extend_from_slice(&call.lines[create + 1..]);
                call.lines = lines;
            }
        }
        if made.contains("ops 0)") || self.case.scenario.contains("no-extension") {
            // Made without the extended interface, it has none.
            for line in other.calls.iter_mut().flat_map(|call| &mut call.lines) {
                if name(line) == "ibv_qp_to_qp_ex" {
                    *line = line.replace("= given", "= NULL");
                }
            }
        }
        self.trace = other;
    }

    /// Memory that the device says is not persistent is registered for less.
    fn d12(&mut self) {
        // A device that says so of all memory: as with one that does not, but for what follows.
        if self.case.scenario.ends_with(" volatile") {
            let native = self.case.scenario.replace("volatile", "native");
            self.trace = Trace::parse(&self.clean[&format!("{native}\tclean")]);
            for api in 0..self.trace.calls.len() {
                self.register_for_less(api, true);
            }
        } else if self.case.scenario.ends_with(" volatile full") {
            for api in 0..self.trace.calls.len() {
                self.register_for_less(api, false);
            }
        }
        if let Some(Fault { point, error, on }) = self.fault()
            && point.call == "ibv_reg_mr"
            && error == "EINVAL"
            && !on
        {
            let trace = Trace::parse(&self.clean[&self.case.clean()]);
            if persistent(&trace.calls[point.api - 1]) {
                self.trace = trace;
                self.register_for_less(point.api - 1, true);
            }
        }
    }

    /// What a call does to register memory for a flush to persistence, it does once more for all
    /// the rest, after EINVAL; whether that works.
    fn register_for_less(&mut self, api: usize, works: bool) {
        const REFUSED: &str = "NULL EINVAL";
        let call = &mut self.trace.calls[api];
        if !persistent(call) {
            return;
        }
        let less = call.lines.iter().map(|line| {
            let (front, access, back) = access(line).unwrap();
            let back = if works { back } else { " = NULL ENOMEM" };
            let less = match access & !FLUSH_PERSISTENT {
                0 => "0".to_string(),
                less => format!("{less:#x}"),
            };
            format!("{front}{less}){back}")
        });
        let less: Vec<_> = less.collect();
        let last = call.lines.last_mut().unwrap();
        let (call_itself, _) = last.rsplit_once(" = ").unwrap();
        *last = format!("{call_itself} = {REFUSED}");
        call.lines.extend(less);
        if works {
            call.log.push("WARNING".to_string());
        }
        self.seen.push("D12");
    }

    /// A QP is asked for its extended interface once, not by each operation.
    fn asked_once(&mut self) {
        let operation = |call: &ApiCall| call.is("rpma_atomic_write") || call.is("rpma_flush");
        for call in self.trace.calls.iter_mut().filter(|call| operation(call)) {
            let lines = call.lines.len();
            call.lines.retain(|line| name(line) != "ibv_qp_to_qp_ex");
            if call.lines.len() < lines {
                self.seen.push("asked once");
            }
        }
    }
}

const FLUSH_PERSISTENT: u32 = 0x200;

/// A line that registers memory, around its access rights.
fn access(line: &str) -> Option<(&str, u32, &str)> {
    let at = line.find("access ")? + "access ".len();
    let (front, rest) = line.split_at(at);
    let (access, back) = rest.split_once(')')?;
    let access = u32::from_str_radix(access.trim_start_matches("0x"), 16).unwrap();
    Some((front, access, back))
}

/// Whether a call registers memory for a native flush to persistence.
fn persistent(call: &ApiCall) -> bool {
    let registers = |line: &String| name(line) == "ibv_reg_mr";
    let access = call.lines.last().and_then(|line| access(line));
    call.lines.iter().all(registers) && access.is_some_and(|(_, a, _)| a & FLUSH_PERSISTENT != 0)
}
