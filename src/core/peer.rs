use super::device::is_odp_capable;
use super::error::{Steps, failed};
use super::{Error, Result};
use crate::verbs::{Context, Limits, Pd, SendOps};

/// A device opened for use: its protection domain and what it can do.
pub struct Peer {
    pd: Pd,
    context: Context,
    odp: bool,
    native: SendOps,
    limits: Limits,
}

impl Peer {
    pub fn new(context: Context) -> Result<Self> {
        let query = || context.query().map_err(failed!("ibv_query_device_ex"));
        let mut native = SendOps::empty();
        if query()?.atomic_write() {
            native |= SendOps::ATOMIC_WRITE;
        } else {
            log!(
                Info,
                "Native atomic write is not supported: a fenced RDMA write does for it"
            );
        }
        let capabilities = query()?;
        let limits = capabilities.limits();
        if capabilities.flush() {
            native |= SendOps::FLUSH;
        } else {
            log!(
                Info,
                "Native flush is not supported: an RDMA read does for it"
            );
        }
        let odp = is_odp_capable(context)?;
        let pd = Pd::alloc(context).map_err(|errno| match errno.0 {
            libc::ENOMEM => Error::NOMEM,
            0 => Error::UNKNOWN,
            _ => failed!("ibv_alloc_pd")(errno),
        })?;
        Ok(Peer {
            pd,
            context,
            odp,
            native,
            limits,
        })
    }

    /// Everything made of the peer must be gone.
    pub fn delete(self) -> Result<()> {
        let mut steps = Steps::new();
        steps.step("ibv_dealloc_pd", self.pd.close());
        steps.done()
    }

    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    pub fn context(&self) -> Context {
        self.context
    }

    pub fn odp(&self) -> bool {
        self.odp
    }

    /// The operations that the device has natively.
    pub fn native(&self) -> SendOps {
        self.native
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    pub fn is_iwarp(&self) -> bool {
        self.context.is_iwarp()
    }
}
