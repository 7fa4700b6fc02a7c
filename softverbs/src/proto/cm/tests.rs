use super::*;

const PHASES: [Phase; 11] = [
    Phase::Idle,
    Phase::Opening,
    Phase::RequestSent,
    Phase::ReplyReceived,
    Phase::Greeting,
    Phase::Requested,
    Phase::Accepted,
    Phase::Established,
    Phase::DisconnectSent,
    Phase::DisconnectReceived,
    Phase::Closed,
];
/// Those that mean nothing without a link.
const OF_THE_LINK: [Timer; 5] = [
    Timer::Ack,
    Timer::Handshake,
    Timer::Rnr,
    Timer::PeerFailed,
    Timer::Disconnect,
];
const MINE: Params = params(1);
const THEIRS: Params = params(2);

const fn params(qp_num: u32) -> Params {
    Params {
        qp_num,
        responder_resources: 3,
        initiator_depth: 4,
        flow_control: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: 0,
    }
}

fn private(data: &str) -> Private {
    Private::new(data.as_bytes(), Private::REQUEST).unwrap()
}

/// What was done, or why not.
type Outcome = Result<Step, &'static str>;
type Input = fn(&mut Cm, Instant, &mut Timers) -> Outcome;

fn refused(_: WrongState) -> &'static str {
    "wrong state"
}

fn malformed(_: Malformed) -> &'static str {
    "malformed"
}

/// What a program calls, the other side says, and time brings. Each is given in each phase.
const INPUTS: [(&str, Input); 18] = [
    ("accept", |cm, now, timers| {
        cm.accept(MINE, private("yes"), true, now, timers)
            .map_err(refused)
    }),
    ("accept without a link", |cm, now, timers| {
        cm.accept(MINE, private("yes"), false, now, timers)
            .map_err(refused)
    }),
    ("reject", |cm, _, _| {
        cm.reject(private("no"))
            .map(|()| Step::default())
            .map_err(refused)
    }),
    ("establish", |cm, _, _| cm.establish().map_err(refused)),
    ("disconnect", |cm, now, timers| {
        cm.disconnect(now, timers).map_err(refused)
    }),
    ("abandon", |cm, now, timers| {
        cm.abandon(now, timers);
        Ok(Step::default())
    }),
    ("Request", |cm, now, timers| {
        cm.frame(&Frame::Request(THEIRS, private("may I")), now, timers)
            .map_err(malformed)
    }),
    ("Reply", |cm, now, timers| {
        cm.frame(&Frame::Reply(THEIRS, private("yes")), now, timers)
            .map_err(malformed)
    }),
    ("Reject", |cm, now, timers| {
        cm.frame(&Frame::Reject(28, private("no")), now, timers)
            .map_err(malformed)
    }),
    ("Ready", |cm, now, timers| {
        cm.frame(&Frame::Ready, now, timers).map_err(malformed)
    }),
    ("Disconnect", |cm, now, timers| {
        cm.frame(&Frame::Disconnect, now, timers).map_err(malformed)
    }),
    ("Disconnected", |cm, now, timers| {
        cm.frame(&Frame::Disconnected, now, timers)
            .map_err(malformed)
    }),
    ("Ack", |cm, now, timers| {
        cm.frame(&Frame::Ack(1), now, timers).map_err(malformed)
    }),
    ("wrong magic", |cm, now, timers| {
        cm.stranger(Stranger::WrongMagic, now, timers)
            .map_err(malformed)
    }),
    ("wrong version", |cm, now, timers| {
        cm.stranger(Stranger::WrongVersion(2), now, timers)
            .map_err(malformed)
    }),
    ("lost", |cm, now, timers| Ok(cm.lost(now, timers))),
    ("due Open", |cm, now, timers| {
        Ok(cm.due(Timer::Open, now, timers))
    }),
    ("due Disconnect", |cm, now, timers| {
        Ok(cm.due(Timer::Disconnect, now, timers))
    }),
];

