use super::error::room;
use super::setting::Setting;
use super::{Error, Result};

/// What one side tells the other about itself.
pub struct PeerCfg {
    direct_write_to_pmem: Setting<bool>,
}

impl PeerCfg {
    pub const DESCRIPTOR_SIZE: usize = 1;

    pub fn new(direct_write_to_pmem: bool) -> Self {
        let direct_write_to_pmem = Setting::new(direct_write_to_pmem);
        PeerCfg {
            direct_write_to_pmem,
        }
    }

    pub fn set_direct_write_to_pmem(&self, supported: bool) {
        self.direct_write_to_pmem.set(supported);
    }

    pub fn direct_write_to_pmem(&self) -> bool {
        self.direct_write_to_pmem.get()
    }

    pub fn descriptor(&self) -> [u8; Self::DESCRIPTOR_SIZE] {
        [u8::from(self.direct_write_to_pmem())]
    }

    /// Any byte but 0 is true; what follows the first is of no concern.
    pub fn from_descriptor(descriptor: &[u8]) -> Result<Box<Self>> {
        let Some(&first) = descriptor.first() else {
            log!(
                Error,
                "rpma_peer_cfg_from_descriptor(): a descriptor of 0 bytes, where {} or more are due: \
                 it was not sent, or is none that rpma_peer_cfg_get_descriptor() has made",
                Self::DESCRIPTOR_SIZE
            );
            return Err(Error::INVAL);
        };
        let room = room()?;
        let supported = first != 0;
        let text = if supported {
            "supported"
        } else {
            "not supported"
        };
        log!(Info, "Direct write to pmem is {text}");
        Ok(Box::write(room, Self::new(supported)))
    }
}
