use super::{Error, Result};

/// A copy of the data that came with a request or an answer; never empty.
pub struct PrivateData(Vec<u8>);

impl PrivateData {
    /// None if there is nothing to copy.
    pub fn copy(data: &[u8]) -> Result<Option<Self>> {
        if data.is_empty() {
            return Ok(None);
        }
        let mut copy = Vec::new();
        copy.try_reserve_exact(data.len())
            .map_err(|_| Error::NOMEM)?;
        copy.extend_from_slice(data);
        Ok(Some(PrivateData(copy)))
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}