/// One line of what an input did in a phase.
fn outcome(phase: Phase, name: &str, input: Input) -> String {
    let now = Instant::now();
    let later = now + Duration::from_secs(3600);
    let mut timers = Timers::default();
    for timer in ALL {
        timers.set(timer, later);
    }
    let mut cm = Cm {
        phase,
        ..Cm::default()
    };
    let result = input(&mut cm, now, &mut timers);
    let mut line = format!("{phase:?}, {name}:");
    let empty = line.len();
    match result {
        Err(refusal) => line += &format!(" {refusal}"),
        Ok(step) => {
            if cm.phase != phase {
                line += &format!(" {:?}", cm.phase);
            }
            for (set, name) in [
                (step.ready, "ready"),
                (step.fail_qp, "fail_qp"),
                (step.peer_failed, "peer_failed"),
                (step.fail_outstanding, "fail_outstanding"),
                (step.drop_link, "drop_link"),
                (cm.take_wants_open(), "open"),
            ] {
                if set {
                    line += &format!(" {name}");
                }
            }
            if let Some((params, private)) = step.offer {
                line += &format!(" offer {}", said(params, private));
            }
            line += &match step.event {
                None => String::new(),
                Some(Event::Reply(params, private)) => {
                    format!(" event Reply {}", said(params, private))
                }
                Some(Event::Rejected(reason, private)) => {
                    format!(" event Rejected {reason} {:?}", text(private))
                }
                Some(event) => format!(" event {event:?}"),
            };
        }
    }
    for frame in &cm.control {
        line += &match *frame {
            Frame::Reply(params, private) => format!(" send Reply {}", said(params, private)),
            Frame::Reject(reason, private) => {
                format!(" send Reject {reason} {:?}", text(private))
            }
            frame => format!(" send {frame:?}"),
        };
    }
    let cleared: Vec<_> = ALL
        .into_iter()
        .filter(|timer| !timers.is_set(*timer))
        .collect();
    line += &match *cleared {
        [] => String::new(),
        _ if cleared == OF_THE_LINK => " clear those of the link".to_string(),
        _ if cleared.len() == ALL.len() - 1 => " clear all".to_string(),
        _ => format!(" clear {cleared:?}"),
    };
    for timer in ALL {
        if let Some(at) = timers.at(timer)
            && at != later
        {
            line += &format!(" set {timer:?} {:?}", at - now);
        }
    }
    if line.len() == empty {
        line += " nothing";
    }
    line
}

fn said(params: Params, private: Private) -> String {
    format!("of qp {} {:?}", params.qp_num, text(private))
}

fn text(private: Private) -> String {
    String::from_utf8(private.bytes().to_vec()).unwrap()
}

