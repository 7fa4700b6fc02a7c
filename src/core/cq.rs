use super::error::{Steps, failed};
use super::remedy::Remedy;
use super::{Error, Peer, Result};
use crate::verbs::{self, CompChannel, Context, Errno, ibv_wc};
use std::ffi::c_int;
use std::mem::ManuallyDrop;

/// A completion queue, on a channel of its own or a shared one.
pub struct Cq {
    /// Taken only when the whole is released.
    cq: ManuallyDrop<verbs::Cq>,
    /// None if the channel is shared: its owner waits on it.
    channel: Option<CompChannel>,
    /// The descriptor of the channel, whosever it is.
    fd: c_int,
}

impl Cq {
    /// Verbs take an int: no more than that is asked for.
    pub fn new(
        peer: &Peer,
        context: Context,
        size: u32,
        shared: Option<&CompChannel>,
    ) -> Result<Self> {
        let size = c_int::try_from(size).unwrap_or(c_int::MAX);
        let own = match shared {
            Some(_) => None,
            None => Some(create_channel(context)?),
        };
        // One of the two is there.
        let channel = shared.or(own.as_ref()).ok_or(Error::UNKNOWN)?;
        let fd = channel.fd();
        let cq = verbs::Cq::create(context, size, channel).map_err(failed!(
            "ibv_create_cq",
            "cqe={size}; max_cqe of the device is {}",
            peer.limits().max_cqe
        ))?;
        req_notify(&cq)?;
        Ok(Cq {
            cq: ManuallyDrop::new(cq),
            channel: own,
            fd,
        })
    }

    pub fn delete(self) -> Result<()> {
        ManuallyDrop::new(self).release()
    }

    /// Nothing of `self` is used after this.
    fn release(&mut self) -> Result<()> {
        let mut steps = Steps::new();
        // SAFETY: called once, by `delete` or `drop`, and `cq` not used again.
        let cq = unsafe { ManuallyDrop::take(&mut self.cq) };
        steps.step("ibv_destroy_cq", cq.close());
        if let Some(channel) = self.channel.take() {
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
        req_notify(&self.cq)
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

/// A queue that can't be destroyed is told of in the log on any way out.
impl Drop for Cq {
    fn drop(&mut self) {
        let _ = self.release();
    }
}

fn req_notify(cq: &verbs::Cq) -> Result<()> {
    cq.req_notify().map_err(req_notify_failed)
}

#[cold]
#[inline(never)]
fn req_notify_failed(errno: Errno) -> Error {
    failed!("ibv_req_notify_cq")(errno)
}

#[cold]
#[inline(never)]
fn poll_failed(got: c_int, entries: c_int) -> Error {
    if got == 0 {
        log!(Debug, "no completion in the CQ");
        Error::NO_COMPLETION
    } else if got < 0 {
        log!(
            Error,
            "ibv_poll_cq(num_entries={entries}) failed with {got}{}",
            Remedy::of("ibv_poll_cq", Errno(got.saturating_neg()))
        );
        Error::PROVIDER
    } else {
        log!(
            Error,
            "ibv_poll_cq(num_entries={entries}) gave {got} completions, more than there is room for"
        );
        Error::UNKNOWN
    }
}

pub fn create_channel(context: Context) -> Result<CompChannel> {
    CompChannel::create(context).map_err(failed!("ibv_create_comp_channel"))
}
