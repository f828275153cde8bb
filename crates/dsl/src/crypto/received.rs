//! Keys that a raw stream brings (format page 12 section 11): a new directory gets a key object
//! with them, one that exists must have the same master key.
//!
//! The keys stay wrapped: whoever has the passphrase of the sender loads them here.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{Error, ErrorKind, Guid, Result};
use codec::crypto::{Suite, WrappedKey};
use dmu::{RawMeta, Tx, zap};
use ondisk::nvlist::NvList;
use ondisk::object_type::ObjectType;

use super::KeyFormat;
use super::key_object::{KEY_OBJ, KeyObject, VERSION};
use crate::dir::Dir;
use crate::pool::DslPool;
use crate::props::PropValue;

/// The keys of a raw stream, and the shape of its object set.
pub(crate) struct ReceivedKeys {
    wrapped: WrappedKey,
    format: KeyFormat,
    salt: u64,
    iters: u64,
    /// The meta-dnode, and the MAC of the object set.
    pub meta: RawMeta,
    /// The set of IVs of the snapshot; none in a stream from an old pool.
    pub to_ivset: Option<Guid>,
    /// The set of IVs of the snapshot that the stream starts from; none in a full stream.
    pub from_ivset: Option<Guid>,
}

impl ReceivedKeys {
    /// The keys in the list after BEGIN. Errors: `Corrupt` if they are incomplete, `Unsupported`
    /// for suites, versions and shapes that weir does not know.
    pub(crate) fn parse(list: &NvList) -> Result<ReceivedKeys> {
        let keys = list.require_list("crypt_keydata")?;
        fn sized<const N: usize>(keys: &NvList, name: &str) -> Result<[u8; N]> {
            let bytes = keys.require_bytes(name)?;
            bytes.try_into().map_err(|_| Error::corrupt(format!("'{name}' has {} bytes, not {N}", bytes.len())))
        }
        let suite = keys.require_u64("DSL_CRYPTO_SUITE")?;
        let suite = Suite::from_u64(suite)
            .ok_or_else(|| Error::unsupported(format!("encryption suite {suite} of the stream is not known")))?;
        let version = keys.require_u64("DSL_CRYPTO_VERSION")?;
        if version != VERSION {
            return Err(Error::unsupported(format!("the stream has keys of version {version}, not {VERSION}")));
        }
        let format = keys.require_u64("keyformat")?;
        let format = KeyFormat::from_u64(format)
            .ok_or_else(|| Error::unsupported(format!("keyformat {format} of the stream is not known")))?;
        let wrapped = WrappedKey {
            suite,
            guid: keys.require_u64("DSL_CRYPTO_GUID")?,
            version,
            iv: sized(keys, "DSL_CRYPTO_IV")?,
            tag: sized(keys, "DSL_CRYPTO_MAC")?,
            master: sized(keys, "DSL_CRYPTO_MASTER_KEY_1")?,
            hmac: sized(keys, "DSL_CRYPTO_HMAC_KEY_1")?,
        };
        let shape = |name: &str, most: u64| {
            let n = keys.require_u64(name)?;
            if n <= most { Ok(n) } else { Err(Error::corrupt(format!("'{name}' is {n}"))) }
        };
        let fixed = |name: &str, want: u64| match keys.require_u64(name)? {
            n if n == want => Ok(()),
            n => Err(Error::unsupported(format!("'{name}' of the stream is {n}, where weir has {want}"))),
        };
        fixed("mdn_blksz", ondisk::dnode::DNODE_BLOCK_SIZE as u64)?;
        fixed("mdn_indblkshift", u64::from(ondisk::dnode::MAX_INDBLKSHIFT))?;
        fixed("mdn_nblkptr", 3)?;
        let meta = RawMeta {
            portable_mac: sized(keys, "portable_mac")?,
            levels: shape("mdn_nlevels", u64::from(ondisk::blkptr::MAX_LEVELS))? as u8,
            max_blkid: shape("mdn_maxblkid", u64::MAX)?,
            own: (shape("mdn_compress", 255)? as u8, shape("mdn_checksum", 255)? as u8),
        };
        let guid = |name: &str| keys.u64(name).filter(|g| *g != 0).map(Guid);
        let (salt, iters) = (keys.require_u64("pbkdf2salt")?, keys.require_u64("pbkdf2iters")?);
        let (to_ivset, from_ivset) = (guid("to_ivset_guid"), guid("from_ivset_guid"));
        Ok(ReceivedKeys { wrapped, format, salt, iters, meta, to_ivset, from_ivset })
    }
}