/// Phase, input: the next phase if it is another one, what is to be done, frames to send, timers.
/// A call that is not here is refused. A frame that is not here is malformed. A time that is not
/// here means nothing.
const TABLE: &str = "\
Idle, abandon: Closed clear all set Linger 5s
Idle, lost: Closed fail_outstanding drop_link clear those of the link
Opening, abandon: Closed clear all set Linger 5s
Opening, lost: Closed fail_qp drop_link event Unreachable clear those of the link
Opening, due Open: open
RequestSent, abandon: Closed clear all set Linger 5s
RequestSent, Request: Closed fail_qp drop_link event Rejected 8 \"\" clear [Handshake]
RequestSent, Reply: ReplyReceived event Reply of qp 2 \"yes\" clear [Handshake]
RequestSent, Reject: Closed fail_qp event Rejected 28 \"no\" clear [Handshake]
RequestSent, wrong magic: Closed fail_qp drop_link event Rejected 8 \"\" clear [Handshake]
RequestSent, wrong version: Closed fail_qp drop_link event Rejected 31 \"\" clear [Handshake]
RequestSent, lost: Closed fail_qp drop_link event Unreachable clear those of the link
ReplyReceived, reject: Closed send Reject 28 \"no\"
ReplyReceived, establish: Established ready send Ready
ReplyReceived, abandon: Closed send Reject 28 \"\" clear all set Linger 5s
ReplyReceived, lost: Closed fail_qp drop_link event Unreachable clear those of the link
Greeting, abandon: Closed clear all set Linger 5s
Greeting, Request: Requested offer of qp 2 \"may I\" clear [Handshake]
Greeting, wrong version: Closed send Version(1) clear [Handshake] set Linger 10s
Greeting, lost: Closed fail_outstanding drop_link clear those of the link
Requested, accept: Accepted ready send Reply of qp 1 \"yes\" set Handshake 60s
Requested, accept without a link: Closed fail_qp event Unreachable
Requested, reject: Closed send Reject 28 \"no\"
Requested, abandon: Closed send Reject 28 \"\" clear all set Linger 5s
Requested, Reject: drop_link
Requested, lost: drop_link clear those of the link
Accepted, disconnect: DisconnectSent fail_qp send Disconnect clear [Handshake] set Disconnect 60s
Accepted, abandon: Closed send Disconnect clear all set Linger 5s
Accepted, Reject: Closed fail_qp event Rejected 28 \"no\" clear [Handshake]
Accepted, Ready: Established event Established clear [Handshake]
Accepted, Disconnect: DisconnectReceived peer_failed event Disconnected clear [Handshake]
Accepted, lost: Closed fail_qp drop_link event Unreachable clear those of the link
Established, disconnect: DisconnectSent fail_qp send Disconnect clear [Handshake] set Disconnect 60s
Established, abandon: Closed send Disconnect clear all set Linger 5s
Established, Disconnect: DisconnectReceived peer_failed event Disconnected clear [Handshake]
Established, lost: Closed fail_qp fail_outstanding drop_link event Disconnected clear those of the link set Timewait 1s
DisconnectSent, disconnect: fail_qp
DisconnectSent, abandon: Closed clear all set Linger 5s
DisconnectSent, Ready: nothing
DisconnectSent, Disconnect: Closed event Disconnected send Disconnected clear [Disconnect] set Timewait 1s
DisconnectSent, Disconnected: Closed event Disconnected clear [Disconnect] set Timewait 1s
DisconnectSent, lost: Closed fail_qp fail_outstanding drop_link event Disconnected clear those of the link set Timewait 1s
DisconnectSent, due Disconnect: Closed event Disconnected clear [Disconnect] set Timewait 1s
DisconnectReceived, disconnect: Closed fail_qp send Disconnected set Timewait 1s
DisconnectReceived, abandon: Closed send Disconnected clear all set Linger 5s
DisconnectReceived, lost: fail_outstanding drop_link clear those of the link
Closed, disconnect: fail_qp
Closed, abandon: clear all set Linger 5s
Closed, Request: nothing
Closed, Reply: nothing
Closed, Reject: nothing
Closed, Ready: nothing
Closed, Disconnect: nothing
Closed, Disconnected: nothing
Closed, Ack: nothing
Closed, lost: fail_outstanding drop_link clear those of the link
";

#[test]
fn each_input_does_in_each_phase_what_the_table_says() {
    let mut seen = String::new();
    for phase in PHASES {
        for (name, input) in INPUTS {
            // Nobody is a stranger after the first frame.
            let first = matches!(phase, Phase::Greeting | Phase::RequestSent);
            let line = outcome(phase, name, input);
            let (_, what) = line.split_once(": ").unwrap();
            let is_default = match name {
                "due Open" | "due Disconnect" => what == "nothing",
                "wrong magic" | "wrong version" if !first => true,
                _ => what == "wrong state" || what == "malformed",
            };
            if !is_default {
                seen += &line;
                seen.push('\n');
            }
        }
    }
    for (seen, said) in seen.lines().zip(TABLE.lines()) {
        assert_eq!(seen, said, "what happened, and what the table says");
    }
    assert_eq!(seen.lines().count(), TABLE.lines().count(), "{seen}");
}

#[test]
fn what_a_phase_allows() {
    use Phase::*;
    let in_phases = |is: fn(&Cm) -> bool| -> Vec<Phase> {
        let cm = |phase: &Phase| Cm {
            phase: *phase,
            ..Cm::default()
        };
        PHASES.into_iter().filter(|phase| is(&cm(phase))).collect()
    };
    let connected = [Accepted, Established, DisconnectSent, DisconnectReceived];
    assert_eq!(in_phases(Cm::is_connected), connected);
    let awaiting = [RequestSent, Greeting];
    assert_eq!(in_phases(Cm::awaits_first_frame), awaiting);
    assert_eq!(in_phases(Cm::is_greeting), [Greeting]);
    assert_eq!(in_phases(Cm::is_paused), [ReplyReceived]);

    let mut cm = Cm::default();
    assert!(!cm.program_moves_qp());
    cm.set_program_moves_qp(true);
    assert!(cm.program_moves_qp());
    for waiting in 0..=MOST_CONTROL + 1 {
        assert_eq!(cm.is_overfull(), waiting > MOST_CONTROL, "{waiting} wait");
        cm.control.push_back(Frame::Ready);
    }
}

