//! Encryption of new datasets: the key object that a dataset is created with, shares as a clone,
//! and drops when it is destroyed (format page 12, sections 3 and 9).
//!
//! Order: the wrapping key is derived first, outside of the sync ([`DslPool::prepare_crypt`]); the
//! sync task checks and decides ([`DslPool::plan_crypt`]) before it changes anything, and makes the
//! key object with the directory ([`DslPool::make_crypt`]).

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{Error, ObjectId, Result};
use codec::crypto::{MasterKey, Suite};
use dmu::{Tx, zap};
use ondisk::feature::FeatureId;
use ondisk::object_type::ObjectType;
use zio::DataKey;

use super::NewCrypt;
use super::key_object::{KEY_OBJ, KeyObject, VERSION};
use super::wrapping::{Wrapping, new_wrapping, random};
use crate::dir::Dir;
use crate::pool::DslPool;
use crate::props::PropValue;

/// A [`NewCrypt`] whose wrapping key has been derived.
pub(crate) struct PreparedCrypt {
    suite: Option<Option<Suite>>,
    wrapping: Option<(Wrapping, String)>,
}

/// The decision of [`DslPool::plan_crypt`] about a new dataset.
pub(crate) struct CryptPlan {
    suite: Suite,
    /// The encryption root; `None` if the new dataset is one.
    root: Option<ObjectId>,
    wrapping: Wrapping,
    location: Option<String>,
}

impl DslPool {
    /// Derives the wrapping key of a new encryption root, outside of the sync.
    pub(crate) async fn prepare_crypt(&self, new: NewCrypt) -> Result<PreparedCrypt> {
        let wrapping = match &new.key {
            Some(key) => Some((new_wrapping(self.ctx().rt(), &self.keys().memory, key).await?, key.location.clone())),
            None => None,
        };
        Ok(PreparedCrypt { suite: new.suite, wrapping })
    }

    /// Decides how a new dataset is encrypted, whose parent is so or not; `None`: it is not.
    pub(crate) fn plan_crypt(
        &self,
        name: &str,
        inherited: Option<Rc<KeyObject>>,
        new: &PreparedCrypt,
    ) -> Result<Option<CryptPlan>> {
        let suite = match (new.suite, &inherited) {
            (Some(None), _) | (None, None) if new.wrapping.is_some() => {
                return Err(Error::invalid(format!("'{name}' is not to be encrypted and needs no key: leave it out")));
            }
            (Some(None), _) | (None, None) => return Ok(None),
            (Some(Some(suite)), _) => suite,
            (None, Some(crypt)) => crypt.wrapped.borrow().suite,
        };
        if !self.features().is_enabled(FeatureId::Encryption) {
            return Err(Error::unsupported(
                "encryption needs the pool feature 'encryption': enable it with 'zpool set feature@encryption=enabled'",
            ));
        }
        if let Some((wrapping, location)) = new.wrapping.clone() {
            return Ok(Some(CryptPlan { suite, root: None, wrapping, location: Some(location) }));
        }
        let Some(crypt) = inherited else {
            return Err(Error::invalid(format!("'{name}' needs a key: say which kind with -o keyformat=passphrase")));
        };
        let (root, wrapping) = self.wrapping_of(&crypt)?;
        Ok(Some(CryptPlan { suite, root: Some(root), wrapping, location: None }))
    }

    /// Makes the key object of a new directory (syncing context).
    pub(crate) async fn make_crypt(&self, dir: &Rc<Dir>, plan: CryptPlan, tx: &Tx) -> Result<()> {
        let rt = self.ctx().rt();
        let memory = &self.keys().memory;
        let master = MasterKey::new(plan.suite, memory, |out| rt.entropy(out));
        let guid = rt.new_guid().0;
        let root = plan.root.unwrap_or(dir.object);
        let dn = zap::create(self.mos(), ObjectType::OTN_ZAP_METADATA, 0, tx).await?;
        zap::add_u64(&dn, b"DSL_CRYPTO_SUITE", plan.suite as u64, tx).await?;
        zap::add_u64(&dn, b"DSL_CRYPTO_GUID", guid, tx).await?;
        zap::add_u64(&dn, b"DSL_CRYPTO_VERSION", VERSION, tx).await?;
        zap::add_u64(&dn, b"DSL_CRYPTO_REFCOUNT", 1, tx).await?;
        let key = Rc::new(KeyObject {
            object: dn.object(),
            wrapped: RefCell::new(master.wrap(&plan.wrapping.key, guid, VERSION, random(rt), memory)),
            root: Cell::new(root),
            format: Cell::new(plan.wrapping.format),
            salt: Cell::new(plan.wrapping.salt),
            iters: Cell::new(plan.wrapping.iters),
            refcount: Cell::new(1),
            key: RefCell::new(Some(DataKey::new(master, memory.clone(), guid, VERSION))),
        });
        key.store_wrapping(&dn, tx).await?;
        zap::add_u64(&self.zapify(dir.object, tx).await?, KEY_OBJ, key.object.0, tx).await?;
        self.keys().objects.borrow_mut().insert(key.object, key.clone());
        dir.set_crypt(Some(key));
        if plan.root.is_none() {
            self.keys().wrapping.borrow_mut().insert(dir.object, plan.wrapping.key);
        }
        if let Some(location) = plan.location {
            self.write_prop(dir, "keylocation", Some(&PropValue::Text(location)), tx).await?;
        }
        Ok(())
    }

    /// Makes `dir`, a clone of a snapshot of `origin`, use the same key object (syncing context).
    pub(crate) async fn share_crypt(&self, dir: &Rc<Dir>, origin: &Dir, tx: &Tx) -> Result<()> {
        let Some(key) = origin.crypt() else { return Ok(()) };
        zap::add_u64(&self.zapify(dir.object, tx).await?, KEY_OBJ, key.object.0, tx).await?;
        // A damaged pool may have any count here.
        key.refcount.set(key.refcount.get().saturating_add(1));
        let dn = self.mos().hold(key.object).await?;
        zap::update_u64(&dn, b"DSL_CRYPTO_REFCOUNT", key.refcount.get(), tx).await?;
        dir.set_crypt(Some(key));
        Ok(())
    }

    /// The directory is destroyed: drops its reference to the key object, and frees the object with
    /// the last one (syncing context).
    pub(crate) async fn drop_crypt(&self, dir: &Dir, tx: &Tx) -> Result<()> {
        let Some(key) = dir.crypt() else { return Ok(()) };
        dir.set_crypt(None);
        self.keys().wrapping.borrow_mut().remove(&dir.object);
        key.refcount.set(key.refcount.get().saturating_sub(1));
        if key.refcount.get() > 0 {
            let dn = self.mos().hold(key.object).await?;
            return zap::update_u64(&dn, b"DSL_CRYPTO_REFCOUNT", key.refcount.get(), tx).await;
        }
        self.keys().objects.borrow_mut().remove(&key.object);
        self.mos().free(key.object, tx).await
    }
}
