//! Key objects: the wrapped master key of a directory, with the parameters of its wrapping, in a
//! ZAP of the MOS (format page 12, section 3).
//!
//! A pool keeps one [`KeyObject`] in memory for each object, so that a directory and its clones see
//! the same key. The fields of the wrapping change together, in syncing context.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{Error, ObjectId, Result, ResultExt};
use codec::crypto::{Suite, WrappedKey};
use codec::keymem::KeyMemory;
use dmu::{Dnode, Tx, zap};
use ondisk::object_type::ObjectType;
use zio::DataKey;

use super::KeyFormat;
use super::wrapping::WrappingKey;
use crate::pool::DslPool;

/// Entry of a directory's ZAP that names its key object.
pub(super) const KEY_OBJ: &[u8] = b"com.datto:crypto_key_obj";
/// Version of the keys that weir makes.
pub(super) const VERSION: u64 = 1;

/// A key object in memory. Directories that are clones of each other share it.
pub(crate) struct KeyObject {
    pub(super) object: ObjectId,
    pub(super) wrapped: RefCell<WrappedKey>,
    pub(super) root: Cell<ObjectId>,
    pub(super) format: Cell<KeyFormat>,
    pub(super) salt: Cell<u64>,
    pub(super) iters: Cell<u64>,
    pub(super) refcount: Cell<u64>,
    pub(super) key: RefCell<Option<Rc<DataKey>>>,
}

impl KeyObject {
    /// The key of blocks, if it is loaded.
    pub(crate) fn data_key(&self) -> Option<Rc<DataKey>> {
        self.key.borrow().clone()
    }

    pub(super) fn open(&self, wrapping: &WrappingKey, memory: &Rc<KeyMemory>) -> Result<Rc<DataKey>> {
        let wrapped = self.wrapped.borrow();
        let master = wrapped.unwrap(wrapping, memory)?;
        Ok(DataKey::new(master, memory.clone(), wrapped.guid, wrapped.version))
    }

    /// Writes the fields that change with the wrapping.
    pub(super) async fn store_wrapping(&self, dn: &Dnode, tx: &Tx) -> Result<()> {
        let w = self.wrapped.borrow().clone();
        zap::update_u64(dn, b"DSL_CRYPTO_ROOT_DDOBJ", self.root.get().0, tx).await?;
        zap::update_bytes(dn, b"DSL_CRYPTO_IV", &w.iv, tx).await?;
        zap::update_bytes(dn, b"DSL_CRYPTO_MAC", &w.tag, tx).await?;
        zap::update_bytes(dn, b"DSL_CRYPTO_MASTER_KEY_1", &w.master, tx).await?;
        zap::update_bytes(dn, b"DSL_CRYPTO_HMAC_KEY_1", &w.hmac, tx).await?;
        zap::update_u64(dn, b"keyformat", self.format.get() as u64, tx).await?;
        zap::update_u64(dn, b"pbkdf2salt", self.salt.get(), tx).await?;
        zap::update_u64(dn, b"pbkdf2iters", self.iters.get(), tx).await
    }
}

impl DslPool {
    /// Reads the key object of a directory that has one.
    pub(crate) async fn load_crypt(&self, dn: &Dnode) -> Result<Option<Rc<KeyObject>>> {
        if dn.otype() != ObjectType::OTN_ZAP_METADATA {
            return Ok(None);
        }
        let Some(object) = zap::lookup_u64(dn, KEY_OBJ).await? else { return Ok(None) };
        let object = ObjectId(object);
        let known = self.keys().objects.borrow().get(&object).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let key = self.read_key_object(object).await.at(|| format!("key object {object}"))?;
        let key = Rc::new(key);
        self.keys().objects.borrow_mut().insert(object, key.clone());
        Ok(Some(key))
    }

    async fn read_key_object(&self, object: ObjectId) -> Result<KeyObject> {
        let dn = self.mos().hold(object).await?;
        if dn.otype() != ObjectType::OTN_ZAP_METADATA {
            return Err(Error::corrupt("it is not a ZAP"));
        }
        let optional = async |name: &str| zap::lookup_u64(&dn, name.as_bytes()).await;
        let number = async |name: &str| -> Result<u64> {
            optional(name).await?.ok_or_else(|| Error::corrupt(format!("it has no entry {name}")))
        };
        let bytes = async |name: &str, len: usize| -> Result<Vec<u8>> {
            let value = zap::lookup(&dn, name.as_bytes()).await?;
            let bytes: Vec<u8> = value.iter().flat_map(|v| v.ints().map(|b| b as u8)).collect();
            if bytes.len() == len { Ok(bytes) } else { Err(Error::corrupt(format!("its entry {name} is wrong"))) }
        };
        let suite = number("DSL_CRYPTO_SUITE").await?;
        let suite = Suite::from_u64(suite)
            .ok_or_else(|| Error::unsupported(format!("encryption suite {suite} is not known")))?;
        let version = optional("DSL_CRYPTO_VERSION").await?.unwrap_or(0);
        if version > VERSION {
            return Err(Error::unsupported(format!("version {version} of encryption keys is not known")));
        }
        let format = number("keyformat").await?;
        let wrapped = WrappedKey {
            suite,
            version,
            guid: number("DSL_CRYPTO_GUID").await?,
            iv: bytes("DSL_CRYPTO_IV", 12).await?.try_into().expect("12 bytes"),
            tag: bytes("DSL_CRYPTO_MAC", 16).await?.try_into().expect("16 bytes"),
            master: bytes("DSL_CRYPTO_MASTER_KEY_1", 32).await?.try_into().expect("32 bytes"),
            hmac: bytes("DSL_CRYPTO_HMAC_KEY_1", 64).await?.try_into().expect("64 bytes"),
        };
        Ok(KeyObject {
            object,
            wrapped: RefCell::new(wrapped),
            root: Cell::new(ObjectId(number("DSL_CRYPTO_ROOT_DDOBJ").await?)),
            format: Cell::new(
                KeyFormat::from_u64(format)
                    .ok_or_else(|| Error::unsupported(format!("keyformat {format} is not known")))?,
            ),
            // Only the root's values are used, and old writers left out those of descendants.
            salt: Cell::new(optional("pbkdf2salt").await?.unwrap_or(0)),
            iters: Cell::new(optional("pbkdf2iters").await?.unwrap_or(0)),
            refcount: Cell::new(optional("DSL_CRYPTO_REFCOUNT").await?.unwrap_or(1)),
            key: RefCell::default(),
        })
    }
}
