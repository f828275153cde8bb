//! Extended attributes: names such as `user.comment` with values of up to 64 KiB.
//!
//! With `xattr=sa` they are in one attribute of the object, a packed name-value list of at most 64
//! KiB; a value too large for it goes into a file in the object's hidden xattr directory
//! (`xattr_dir`). Reads look in both places, with any value of the property; set and remove leave a
//! name in one place only.

pub(crate) mod dir;

use base::{Error, ErrorKind, ObjectId, Result, ResultExt};
use dmu::sa::{SaAttr, SaHandle, ZnodeAttrs};
use ondisk::nvlist::{NvList, NvValue};
use ondisk::zpl::pflags;

use crate::attr::new_mode;
use crate::fs::Zfs;
use crate::names::show;
use crate::node::{Node, check_flags, kind_of};
use crate::types::{SetXattr, XattrMode};

/// Longest value in bytes (`XATTR_SIZE_MAX` of Linux).
const VALUE_MAX: usize = 64 << 10;
/// Longest name in bytes.
const NAME_MAX: usize = 255;
/// Largest value in the list (`DXATTR_MAX_ENTRY_SIZE`, format page 08 section 6).
pub(crate) const SA_VALUE_MAX: usize = 32 << 10;
/// Largest packed list; a length has 16 bits.
const SA_LIST_MAX: usize = u16::MAX as usize;

fn no_xattr(name: &[u8]) -> Error {
    Error::new(ErrorKind::NoAttr, format!("there is no extended attribute '{}'", show(name)))
}

fn check_xattr_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.contains(&0) {
        return Err(Error::invalid(format!("'{}' cannot be the name of an extended attribute", show(name))));
    }
    if name.len() > NAME_MAX {
        return Err(Error::new(ErrorKind::Range, format!("an extended attribute's name has {} bytes", name.len())));
    }
    Ok(())
}

pub(crate) fn value_of<'a>(list: &'a NvList, name: &[u8]) -> Option<&'a [u8]> {
    match list.get(std::str::from_utf8(name).ok()?) {
        Some(NvValue::ByteArray(v) | NvValue::Uint8Array(v)) => Some(v),
        _ => None,
    }
}

impl Zfs {
    fn check_xattrs_on(&self) -> Result<()> {
        if self.opts().xattr == XattrMode::Off {
            return Err(Error::unsupported(format!("extended attributes are off in '{}'", self.name())));
        }
        Ok(())
    }

    /// The list in the system attributes; empty if there is none.
    pub(crate) async fn sa_list(&self, n: &Node) -> Result<NvList> {
        let sa = SaHandle::open(&n.dn, self.sa.get())?;
        if sa.is_znode() {
            return Ok(NvList::new());
        }
        match sa.get(SaAttr::Dxattr).await? {
            Some(packed) if !packed.is_empty() => {
                NvList::decode(&packed).at(|| format!("extended attributes of object {}", n.obj()))
            }
            _ => Ok(NvList::new()),
        }
    }

    /// The value of an extended attribute; `NoAttr` if there is none.
    pub async fn getxattr(&self, obj: ObjectId, name: &[u8]) -> Result<Vec<u8>> {
        self.check_xattrs_on()?;
        check_xattr_name(name)?;
        let n = self.node(obj).await?;
        if let Some(v) = value_of(&self.sa_list(&n).await?, name) {
            return Ok(v.to_vec());
        }
        let a = self.attrs(&n).await?;
        self.dir_get(&a, name, VALUE_MAX).await?.ok_or_else(|| no_xattr(name))
    }

    /// The names of all extended attributes, those of the hidden directory first.
    pub async fn listxattr(&self, obj: ObjectId) -> Result<Vec<Vec<u8>>> {
        if self.opts().xattr == XattrMode::Off {
            return Ok(Vec::new());
        }
        let n = self.node(obj).await?;
        let a = self.attrs(&n).await?;
        let mut names = self.dir_list(&a).await?;
        for name in self.sa_list(&n).await?.names() {
            if !names.iter().any(|n| n == name.as_bytes()) {
                names.push(name.as_bytes().to_vec());
            }
        }
        Ok(names)
    }

    pub(crate) async fn xattr_for_change(&self, n: &Node) -> Result<ZnodeAttrs> {
        let a = self.live_attrs(n).await?;
        check_flags(n.obj(), &a, pflags::IMMUTABLE | pflags::APPENDONLY)?;
        if a.flags & pflags::XATTR != 0 {
            return Err(Error::unsupported(format!("object {} is itself part of extended attributes", n.obj())));
        }
        Ok(a)
    }

    /// Sets an extended attribute. `Exists` or `NoAttr` depending on `how`; `TooBig` for more than
    /// 64 KiB.
    pub async fn setxattr(&self, obj: ObjectId, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        let _pass = self.enter()?;
        self.check_xattrs_on()?;
        check_xattr_name(name)?;
        if value.len() > VALUE_MAX {
            return Err(Error::new(ErrorKind::TooBig, format!("an extended attribute of {} bytes", value.len())));
        }
        let n = self.node(obj).await?;
        n.st.caps.changed();
        let done = self.set_xattr_locked(&n, name, value, how).await;
        n.st.caps.changed();
        done?;
        self.commit_if_always(obj).await
    }

