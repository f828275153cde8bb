//! The keys of a dataset as a raw stream carries them (format page 12 section 11): wrapped, with
//! the shape of the meta-dnode, so that a receiver without the key can build the same object set.

use base::{Error, Guid, Result};
use ondisk::nvlist::{NvList, NvValue};
use ondisk::objset::ObjsetPhys;

use super::key_object::VERSION;
use crate::dir::Dir;
use crate::pool::DslPool;

impl DslPool {
    /// The list `crypt_keydata` for the object set `os` of an encrypted directory; `to` and `from`
    /// are the guids of the IV sets of the two snapshots, `from` is 0 for a full stream. Errors:
    /// `Invalid` if it is not encrypted, `Unsupported` for keys of an old version.
    pub(crate) fn crypt_keydata(&self, dir: &Dir, os: &ObjsetPhys, to: Guid, from: Guid) -> Result<NvList> {
        let crypt =
            dir.crypt().ok_or_else(|| Error::invalid(format!("dataset '{}' is not encrypted", dir.full_name())))?;
        let root = self.dir_of(crypt.root.get().0)?.crypt().unwrap_or_else(|| crypt.clone());
        let wrapped = crypt.wrapped.borrow();
        if wrapped.version != VERSION {
            let text = format!("dataset '{}' has keys of version {}, not {VERSION}", dir.full_name(), wrapped.version);
            return Err(Error::unsupported(text));
        }
        let meta = &os.meta_dnode;
        let number = |n: u64| NvValue::Uint64(n);
        let bytes = |b: &[u8]| NvValue::Uint8Array(b.to_vec());
        let pairs = [
            ("DSL_CRYPTO_SUITE", number(wrapped.suite as u64)),
            ("DSL_CRYPTO_GUID", number(wrapped.guid)),
            ("DSL_CRYPTO_VERSION", number(wrapped.version)),
            ("DSL_CRYPTO_MASTER_KEY_1", bytes(&wrapped.master)),
            ("DSL_CRYPTO_HMAC_KEY_1", bytes(&wrapped.hmac)),
            ("DSL_CRYPTO_IV", bytes(&wrapped.iv)),
            ("DSL_CRYPTO_MAC", bytes(&wrapped.tag)),
            ("portable_mac", bytes(&os.portable_mac)),
            ("keyformat", number(root.format.get() as u64)),
            ("pbkdf2iters", number(root.iters.get())),
            ("pbkdf2salt", number(root.salt.get())),
            ("mdn_checksum", number(u64::from(meta.checksum))),
            ("mdn_compress", number(u64::from(meta.compress))),
            ("mdn_nlevels", number(u64::from(meta.nlevels))),
            ("mdn_blksz", number(u64::from(meta.datablksz()))),
            ("mdn_indblkshift", number(u64::from(meta.indblkshift))),
            ("mdn_nblkptr", number(u64::from(meta.nblkptr))),
            ("mdn_maxblkid", number(meta.maxblkid)),
            ("to_ivset_guid", number(to.0)),
            ("from_ivset_guid", number(from.0)),
        ];
        Ok(pairs.into_iter().map(|(name, value)| (name.to_string(), value)).collect())
    }
}
