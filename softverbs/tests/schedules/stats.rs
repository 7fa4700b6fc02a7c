//! What has been reached. A generator that does not reach something can't find a fault in it.

use super::end::Told;
use softverbs::proto::Status;

/// Things that happen in a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    Posted,
    QueueFull,
    CutFrame,
    Blocked,
    LinkLost,
    RnrNak,
    ReadyAgain,
    Nak,
    Failed,
    Segments,
    Direct,
    BulkRefused,
    TargetRefused,
    Zeroes,
    Ordered,
    Fence,
    WaitsForReceive,
    Refused,
    Rejected,
    Abandoned,
    ConnectedAgain,
    AckHeld,
}

const SEEN: [Seen; 22] = [
    Seen::Posted,
    Seen::QueueFull,
    Seen::CutFrame,
    Seen::Blocked,
    Seen::LinkLost,
    Seen::RnrNak,
    Seen::ReadyAgain,
    Seen::Nak,
    Seen::Failed,
    Seen::Segments,
    Seen::Direct,
    Seen::BulkRefused,
    Seen::TargetRefused,
    Seen::Zeroes,
    Seen::Ordered,
    Seen::Fence,
    Seen::WaitsForReceive,
    Seen::Refused,
    Seen::Rejected,
    Seen::Abandoned,
    Seen::ConnectedAgain,
    Seen::AckHeld,
];

const STATUSES: [Status; 11] = [
    Status::Success,
    Status::LocLen,
    Status::LocQpOp,
    Status::LocProt,
    Status::WrFlush,
    Status::LocAccess,
    Status::RemInvReq,
    Status::RemAccess,
    Status::RemOp,
    Status::RetryExc,
    Status::RnrRetryExc,
];

/// Those that a request of the send queue, and a receive, can have.
const OF_REQUESTS: [Status; 9] = [
    Status::Success,
    Status::LocQpOp,
    Status::LocProt,
    Status::WrFlush,
    Status::RemInvReq,
    Status::RemAccess,
    Status::RemOp,
    Status::RetryExc,
    Status::RnrRetryExc,
];
const OF_RECEIVES: [Status; 5] = [
    Status::Success,
    Status::LocLen,
    Status::LocProt,
    Status::WrFlush,
    Status::LocAccess,
];

const TOLD: [Told; 7] = [
    Told::Offer,
    Told::Reply,
    Told::Established,
    Told::Rejected,
    Told::Unreachable,
    Told::Disconnected,
    Told::TimewaitExit,
];

#[derive(Clone, Default)]
pub struct Stats {
    seen: [u64; SEEN.len()],
    statuses: [[u64; STATUSES.len()]; 2],
    told: [u64; 8],
}

impl Stats {
    pub fn add(&mut self, seen: Seen) {
        self.seen[seen as usize] += 1;
    }

    pub fn status(&mut self, receive: bool, status: Status) {
        self.statuses[usize::from(receive)][status as usize] += 1;
    }

    pub fn told(&mut self, told: Told) {
        self.told[told as usize] += 1;
    }

    pub fn merge(&mut self, other: &Stats) {
        let pairs = self.seen.iter_mut().zip(other.seen);
        let statuses = self.statuses.iter_mut().flatten();
        let pairs = pairs.chain(statuses.zip(other.statuses.into_iter().flatten()));
        for (to, n) in pairs.chain(self.told.iter_mut().zip(other.told)) {
            *to += n;
        }
    }

    fn counts(&self) -> Vec<(String, u64)> {
        let seen = SEEN
            .iter()
            .map(|one| (format!("{one:?}"), self.seen[*one as usize]));
        let status = |receive: usize, name: &'static str| {
            move |one: &Status| {
                (
                    format!("{name} {one:?}"),
                    self.statuses[receive][*one as usize],
                )
            }
        };
        let told = TOLD
            .iter()
            .map(|one| (format!("event {one:?}"), self.told[*one as usize]));
        seen.chain(OF_REQUESTS.iter().map(status(0, "request")))
            .chain(OF_RECEIVES.iter().map(status(1, "receive")))
            .chain(told)
            .collect()
    }

    /// What has been seen, and how often.
    pub fn lines(&self) -> String {
        let counts = self.counts();
        let lines = counts.chunks(6).map(|line| {
            let words: Vec<_> = line.iter().map(|(name, n)| format!("{name} {n}")).collect();
            format!("  {}\n", words.join(", "))
        });
        lines.collect()
    }

    /// What has never been seen.
    pub fn missing(&self) -> Vec<String> {
        let counts = self.counts().into_iter();
        counts
            .filter(|(_, n)| *n == 0)
            .map(|(name, _)| name)
            .collect()
    }
}
