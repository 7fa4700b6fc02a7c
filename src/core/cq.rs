use super::error::{Steps, failed};
use super::{Error, Result};
use crate::verbs::{self, CompChannel, Context, ibv_wc};
use std::ffi::c_int;

/// A completion queue, on a channel of its own or a shared one.
pub struct Cq {
    cq: verbs::Cq,
    /// None if the channel is shared: its owner waits on it.
    channel: Option<CompChannel>,
    /// The descriptor of the channel, whosever it is.
    fd: c_int,
}

impl Cq {
    /// Verbs take an int: no more than that is asked for.
    pub fn new(context: Context, size: u32, shared: Option<&CompChannel>) -> Result<Self> {
        let size = c_int::try_from(size).unwrap_or(c_int::MAX);
        let create = |channel: &CompChannel| {
            let cq = verbs::Cq::create(context, size, channel);
            Ok((cq.map_err(failed!("ibv_create_cq()"))?, channel.fd()))
        };
        let (cq, fd, channel) = match shared {
            Some(shared) => {
                let (cq, fd) = create(shared)?;
                (cq, fd, None)
            }
            None => {
                let own = create_channel(context)?;
                let (cq, fd) = create(&own)?;
                (cq, fd, Some(own))
            }
        };
        let cq = Cq { cq, channel, fd };
        cq.req_notify()?;
        Ok(cq)
    }

    pub fn delete(self) -> Result<()> {
        let mut steps = Steps::new();
        steps.step("ibv_destroy_cq", self.cq.close());
        if let Some(channel) = self.channel {
            steps.step("ibv_destroy_comp_channel", channel.close());
        }
        steps.done()
    }

    pub fn verbs(&self) -> &verbs::Cq {
        &self.cq
    }

    pub fn fd(&self) -> c_int {
        self.fd
    }

    /// Waits for the next event of the queue and asks for another.
    pub fn wait(&self) -> Result<()> {
        let channel = self.channel.as_ref().ok_or(Error::SHARED_CHANNEL)?;
        channel.next_event().map_err(|_| Error::NO_COMPLETION)?;
        self.cq.ack_event();
        self.req_notify()
    }

    pub fn req_notify(&self) -> Result<()> {
        self.cq.req_notify().map_err(failed!("ibv_req_notify_cq()"))
    }

    /// Takes up to `entries` completions, at least 1; how many there were.
    ///
    /// # Safety
    /// `wc` has room for `entries` completions.
    #[inline(always)]
    pub unsafe fn poll(&self, entries: c_int, wc: *mut ibv_wc) -> Result<c_int> {
        // SAFETY: passed on to the caller.
        let got = unsafe { self.cq.poll(entries, wc) };
        if got < 1 || got > entries {
            return Err(poll_failed(got, entries));
        }
        Ok(got)
    }
}

#[cold]
#[inline(never)]
fn poll_failed(got: c_int, entries: c_int) -> Error {
    if got == 0 {
        log!(Debug, "no completion in the CQ");
        Error::NO_COMPLETION
    } else if got < 0 {
        log!(Error, "ibv_poll_cq() failed (no details available)");
        Error::PROVIDER
    } else {
        log!(
            Error,
            "ibv_poll_cq() returned {got} where at most {entries} was expected"
        );
        Error::UNKNOWN
    }
}

pub fn create_channel(context: Context) -> Result<CompChannel> {
    CompChannel::create(context).map_err(failed!("ibv_create_comp_channel()"))
}