    async fn set_xattr_locked(&self, n: &Node, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        let n = n.clone();
        let _xattrs = n.st.xattrs.lock().await;
        let a = self.xattr_for_change(&n).await?;
        let in_sa = value_of(&self.sa_list(&n).await?, name).is_some();
        let in_dir = self.dir_find(&a, name).await?.is_some();
        match how {
            SetXattr::Create if in_sa || in_dir => {
                return Err(Error::new(
                    ErrorKind::Exists,
                    format!("extended attribute '{}' exists already", show(name)),
                ));
            }
            SetXattr::Replace if !in_sa && !in_dir => return Err(no_xattr(name)),
            _ => {}
        }
        self.put_xattr(&n, &a, name, value, None).await
    }

    /// Stores an extended attribute as the property `xattr` says, and the mode, if given, in the
    /// same transaction. The caller holds the xattrs lock.
    pub(crate) async fn put_xattr(
        &self,
        n: &Node,
        a: &ZnodeAttrs,
        name: &[u8],
        value: &[u8],
        mode: Option<u32>,
    ) -> Result<()> {
        self.check_quota(a, false).await?;
        let mut list = self.sa_list(n).await?;
        let in_sa = value_of(&list, name).is_some();
        let in_dir = self.dir_find(a, name).await?.is_some();
        let sa_name = std::str::from_utf8(name).ok();
        let fits = value.len() <= SA_VALUE_MAX && self.opts().xattr == XattrMode::Sa;
        if let Some(sa_name) = sa_name
            && fits
            && self.has_sa(n)?
        {
            list.put(sa_name, NvValue::ByteArray(value.to_vec()));
            if self.store_sa_list(n, &list, mode, Some((name, Some(value)))).await? {
                return if in_dir { self.dir_remove(n, name, None).await.map(drop) } else { Ok(()) };
            }
            list = self.sa_list(n).await?;
        }
        self.dir_set(n, name, value, mode).await?;
        if in_sa && let Some(sa_name) = sa_name {
            list.remove(sa_name);
            self.store_sa_list(n, &list, None, Some((name, None))).await?;
        }
        Ok(())
    }

    /// Removes an extended attribute; `NoAttr` if there is none.
    pub async fn removexattr(&self, obj: ObjectId, name: &[u8]) -> Result<()> {
        let _pass = self.enter()?;
        self.check_xattrs_on()?;
        check_xattr_name(name)?;
        let n = self.node(obj).await?;
        let a = self.live_attrs(&n).await?;
        check_flags(obj, &a, pflags::IMMUTABLE | pflags::APPENDONLY)?;
        let found = self.remove_xattr(&n, name).await?;
        self.commit_if_always(obj).await?;
        if found { Ok(()) } else { Err(no_xattr(name)) }
    }

    /// Removes an extended attribute regardless of the object's flags; true if it existed.
    pub(crate) async fn remove_xattr(&self, n: &Node, name: &[u8]) -> Result<bool> {
        let n = n.clone();
        let _xattrs = n.st.xattrs.lock().await;
        let a = self.live_attrs(&n).await?;
        if a.flags & pflags::XATTR != 0 {
            return Err(Error::unsupported(format!("object {} is itself part of extended attributes", n.obj())));
        }
        self.remove_xattr_locked(&n, name, None).await
    }

    /// Removes an extended attribute from both places; true if it existed. If so, the mode, if
    /// given, is set in the same transaction. The caller holds the xattrs lock.
    pub(crate) async fn remove_xattr_locked(&self, n: &Node, name: &[u8], mode: Option<u32>) -> Result<bool> {
        let mut list = self.sa_list(n).await?;
        let mut found = false;
        if value_of(&list, name).is_some()
            && let Ok(sa_name) = std::str::from_utf8(name)
        {
            list.remove(sa_name);
            found = self.store_sa_list(n, &list, mode, Some((name, None))).await?;
        }
        found |= self.dir_remove(n, name, mode).await?;
        Ok(found)
    }

    fn has_sa(&self, n: &Node) -> Result<bool> {
        Ok(!SaHandle::open(&n.dn, self.sa.get())?.is_znode())
    }

    /// Stores the list in the system attributes; false if it does not fit. `change` is what the log
    /// gets: the attribute and its value, none if it is removed.
    pub(crate) async fn store_sa_list(
        &self,
        n: &Node,
        list: &NvList,
        mode: Option<u32>,
        change: Option<(&[u8], Option<&[u8]>)>,
    ) -> Result<bool> {
        let packed = list.encode_xdr();
        if packed.len() > SA_LIST_MAX {
            return Ok(false);
        }
        let tx = self.plan_layout().bonus(&n.dn).spill(&n.dn).assign().await?;
        let sa = SaHandle::open(&n.dn, self.sa.get())?;
        let lock = n.st.attrs.lock().await;
        let mut a = sa.attrs().await?;
        a.ctime = self.now();
        let value = if list.is_empty() { None } else { Some(&packed[..]) };
        let aces = match mode {
            Some(mode) => {
                let kind = kind_of(n.obj(), a.mode)?;
                Some(new_mode(&mut a, mode, kind))
            }
            None => None,
        };
        let mut changed = vec![(SaAttr::Dxattr, value)];
        changed.extend(aces.as_deref().map(|bytes| (SaAttr::DaclAces, Some(bytes))));
        match sa.update(Some(&a), &changed, &tx).await {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::TooBig => return Ok(false),
            Err(e) => return Err(e),
        }
        drop(lock);
        match change {
            // The record has no mode.
            Some((name, value)) if mode.is_none() => self.log_sa_xattr(n.obj(), &a, name, value, &tx),
            _ => self.log_barrier(Some(n.obj()), &tx),
        }
        self.finish(tx);
        Ok(true)
    }
}
