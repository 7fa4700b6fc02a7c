//! The model of a reliable connection, and what is checked against it.
//!
//! The numbers of rules are those of docs/model.md.

use super::*;

/// What is checked of one end.
#[derive(Default)]
pub struct Model {
    /// The number of the request that is 0 on the wire.
    pub base: usize,
    /// The request that completes next.
    pub next: usize,
    /// All requests before this one are known to have been carried out.
    pub confirmed: usize,
    /// A request of this end has ended badly.
    pub errored: bool,
    pub receive_errored: bool,
    /// The receive that completes next.
    pub next_receive: usize,
    /// The request of the other end that takes the next receive.
    pub next_message: usize,
    /// The first request of the other end that may be the next order.
    pub next_order: usize,
    /// What the words are once all before the next order has been carried out.
    pub words: [u64; WORDS_LEN],
    /// What they were when the connection began.
    pub first_words: [u64; WORDS_LEN],
    /// Reads and atomics that have been sent and not been answered.
    pub reads: Vec<usize>,
    /// All requests before this one have been answered, but for reads.
    pub acked: usize,
    /// The request that may not be sent again before that time, or before a receive is there.
    pub rnr_wait: Option<(usize, Option<Instant>)>,
    /// The request up to which the program has polled.
    pub polled: usize,
    /// The program has done something that fails the queue pair.
    pub cause: bool,
    /// A NAK has been sent.
    pub refused: bool,
    pub failed: bool,
    pub failures: u32,
    /// The other end has been told of the failure.
    pub said_failed: bool,
    pub abandoned: bool,
    pub established: bool,
    pub disconnected: bool,
    /// How many of the events have been looked at.
    pub told: usize,
}