impl DslPool {
    /// Makes the key object of a new directory, an encryption root whose key is not loaded (syncing
    /// context).
    pub(crate) async fn make_received_crypt(&self, dir: &Rc<Dir>, keys: &ReceivedKeys, tx: &Tx) -> Result<()> {
        let dn = zap::create(self.mos(), ObjectType::OTN_ZAP_METADATA, 0, tx).await?;
        zap::add_u64(&dn, b"DSL_CRYPTO_SUITE", keys.wrapped.suite as u64, tx).await?;
        zap::add_u64(&dn, b"DSL_CRYPTO_GUID", keys.wrapped.guid, tx).await?;
        zap::add_u64(&dn, b"DSL_CRYPTO_VERSION", VERSION, tx).await?;
        zap::add_u64(&dn, b"DSL_CRYPTO_REFCOUNT", 1, tx).await?;
        let key = Rc::new(KeyObject {
            object: dn.object(),
            wrapped: RefCell::new(keys.wrapped.clone()),
            root: Cell::new(dir.object),
            format: Cell::new(keys.format),
            salt: Cell::new(keys.salt),
            iters: Cell::new(keys.iters),
            refcount: Cell::new(1),
            key: RefCell::new(None),
        });
        key.store_wrapping(&dn, tx).await?;
        zap::add_u64(&self.zapify(dir.object, tx).await?, KEY_OBJ, key.object.0, tx).await?;
        self.keys().objects.borrow_mut().insert(key.object, key.clone());
        dir.set_crypt(Some(key));
        self.write_prop(dir, "keylocation", Some(&PropValue::Text("prompt".into())), tx).await
    }

    /// Checks that `dir` has the master key of a stream. Errors: `Invalid` if it is not encrypted,
    /// `Denied` if it has another one.
    pub(crate) fn check_received_crypt(&self, dir: &Dir, keys: &ReceivedKeys) -> Result<()> {
        let Some(key) = dir.crypt() else {
            return Err(Error::invalid("cannot perform raw receive on top of existing unencrypted dataset"));
        };
        let own = key.wrapped.borrow();
        if (own.guid, own.suite) != (keys.wrapped.guid, keys.wrapped.suite) {
            return Err(Error::new(ErrorKind::Denied, "encryption key does not match existing key"));
        }
        Ok(())
    }

    /// Makes an encryption root that was received raw inherit its key from the root of its parent,
    /// as it does at the sender: both are wrapped with the same key (`DCP_CMD_FORCE_INHERIT`).
    /// False, and nothing is done, if they are not.
    pub async fn inherit_received_key(self: &Rc<Self>, name: &str) -> Result<bool> {
        let name = name.to_string();
        self.sync_task(move |pool, tx| {
            Box::pin(async move {
                let dir = pool.find_dir(&name)?;
                let (Some(key), Some(above)) = (dir.crypt(), dir.parent().and_then(|p| p.crypt())) else {
                    return Ok(false);
                };
                let wrapping = |k: &KeyObject| (k.format.get(), k.salt.get(), k.iters.get());
                if key.root.get() != dir.object || wrapping(&key) != wrapping(&above) {
                    return Ok(false);
                }
                // With the key of the root loaded, theirs are open from now on.
                let of_root = pool.keys().wrapping.borrow().get(&above.root.get()).cloned();
                if of_root.is_some_and(|of_root| pool.open_keys(dir.object, &of_root).is_err()) {
                    return Ok(false);
                }
                for key in pool.keys_of(dir.object) {
                    key.root.set(above.root.get());
                    key.store_wrapping(&pool.mos().hold(key.object).await?, &tx).await?;
                }
                pool.keys().wrapping.borrow_mut().remove(&dir.object);
                pool.write_prop(&dir, "keylocation", None, &tx).await?;
                Ok(true)
            })
        })
        .await
    }

    /// Takes over the wrapping of the keys of a stream, if `dir` is an encryption root: the sender
    /// may have changed its passphrase (syncing context).
    pub(crate) async fn take_received_crypt(&self, dir: &Dir, keys: &ReceivedKeys, tx: &Tx) -> Result<()> {
        let Some(key) = dir.crypt().filter(|key| key.root.get() == dir.object) else { return Ok(()) };
        *key.wrapped.borrow_mut() = keys.wrapped.clone();
        key.format.set(keys.format);
        key.salt.set(keys.salt);
        key.iters.set(keys.iters);
        key.store_wrapping(&self.mos().hold(key.object).await?, tx).await
    }
}
