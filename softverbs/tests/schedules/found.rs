//! Schedules that once failed, each with what was wrong.

use super::stats::Stats;
use super::steps::{A, B, Flaw, Kind, Post, Schedule, Setup, Step};

fn passes(setup: Setup, steps: &[Step]) {
    let steps = steps.to_vec();
    let schedule = Schedule { setup, steps };
    if let Err(fault) = super::try_one(&schedule, &mut Stats::default()) {
        panic!("{fault}\nin {schedule:?}");
    }
}

fn post(kind: Kind, len: u32) -> Post {
    Post::new(kind, len)
}

/// The link was opened after the time to connect was over, and a reply came after UNREACHABLE.
#[test]
fn link_is_not_opened_after_the_time_to_connect() {
    let setup = Setup {
        connected: false,
        ..Setup::PLAIN
    };
    passes(setup, &[Step::Due(A, 70_000_000)]);
}

/// Requests of a queue pair that outlives its id never completed.
#[test]
fn requests_complete_after_the_id_is_destroyed() {
    let write = Step::Post(B, post(Kind::Write, 8));
    passes(Setup::PLAIN, &[Step::Abandon(B), write]);
    passes(Setup::PLAIN, &[write, Step::Abandon(B)]);
    passes(Setup::PLAIN, &[write, Step::Abandon(B), Step::Cut(0, 0)]);
}

/// A peer was never told that the queue pair had been reset, and waited for ever.
#[test]
fn peer_of_a_reset_queue_pair_is_told() {
    let write = Step::Post(A, post(Kind::Write, 8));
    passes(Setup::PLAIN, &[write, Step::Reset(B)]);
}

/// A request that failed on its way kept its status where it had to be flushed.
#[test]
fn later_requests_are_flushed() {
    let setup = Setup {
        max_wr: 5,
        ..Setup::PLAIN
    };
    let send = Post {
        inline: true,
        ..post(Kind::Send, 8)
    };
    let bad = Post {
        flaw: Flaw::Lkey,
        ..post(Kind::Write, 1)
    };
    passes(
        setup,
        &[Step::Post(A, send), Step::Post(A, bad), Step::Settle],
    );
}

/// Answers to requests that were forgotten with a reset were taken for nonsense.
#[test]
fn answers_after_a_reset_mean_nothing() {
    let all = 1 << 30;
    let send = Step::Post(A, post(Kind::Send, 8));
    passes(
        Setup::PLAIN,
        &[send, Step::Transmit(A, all), Step::Reset(A)],
    );
    // In the middle of an answer.
    let steps = [
        Step::Post(B, post(Kind::Read, 9)),
        Step::Transmit(B, 31),
        Step::Deliver(A, 31),
        Step::Transmit(A, 20),
        Step::Deliver(B, 15),
        Step::Reset(B),
    ];
    passes(Setup::PLAIN, &steps);
}

/// A queue pair that was reset before ESTABLISHED became ready, without any rights.
#[test]
fn reset_queue_pair_does_not_become_ready() {
    let setup = Setup {
        connected: false,
        srq: [false, true],
        ..Setup::PLAIN
    };
    let steps = [
        Step::Open,
        Step::Settle,
        Step::Accept,
        Step::Post(B, post(Kind::WriteImm, 8)),
        Step::Reset(A),
    ];
    passes(setup, &steps);
}

/// A queue pair that was reset answered a read, and failed when the memory of that went away.
#[test]
fn reset_queue_pair_answers_nothing() {
    let steps = [
        Step::Post(B, post(Kind::Read, 9000)),
        Step::Transmit(B, 1 << 30),
        Step::Deliver(A, 1 << 30),
        Step::Transmit(A, 5576),
        Step::Deliver(B, 5576),
        Step::Deregister(A, 2),
        Step::Reset(A),
        Step::Settle,
        Step::Post(A, post(Kind::Write, 8)),
    ];
    passes(Setup::PLAIN, &steps);
}

/// Never failed: chance seldom makes a long message that finds no receive while it is being sent.
#[test]
fn long_message_is_sent_again_from_its_beginning() {
    for first in [100, 200_000, 262_300, 400_000] {
        let steps = [
            Step::Post(A, post(Kind::SendImm, 600_000)),
            Step::Transmit(A, first),
            Step::Deliver(B, first),
            Step::Transmit(B, 1 << 30),
            Step::Deliver(A, 1 << 30),
            Step::Receive(B, 600_000),
        ];
        passes(Setup::PLAIN, &steps);
    }
}