impl World<'_> {
    /// Requests of an end up to that one must have been carried out.
    pub fn confirm(&mut self, end: End, upto: usize) {
        let peer = other(end);
        let (from, upto) = (
            self.models[end].confirmed,
            upto.min(self.programs[end].requests.len()),
        );
        for i in from..upto {
            let request = &self.programs[end].requests[i];
            let done = match request.op {
                Op::Write { at, imm: None } if request.expected == Status::Success => {
                    request.executed
                        || request.post.kind == Kind::WriteWord
                        || request.len == 0
                        || has_pattern(
                            request.id,
                            0,
                            &self.programs[peer].bytes_at(at, request.len),
                        )
                }
                Op::Read { .. } => request.expected == Status::Success,
                _ => request.executed,
            };
            check!(
                self,
                end,
                done,
                "rule 3: request {i} ({:?}) counts as carried out, and was not",
                self.programs[end].requests[i].post
            );
            self.programs[end].requests[i].executed = true;
        }
        self.models[end].confirmed = from.max(upto);
    }

    /// A frame has been handed to the link.
    pub fn frame_sent(&mut self, end: End, frame: &Frame) {
        let peer = other(end);
        let theirs = self.models[peer].base;
        let index = |seq: u32| theirs + seq as usize;
        let answers = matches!(
            frame,
            Frame::Ack(_)
                | Frame::Nak(..)
                | Frame::Data { .. }
                | Frame::Value { .. }
                | Frame::NotReady { .. }
        );
        let late = answers && self.models[end].said_failed;
        check!(
            self,
            end,
            !late,
            "rule 22: {frame:?} is sent after the failure was told"
        );
        match *frame {
            Frame::Ack(seq) => self.confirm(peer, index(seq) + 1),
            Frame::Data { seq, .. } => self.confirm(peer, index(seq)),
            Frame::Value { seq, .. } => self.confirm(peer, index(seq) + 1),
            Frame::Nak(seq, _) => {
                self.stats.add(Seen::Nak);
                self.models[end].refused = true;
                self.confirm(peer, index(seq));
            }
            Frame::NotReady { seq, .. } => {
                self.stats.add(Seen::RnrNak);
                self.confirm(peer, index(seq));
                let request = self.programs[peer].requests.get(index(seq));
                let takes = request.is_some_and(|request| request.op.takes_receive());
                check!(
                    self,
                    end,
                    takes,
                    "rule 14: an RNR NAK of request {seq}, which takes no receive"
                );
            }
            Frame::ReadyAgain => self.stats.add(Seen::ReadyAgain),
            Frame::Failed => {
                self.stats.add(Seen::Failed);
                self.models[end].said_failed = true;
            }
            Frame::Send { seq, flags, .. } | Frame::Write { seq, flags, .. } => {
                if flags.contains(Flags::FIRST) {
                    self.request_sent(end, seq);
                }
                if !flags.intersects(Flags::FIRST | Flags::LAST) {
                    self.stats.add(Seen::Segments);
                }
            }
            Frame::Read { seq, .. }
            | Frame::Atomic { seq, .. }
            | Frame::AtomicWrite { seq, .. }
            | Frame::Flush { seq, .. } => self.request_sent(end, seq),
            _ => {}
        }
    }

    /// A request begins to be sent.
    pub fn request_sent(&mut self, end: End, seq: u32) {
        let model = &mut self.models[end];
        let i = model.base + seq as usize;
        let Some(request) = self.programs[end].requests.get(i) else {
            check!(
                self,
                end,
                false,
                "rule 2: request {i} is sent, and was not posted"
            );
            return;
        };
        if let Some((waits, until)) = model.rnr_wait
            && waits == i
        {
            model.rnr_wait = None;
            let early = until.is_none_or(|until| self.now < until);
            check!(
                self,
                end,
                !early,
                "rule 14: request {i} is sent again too early"
            );
        }
        // One that was gathered before an RNR NAK came is sent once more.
        if request.op.is_read() && !model.reads.contains(&i) {
            model.reads.push(i);
            let most = self.setup.reads as usize;
            let n = model.reads.len();
            check!(
                self,
                end,
                n <= most,
                "rule 11: {n} reads and atomics are outstanding, of {most}"
            );
        }
        let model = &self.models[end];
        if request.post.fence {
            let before = &self.programs[end].requests[model.base..i];
            let waits = before.iter().enumerate().find(|(j, one)| {
                let j = model.base + j;
                if one.op.is_read() {
                    model.reads.contains(&j)
                } else {
                    one.op.holds_fence() && j >= model.acked
                }
            });
            if before.iter().any(|one| one.op.holds_fence()) {
                self.stats.add(Seen::Fence);
            }
            check!(
                self,
                end,
                waits.is_none(),
                "rule 12: request {i} has a fence, and is sent before request {waits:?} has ended"
            );
        }
    }

    /// The fields of a frame have come to an end.
    pub fn frame_delivered(&mut self, end: End, frame: &Frame) {
        let base = self.models[end].base;
        let index = |seq: u32| base + seq as usize;
        let model = &mut self.models[end];
        match *frame {
            Frame::Ack(seq) => model.acked = model.acked.max(index(seq) + 1),
            Frame::Data { seq, flags } if flags.contains(Flags::LAST) => {
                model.reads.retain(|i| *i != index(seq));
                model.acked = model.acked.max(index(seq) + 1);
            }
            Frame::Value { seq, .. } => {
                model.reads.retain(|i| *i != index(seq));
                model.acked = model.acked.max(index(seq) + 1);
            }
            Frame::NotReady { seq, .. } => {
                model.reads.retain(|i| *i < index(seq));
                let until = (self.setup.rnr_retry < 7).then(|| self.now + RNR_TIME);
                model.rnr_wait = Some((index(seq), until));
                if let Some(request) = self.programs[end].requests.get_mut(index(seq)) {
                    request.rnr_naks += 1;
                }
            }
            Frame::ReadyAgain => model.rnr_wait = None,
            _ => {}
        }
    }

    /// Looks at what a call has done.
    pub fn after(&mut self, end: End) {
        let news = std::mem::take(&mut self.programs[end].news);
        for completion in &news {
            if completion.opcode.is_recv() {
                self.receive_completed(end, completion);
            } else {
                self.request_completed(end, completion);
            }
        }
        self.programs[end].news = news;
        self.programs[end].news.clear();
        self.check_told(end);
        let failed = self.conns[end].qp.as_ref().is_some_and(Qp::is_error);
        if failed && !std::mem::replace(&mut self.models[end].failed, true) {
            self.models[end].failures += 1;
            self.check_failure(end);
        }
        if self.setup.srq[end] {
            let (told, failures) = (self.programs[end].last_wqe, self.models[end].failures);
            check!(
                self,
                end,
                told == failures,
                "rule 16: {told} events of the last receive, after {failures} failures"
            );
        }
        let conn = &self.conns[end];
        match conn.link() {
            LinkState::Over if self.open => {
                self.wires[end].ended = true;
                self.wires[other(end)].drop_all();
            }
            LinkState::Open if conn.has_ended() && conn.is_drained() => {
                self.wires[end].ended = true
            }
            _ => {}
        }
    }

    /// A queue pair may fail for a reason only.
    pub fn check_failure(&mut self, end: End) {
        let model = &self.models[end];
        let peer = &self.programs[other(end)];
        let dead = |program: &Program| program.regions.iter().any(|region| !region.alive);
        let flawed =
            |request: &Request| matches!(request.expected, Status::RemInvReq | Status::RemAccess);
        let good = model.cause
            || model.errored
            || model.receive_errored
            || dead(&self.programs[end])
            || peer.requests.iter().any(flawed)
            || self.conns[end].link() == LinkState::Over
            || self.conns[end].phase() == Phase::Closed;
        check!(
            self,
            end,
            good,
            "rule 10: the queue pair has failed without a reason"
        );
    }

    pub fn is_dead(&self, end: End, addr: u64) -> bool {
        !self.programs[end].by_address(addr).alive
    }

    /// Whether requests of an end may be without an answer for good.
    pub fn has_no_peer(&self, end: End) -> bool {
        let peer = other(end);
        self.qp_state(peer) != Some(QpState::Rts)
            || self.models[peer].cause
            || self.conns.iter().any(|conn| conn.link() != LinkState::Open)
            || self.models.iter().any(|model| model.abandoned)
            || self.wires.iter().any(|wire| wire.lost || wire.ended)
    }

    pub fn request_completed(&mut self, end: End, completion: &Completion) {
        let i = completion.wr_id as usize;
        let status = completion.status;
        self.stats.status(false, status);
        let next = self.models[end].next;
        check!(
            self,
            end,
            i >= next,
            "rule 5: request {i} completes after request {next}"
        );
        for skipped in next..i {
            let request = &mut self.programs[end].requests[skipped];
            let good = !request.post.signaled && !request.forgotten;
            request.ended = Some(Status::Success);
            check!(
                self,
                end,
                good,
                "rule 1: request {skipped} has not completed, and request {i} has"
            );
        }
        self.models[end].next = i + 1;
        if !self.models[end].errored {
            self.confirm(end, i);
        }
        let request = &self.programs[end].requests[i];
        let (id, len, expected) = (request.id, request.len, request.expected);
        let post = request.post;
        check!(
            self,
            end,
            completion.seq as usize == i,
            "rule 6: request {i} completes as number {}",
            completion.seq
        );
        check!(
            self,
            end,
            completion.opcode == request.op.opcode(),
            "rule 7: request {i} completes as {:?}",
            completion.opcode
        );
        check!(
            self,
            end,
            !request.forgotten,
            "rule 9: request {i} completes after its queue pair is gone"
        );
        if status == Status::Success {
            check!(
                self,
                end,
                !self.models[end].errored,
                "rule 9: request {i} succeeds after one that did not"
            );
            check!(
                self,
                end,
                expected == Status::Success,
                "rule 10: request {i} ({post:?}) succeeds, and must end in {expected:?}"
            );
            check!(
                self,
                end,
                post.signaled,
                "rule 1: request {i} succeeds and did not ask for a completion"
            );
            check!(
                self,
                end,
                completion.byte_len == len,
                "rule 7: request {i} moved {} bytes, not {len}",
                completion.byte_len
            );
            self.confirm(end, i + 1);
            self.check_read(end, i);
            if matches!(post.kind, Kind::Read) {
                let good =
                    self.programs[end].holds_pattern(id, &self.programs[end].requests[i].sges, len);
                check!(
                    self,
                    end,
                    good,
                    "rule 7: read {i} has not brought what was there"
                );
            }
            return;
        }
        let first = !std::mem::replace(&mut self.models[end].errored, true);
        if !first {
            check!(
                self,
                end,
                status == Status::WrFlush,
                "rule 9: request {i} ends in {status:?} after one that ended badly"
            );
            return;
        }
        let request = &self.programs[end].requests[i];
        let remote_dead = match request.op {
            Op::Write { at, .. }
            | Op::Read { at }
            | Op::Atomic { at, .. }
            | Op::AtomicWrite { at, .. }
            | Op::Flush { at, .. } => self.is_dead(other(end), at.addr),
            Op::Send { .. } => false,
        };
        let peer = &self.programs[other(end)];
        let good = status == expected
            || match status {
                // The queue pair was failed by something else.
                Status::WrFlush => true,
                Status::LocProt => request.sges.iter().any(|sge| self.is_dead(end, sge.addr)),
                Status::RemAccess => remote_dead,
                Status::RemOp => {
                    request.op.takes_receive()
                        && peer
                            .receives
                            .iter()
                            .any(|r| r.ended == Some(Status::LocProt))
                }
                Status::RemInvReq => {
                    request.op.takes_receive()
                        && peer
                            .receives
                            .iter()
                            .any(|r| r.ended == Some(Status::LocLen))
                }
                Status::RnrRetryExc => {
                    request.op.takes_receive()
                        && self.setup.rnr_retry < 7
                        && request.rnr_naks > self.setup.rnr_retry.into()
                }
                Status::RetryExc => self.has_no_peer(end),
                _ => false,
            };
        let naks = request.rnr_naks;
        check!(
            self,
            end,
            good,
            "rule 10: request {i} ({post:?}) ends in {status:?}, {expected:?} was expected, after {naks} RNR NAKs"
        );
    }

    /// What a read of a word, or an atomic, has brought.
    pub fn check_read(&mut self, end: End, i: usize) {
        let request = &self.programs[end].requests[i];
        let (Op::Read { at } | Op::Atomic { at, .. }) = request.op else {
            return;
        };
        if !matches!(
            request.post.kind,
            Kind::ReadWord | Kind::FetchAdd | Kind::CompareSwap
        ) {
            return;
        }
        let mut came = [0; 8];
        self.programs[end].gathered(&request.sges, 8, |from, bytes| {
            came[from..from + bytes.len()].copy_from_slice(bytes);
            true
        });
        if request.post.kind != Kind::ReadWord {
            let (came, found) = (u64::from_ne_bytes(came), request.found);
            check!(
                self,
                end,
                came == found,
                "rule 4: atomic {i} brought {came:#x}, and found {found:#x}"
            );
            return;
        }
        // It may see what was asked after it, up to a request with a fence.
        let peer = other(end);
        let place = self.place(peer, at.addr);
        let base = self.models[end].base;
        let mut value = self.models[peer].first_words[place];
        let mut values = vec![];
        for (j, one) in self.programs[end].requests.iter().enumerate().skip(base) {
            if j > i && one.post.fence {
                break;
            }
            let same = match one.op {
                Op::Write { at, .. } if one.post.kind == Kind::WriteWord => {
                    self.place(peer, at.addr) == place
                }
                Op::Atomic { at, .. } | Op::AtomicWrite { at, .. } => {
                    self.place(peer, at.addr) == place
                }
                _ => false,
            };
            if same {
                value = apply(one, value);
            }
            if j >= i {
                values.push(value.to_ne_bytes());
            }
        }
        let good = (0..8).all(|k| values.iter().any(|value| value[k] == came[k]));
        check!(
            self,
            end,
            good,
            "rule 13: read {i} brought {came:02x?}, none of {values:02x?}"
        );
    }

    pub fn receive_completed(&mut self, end: End, completion: &Completion) {
        let n = completion.wr_id as usize;
        let status = completion.status;
        self.stats.status(true, status);
        let srq = self.setup.srq[end];
        let peer = other(end);
        let next = self.models[end].next_receive;
        check!(
            self,
            end,
            n == next || srq && n > next,
            "rule 5: receive {n} completes, and receive {next} is the next"
        );
        self.models[end].next_receive = n + 1;
        let message = self.models[end].next_message;
        let requests = &self.programs[peer].requests;
        let message = (message..requests.len()).find(|i| requests[*i].op.takes_receive());
        let first = !self.models[end].receive_errored;
        if status != Status::Success {
            self.models[end].receive_errored = true;
            let room = self.programs[end].receives[n].len;
            let good = match (status, message) {
                (Status::WrFlush, _) => self.conns[end].qp.as_ref().is_some_and(Qp::is_error),
                (Status::LocLen, Some(i)) => first && requests[i].len > room,
                (Status::LocProt, Some(_)) => {
                    first && (0..2).any(|i| !self.programs[end].regions[LOCAL + i].alive)
                }
                (Status::LocAccess, Some(i)) => {
                    first
                        && match requests[i].op {
                            Op::Write { at, .. } => self.is_dead(end, at.addr),
                            _ => false,
                        }
                }
                _ => false,
            };
            check!(
                self,
                end,
                good,
                "rule 15: receive {n} of {room} bytes ends in {status:?}, with request {message:?}"
            );
            return;
        }
        let Some(i) = message else {
            check!(
                self,
                end,
                false,
                "rule 2: receive {n} completes without a message"
            );
            return;
        };
        check!(
            self,
            end,
            first,
            "rule 9: receive {n} succeeds after one that did not"
        );
        let request = &requests[i];
        let (id, len, post) = (request.id, request.len, request.post);
        let (opcode, imm) = match request.op {
            Op::Send { imm } => (Opcode::Recv, imm),
            Op::Write { imm, .. } => (Opcode::RecvWriteImm, imm),
            _ => (Opcode::Recv, None),
        };
        let receive = &self.programs[end].receives[n];
        let good = match request.op {
            Op::Write { at, .. } => {
                len == 0 || has_pattern(id, 0, &self.programs[end].bytes_at(at, len))
            }
            _ => len <= receive.len && self.programs[end].holds_pattern(id, &receive.sges, len),
        };
        let same = completion.opcode == opcode
            && completion.imm == imm
            && completion.byte_len == len
            && completion.solicited == post.solicited;
        check!(self, end, same, "rule 7: {completion:?} is of {post:?}");
        check!(
            self,
            end,
            good,
            "rule 7: receive {n} does not have what request {i} ({post:?}) sent"
        );
        self.models[end].next_message = i + 1;
        self.programs[peer].requests[i].executed = true;
        self.confirm(peer, i + 1);
    }

    /// Events come each once, in an order that there is.
    pub fn check_told(&mut self, end: End) {
        let told = &self.programs[end].told;
        for i in self.models[end].told.min(told.len())..told.len() {
            self.stats.told(told[i]);
            let before = i.checked_sub(1).map(|i| told[i]);
            let good = match (before, told[i]) {
                (None, Told::Offer) => end == B,
                (None, Told::Reply | Told::Response | Told::Rejected) => end == A,
                (None, Told::Unreachable) => end == A,
                (Some(Told::Offer), Told::Established | Told::Rejected | Told::Unreachable) => true,
                (Some(Told::Offer), Told::Disconnected) => {
                    self.conns[B].phase() != Phase::Requested
                }
                (Some(Told::Reply | Told::Response), Told::Unreachable) => {
                    !self.models[A].established
                }
                (Some(Told::Reply | Told::Response), Told::Disconnected) => {
                    self.models[A].established
                }
                (Some(Told::Established), Told::Disconnected) => true,
                (Some(Told::Disconnected), Told::TimewaitExit) => true,
                _ => false,
            };
            let good = good && !self.models[end].abandoned;
            check!(
                self,
                end,
                good,
                "rule 17: {:?} comes after {before:?}",
                told[i]
            );
            if told[i] == Told::Established {
                self.models[B].established = true;
            }
        }
        self.models[end].told = told.len();
    }

    /// All that asked for a completion has one.
    fn check_completed(&mut self, end: End) {
        let requests = &self.programs[end].requests;
        let lost = requests.iter().position(|request| {
            request.post.signaled && request.ended.is_none() && !request.forgotten
        });
        check!(
            self,
            end,
            lost.is_none(),
            "rule 1: request {lost:?} has no completion"
        );
    }

    /// Both ends are at rest: what is outstanding waits for a receive, and for nothing else.
    pub fn check_quiet(&mut self) {
        for end in [A, B] {
            let Some(qp) = &self.conns[end].qp else {
                continue;
            };
            if qp.requester.is_empty() {
                self.check_completed(end);
                continue;
            }
            let peer = other(end);
            let from = self.models[end].next.max(self.models[end].confirmed);
            let requests = &self.programs[end].requests;
            let waits = (from..requests.len()).find(|i| requests[*i].op.takes_receive());
            let empty = match (&self.programs[peer].srq, &mut self.conns[peer].qp) {
                (Some(srq), _) => srq.is_empty(),
                (None, Some(qp)) => qp.responder.rq().is_empty(),
                _ => false,
            };
            let may_wait = empty
                && waits.is_some()
                && self.setup.rnr_retry == 7
                && self.qp_state(end) == Some(QpState::Rts)
                && self.qp_state(peer) == Some(QpState::Rts)
                && self.conns.iter().all(|conn| conn.link() == LinkState::Open);
            check!(
                self,
                end,
                may_wait,
                "rule 20: both ends are at rest, and requests from {from} on are outstanding"
            );
            if may_wait {
                self.stats.add(Seen::WaitsForReceive);
            }
            // What comes before the one that waits has been carried out, and has completed.
            if let Some(waits) = waits {
                self.confirm(end, waits);
                let requests = &self.programs[end].requests;
                let lost = (0..waits).find(|i| {
                    requests[*i].post.signaled
                        && requests[*i].ended.is_none()
                        && !requests[*i].forgotten
                });
                check!(
                    self,
                    end,
                    lost.is_none(),
                    "rule 20: request {lost:?} has been carried out and has no completion"
                );
            }
        }
    }

    /// The connection has ended: nothing is outstanding.
    pub fn check_ended(&mut self) {
        for end in [A, B] {
            if self.conns[end].qp.is_some() {
                self.check_completed(end);
            }
            let model = &self.models[end];
            let program = &self.programs[end];
            let (established, abandoned) = (model.established, model.abandoned);
            let open = self.conns[end].link() == LinkState::Open;
            check!(
                self,
                end,
                !open,
                "rule 18: the link is open after the end, in {:?}",
                self.conns[end].phase()
            );
            if let Some(qp) = &self.conns[end].qp {
                check!(
                    self,
                    end,
                    qp.requester.is_empty(),
                    "rule 20: requests are outstanding after the end"
                );
                check!(
                    self,
                    end,
                    abandoned || qp.state() != QpState::Rts,
                    "rule 18: the queue pair is in RTS after the end"
                );
                if qp.is_error() && !self.setup.srq[end] {
                    let lost = program
                        .receives
                        .iter()
                        .position(|one| one.ended.is_none() && !one.forgotten);
                    check!(
                        self,
                        end,
                        lost.is_none(),
                        "rule 9: receive {lost:?} has not been flushed"
                    );
                }
            }
            if established && !abandoned {
                let count = |told| program.told.iter().filter(|one| **one == told).count();
                let counts = (count(Told::Disconnected), count(Told::TimewaitExit));
                check!(
                    self,
                    end,
                    counts == (1, 1),
                    "rule 17: DISCONNECTED and TIMEWAIT_EXIT came {counts:?} times"
                );
            }
        }
    }

    /// Nothing was written but where requests have it.
    pub fn check_memory(&mut self) {
        for end in [A, B] {
            let mut bad = None;
            for region in &self.programs[end].regions {
                let (bytes, users, base) = region.all();
                let mut at = 0;
                for (start, stop, user) in users {
                    let (start, stop) = ((*start - base) as usize, (*stop - base) as usize);
                    if bytes[at..start].iter().any(|byte| *byte != FRESH) {
                        bad = Some((at, *user));
                    }
                    let whose = match user {
                        User::Target(i) => Some(&self.programs[other(end)].requests[*i]),
                        _ => None,
                    };
                    // What was written is payload, or zero where its sender lost its memory.
                    if let Some(request) = whose {
                        let good = bytes[start..stop].iter().enumerate().all(|(i, byte)| {
                            *byte == FRESH
                                || *byte == 0 && !request.executed
                                || has_pattern(request.id, i, &[*byte])
                        });
                        if !good {
                            bad = Some((start, *user));
                        }
                    }
                    at = stop;
                }
                if bytes[at..].iter().any(|byte| *byte != FRESH) {
                    bad = Some((at, User::Words));
                }
            }
            check!(
                self,
                end,
                bad.is_none(),
                "rule 8: something was written at {bad:?}"
            );
        }
    }
}

pub fn word_of(request: &Request) -> u64 {
    let bytes = std::array::from_fn(|i| crate::end::payload(request.id, i));
    u64::from_ne_bytes(bytes)
}

/// What a request makes of a word.
pub fn apply(request: &Request, value: u64) -> u64 {
    match request.op {
        Op::Write { .. } => word_of(request),
        Op::AtomicWrite { value, .. } => u64::from_ne_bytes(value),
        Op::Atomic {
            op: AtomicOp::FetchAdd(add),
            ..
        } => value.wrapping_add(add),
        Op::Atomic {
            op: AtomicOp::CompareSwap { compare, swap },
            ..
        } => {
            if value == compare {
                swap
            } else {
                value
            }
        }
        _ => value,
    }
}
