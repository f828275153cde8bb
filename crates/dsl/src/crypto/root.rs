//! Encryption roots that change: another key, an inherited key, promotion and moves (format page
//! 12, section 3).
//!
//! A change wraps the same master keys with another wrapping key, which must be loaded; data is not
//! rewritten. All changes are made in syncing context.

use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::Tx;

use super::key_object::KeyObject;
use super::wrapping::{Wrapping, new_wrapping, random};
use super::{NewKey, key_missing};
use crate::dir::Dir;
use crate::pool::DslPool;
use crate::props::PropValue;

impl DslPool {
    /// Gives a dataset another key, which makes it an encryption root. The old key must be loaded.
    pub async fn change_key(self: &Rc<Self>, name: &str, new: NewKey) -> Result<()> {
        let wrapping = new_wrapping(self.ctx().rt(), &self.keys().memory, &new).await?;
        let name = name.to_string();
        self.sync_task(move |pool, tx| {
            Box::pin(async move {
                let dir = pool.find_dir(&name)?;
                pool.check_rewrap(&dir)?;
                pool.rewrap(&dir, dir.object, &wrapping, &tx).await?;
                pool.keys().wrapping.borrow_mut().insert(dir.object, wrapping.key);
                let location = PropValue::Text(new.location.clone());
                pool.write_prop(&dir, "keylocation", Some(&location), &tx).await
            })
        })
        .await
    }

    /// Makes an encryption root use the key of its parent's root (`zfs change-key -i`). Both must
    /// be loaded.
    pub async fn inherit_key(self: &Rc<Self>, name: &str) -> Result<()> {
        let name = name.to_string();
        self.sync_task(move |pool, tx| {
            Box::pin(async move {
                let (dir, _) = pool.encryption_root(&name)?;
                pool.check_rewrap(&dir)?;
                let parent = dir.parent().and_then(|p| p.crypt());
                let parent = parent.ok_or_else(|| {
                    Error::invalid(format!("'{name}' cannot inherit a key: its parent is not encrypted"))
                })?;
                let (root, wrapping) = pool.wrapping_of(&parent)?;
                pool.rewrap(&dir, root, &wrapping, &tx).await?;
                pool.keys().wrapping.borrow_mut().remove(&dir.object);
                pool.write_prop(&dir, "keylocation", None, &tx).await
            })
        })
        .await
    }

    /// The root of a key object with its wrapping key, which must be loaded.
    pub(super) fn wrapping_of(&self, crypt: &KeyObject) -> Result<(ObjectId, Wrapping)> {
        let root = crypt.root.get();
        let dir = self.dir_of(root.0).ok();
        let of_root = dir.as_ref().and_then(|d| d.crypt());
        let (Some(dir), Some(of_root)) = (dir, of_root) else {
            return Err(Error::corrupt(format!("key object {} has no encryption root", crypt.object)));
        };
        let key = self.keys().wrapping.borrow().get(&root).cloned();
        let key = key.ok_or_else(|| key_missing(&dir.full_name(), &dir.full_name()))?;
        let (format, salt, iters) = (of_root.format.get(), of_root.salt.get(), of_root.iters.get());
        Ok((root, Wrapping { key, format, salt, iters }))
    }

    fn check_rewrap(&self, dir: &Rc<Dir>) -> Result<()> {
        let name = dir.full_name();
        let crypt = dir.crypt().ok_or_else(|| Error::invalid(format!("dataset '{name}' is not encrypted")))?;
        if dir.phys().origin_obj != 0 && dir.phys().origin_obj != self.origin_snap().0 {
            return Err(Error::invalid(format!("'{name}' is a clone: it shares the key of its origin")));
        }
        self.wrapping_of(&crypt).map(drop)
    }

    /// Wraps the keys of `dir` and of its inheriting descendants with another wrapping key, that of
    /// `root` (syncing context).
    async fn rewrap(&self, dir: &Rc<Dir>, root: ObjectId, wrapping: &Wrapping, tx: &Tx) -> Result<()> {
        let old_root = dir.crypt().map_or(ObjectId(0), |c| c.root.get());
        let mut changed: BTreeMap<ObjectId, Rc<KeyObject>> = BTreeMap::new();
        if old_root == dir.object {
            changed.extend(self.keys_of(old_root).into_iter().map(|k| (k.object, k)));
        } else {
            let mut todo = vec![dir.clone()];
            while let Some(d) = todo.pop() {
                if let Some(crypt) = d.crypt().filter(|c| c.root.get() == old_root) {
                    changed.insert(crypt.object, crypt);
                    todo.extend(d.children());
                }
            }
        }
        let rt = self.ctx().rt();
        for key in changed.values() {
            let data = key.data_key().ok_or_else(|| key_missing(&dir.full_name(), &dir.full_name()))?;
            let (guid, version) = (data.guid(), key.wrapped.borrow().version);
            let wrapped = data.master().wrap(&wrapping.key, guid, version, random(rt), &self.keys().memory);
            *key.wrapped.borrow_mut() = wrapped;
            key.root.set(root);
            key.format.set(wrapping.format);
            key.salt.set(wrapping.salt);
            key.iters.set(wrapping.iters);
            key.store_wrapping(&self.mos().hold(key.object).await?, tx).await?;
        }
        Ok(())
    }

    /// Checks that a clone may be promoted: either the origin's directory is an encryption root,
    /// which moves to the clone, or both are below the same root, so that no key changes (format
    /// page 12 section 3). Error: `Denied`.
    pub(crate) fn check_promotion_keys(&self, clone: &Dir, origin: &Dir) -> Result<()> {
        if origin.crypt().is_none() || self.is_encryption_root(origin) {
            return Ok(());
        }
        let root_above = |dir: &Dir| dir.parent().and_then(|p| p.crypt()).map(|c| c.root.get());
        if root_above(clone) == root_above(origin) {
            return Ok(());
        }
        let (clone, origin) = (clone.full_name(), origin.full_name());
        let why = format!("cannot promote '{clone}': it does not stand below the same encryption root as '{origin}'");
        Err(Error::new(ErrorKind::Denied, why))
    }

    /// Makes `new` the root of all key objects of the root `old`, and moves `keylocation` (syncing
    /// context). The wrapped keys do not change.
    pub(crate) async fn move_encryption_root(&self, old: &Rc<Dir>, new: &Rc<Dir>, tx: &Tx) -> Result<()> {
        for key in self.keys_of(old.object) {
            key.root.set(new.object);
            key.store_wrapping(&self.mos().hold(key.object).await?, tx).await?;
        }
        let wrapping = self.keys().wrapping.borrow_mut().remove(&old.object);
        if let Some(wrapping) = wrapping {
            self.keys().wrapping.borrow_mut().insert(new.object, wrapping);
        }
        let location = old.prop("keylocation").0;
        self.write_prop(old, "keylocation", None, tx).await?;
        self.write_prop(new, "keylocation", Some(&location), tx).await
    }

    /// Refuses to move `dir` below `parent` if it inherits its key from another root.
    pub(crate) fn check_crypt_move(&self, dir: &Dir, parent: &Dir) -> Result<()> {
        // What is not encrypted may stand anywhere.
        let Some(crypt) = dir.crypt() else { return Ok(()) };
        let root = crypt.root.get();
        if root == dir.object || parent.crypt().is_some_and(|p| p.root.get() == root) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "'{}' uses the key of '{}' and can only move to where that key is used",
            dir.full_name(),
            self.crypt_info(dir).map_or_else(String::new, |i| i.root)
        )))
    }
}
