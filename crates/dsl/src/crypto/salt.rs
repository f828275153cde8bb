//! The pool's salt, which keys the checksums skein, edonr and blake3 (format page 02 section 3,
//! page 03 section 5).
//!
//! A pool gets its random salt when a dataset is first set to such a checksum; it never changes.

use base::{Error, Result};
use codec::ChecksumAlgo;
use dmu::{Tx, zap};

use crate::pool::DslPool;
use crate::props::PropValue;

/// The MOS directory entry.
const SALT: &[u8] = b"org.illumos:checksum_salt";

impl DslPool {
    /// Passes the salt, if there is one, to block I/O.
    pub(crate) async fn load_salt(&self) -> Result<()> {
        let Some(value) = zap::lookup(self.directory(), SALT).await? else { return Ok(()) };
        let bytes: Vec<u8> = value.ints().map(|b| b as u8).collect();
        let salt = <[u8; 32]>::try_from(bytes);
        let salt = salt.map_err(|_| Error::corrupt("the pool's checksum salt is not 32 bytes"))?;
        self.use_salt(salt);
        Ok(())
    }

    /// Makes the salt if the value of property `name` needs it and the pool has none (syncing
    /// context).
    pub(crate) async fn ensure_salt(&self, name: &str, value: &PropValue, tx: &Tx) -> Result<()> {
        let salted = matches!(name, "checksum" | "dedup")
            && ChecksumAlgo::from_u8((value.num() & 0xff) as u8).is_some_and(ChecksumAlgo::is_salted);
        if !salted || self.ctx().zio().opts().salt.is_some() {
            return Ok(());
        }
        let mut salt = [0; 32];
        self.ctx().rt().entropy(&mut salt);
        zap::update_bytes(self.directory(), SALT, &salt, tx).await?;
        self.use_salt(salt);
        Ok(())
    }

    fn use_salt(&self, salt: [u8; 32]) {
        let zio = self.ctx().zio();
        zio.set_opts(zio::ZioOpts { salt: Some(salt), ..zio.opts() });
    }
}