/// A listener that does not take a request says so, and waits until that has been sent.
#[test]
fn request_that_is_not_taken_is_rejected() {
    let now = Instant::now();
    let mut timers = Timers::default();
    let mut cm = Cm::default();
    cm.greet(now, &mut timers);
    assert_eq!(cm.phase(), Phase::Greeting);
    assert_eq!(timers.at(Timer::Handshake), Some(now + GREETING_TIME));
    cm.not_taken(now, &mut timers);
    assert_eq!(cm.phase(), Phase::Closed);
    let reject = Frame::Reject(REJECTED_BY_CONSUMER, Private::NONE);
    assert_eq!(cm.control, [reject]);
    assert_eq!(timers.at(Timer::Linger), Some(now + GREETING_TIME));
}

#[test]
fn what_is_the_same_in_each_phase() {
    let now = Instant::now();
    for phase in PHASES {
        let mut cm = Cm {
            phase,
            ..Cm::default()
        };
        let mut due = |timer| cm.due(timer, now, &mut Timers::default());
        assert_eq!(due(Timer::Timewait).event, Some(Event::TimewaitExit));
        assert!(due(Timer::Linger).drop_link);
        for timer in [Timer::Ack, Timer::Rnr, Timer::PeerFailed] {
            assert!(
                !due(timer).drop_link,
                "{timer:?} is not of connection management"
            );
        }
        assert_eq!(cm.phase, phase);
        assert_eq!(
            outcome(phase, "lost", |cm, now, timers| Ok(cm.lost(now, timers))),
            outcome(phase, "lost", |cm, now, timers| {
                Ok(cm.due(Timer::Handshake, now, timers))
            }),
            "the time for the handshake is over"
        );
    }
    assert_eq!(Cm::closed().phase(), Phase::Closed);
}

/// Times at which a link that is refused is opened again.
#[test]
fn refused_link_is_tried_again() {
    let now = Instant::now();
    let mut timers = Timers::default();
    let mut cm = Cm::default();
    cm.connect(MINE, private("may I"), false, now, &mut timers);
    assert!(cm.take_wants_open() && !cm.take_wants_open());
    assert_eq!(timers.at(Timer::Handshake), Some(now + CONNECT_TIME));
    for time in [10, 20, 30, 40, 50, 60] {
        let step = cm.open_failed(true, now, &mut timers);
        assert!(step.event.is_none() && cm.phase() == Phase::Opening);
        let time = now + Duration::from_millis(time);
        assert_eq!(timers.at(Timer::Open), Some(time));
        let _ = cm.due(Timer::Open, time, &mut timers);
        assert!(cm.take_wants_open());
    }
    let step = cm.open_failed(true, now, &mut timers);
    let rejected = Event::Rejected(REJECTED_NO_SERVICE, Private::NONE);
    assert_eq!(step.event, Some(rejected));
    assert!(step.fail_qp && step.drop_link && cm.phase() == Phase::Closed);

    // What fails otherwise fails at once.
    cm.connect(MINE, private("may I"), false, now, &mut timers);
    let step = cm.open_failed(false, now, &mut timers);
    assert_eq!(step.event, Some(Event::Unreachable));
    assert!(step.fail_qp && cm.phase() == Phase::Closed);
    assert!(!timers.is_set(Timer::Handshake));

    // A call that connects anew has all tries again, and says what it is given.
    cm.connect(MINE, private("may I"), true, now, &mut timers);
    assert!(cm.open_failed(true, now, &mut timers).event.is_none());
    assert!(cm.program_moves_qp());
    cm.opened();
    assert_eq!(cm.phase(), Phase::RequestSent);
    assert_eq!(cm.control, [Frame::Request(MINE, private("may I"))]);
    let _ = cm.lost(now, &mut timers);
    assert!(cm.control.is_empty() && !cm.take_wants_open());
}
