//! The attributes of one object.

use std::borrow::Cow;
use std::rc::Rc;

use base::{Error, ErrorKind, Result, ResultExt};
use bdev::Bytes;
use ondisk::bytes::{le16, le64};
use ondisk::object_type::ObjectType;
use ondisk::sa::{SPILL_MAX, build, is_swapped, plan, swap_buffer};
use ondisk::zpl::{
    Ace, S_IFBLK, S_IFCHR, S_IFLNK, S_IFMT, ZNODE_ACL, ZNODE_SIZE, ZPL_VERSION_FUID, ZnodePhys, aces_to_bytes, pflags,
    znode_aces, znode_acl,
};

use super::{SaAttr, SaTable, Span, ZnodeAttrs};
use crate::{Dnode, Tx};

/// Bytes that a spill pointer takes from the bonus.
const SPILL_BP: usize = 128;
/// The smallest bonus that the first attributes of every file fit in; a dnode for attributes has
/// 320 bytes or more.
const MIN_CAPACITY: usize = 2 * SPILL_BP;
/// The longest bonus of a znode with a symbolic link's target, whatever the dnode has room for
/// (format page 16 section 3).
const ZNODE_MAX: usize = 320;

/// The attributes of one object, to read and change.
#[derive(Clone, Copy)]
pub struct SaHandle<'a> {
    dn: &'a Dnode,
    /// None in a file system without system attributes, in which all objects have znodes.
    table: Option<&'a Rc<SaTable>>,
}

/// An attribute copied out of its buffer.
struct Value {
    num: u16,
    attr: Option<SaAttr>,
    bytes: Vec<u8>,
}

impl<'a> SaHandle<'a> {
    /// The attributes of `dn`, an object of the file system of `table`, which there is from ZPL
    /// version 5 on. Fails if its bonus is neither attributes nor a znode.
    pub fn open(dn: &'a Dnode, table: Option<&'a Rc<SaTable>>) -> Result<SaHandle<'a>> {
        match (dn.bonus_type(), table) {
            (ObjectType::SA, Some(_)) | (ObjectType::ZNODE, _) => Ok(SaHandle { dn, table }),
            (ObjectType::SA, None) => Err(Error::corrupt(format!(
                "object {} has attributes of a newer version than the file system",
                dn.object()
            ))),
            (other, _) => {
                Err(Error::corrupt(format!("object {} has a bonus of type {other:?}, it is no file", dn.object())))
            }
        }
    }

    /// Gives a new object its attributes, in this order.
    pub async fn create(
        dn: &'a Dnode,
        table: &'a Rc<SaTable>,
        attrs: &[(SaAttr, &[u8])],
        tx: &Tx,
    ) -> Result<SaHandle<'a>> {
        let sa = SaHandle { dn, table: Some(table) };
        table.register_all(tx).await?;
        let mut list = Vec::with_capacity(attrs.len());
        for &(attr, bytes) in attrs {
            list.push(sa.value(attr, bytes)?);
        }
        sa.lay_out(list, tx).await.at(|| sa.place())?;
        Ok(sa)
    }

    /// Gives a new object the attributes of a file in the order that OpenZFS gives them (format
    /// page 16 section 1). `projid`: with a project id; `rdev`: with a device number; `xattr`: with
    /// an xattr directory if that is not 0.
    pub async fn create_znode(
        dn: &'a Dnode,
        table: &'a Rc<SaTable>,
        a: &ZnodeAttrs,
        options: NewZnode<'_>,
        tx: &Tx,
    ) -> Result<SaHandle<'a>> {
        use SaAttr::*;
        let mut a = *a;
        let mut order = vec![Mode, Size, Gen, Uid, Gid, Parent, Flags, Atime, Mtime, Ctime, Crtime, Links];
        if options.projid {
            order.push(Projid);
        }
        if options.rdev {
            order.push(Rdev);
        }
        order.push(DaclCount);
        let values: Vec<(SaAttr, Vec<u8>)> =
            order.into_iter().map(|attr| (attr, a.bytes(attr).expect("a field of the struct"))).collect();
        let mut attrs: Vec<(SaAttr, &[u8])> = values.iter().map(|(attr, v)| (*attr, v.as_slice())).collect();
        attrs.push((DaclAces, options.aces));
        if let Some(target) = options.symlink {
            attrs.push((Symlink, target));
        }
        let xattr = a.xattr.to_le_bytes();
        if a.xattr != 0 {
            attrs.push((Xattr, &xattr));
        }
        SaHandle::create(dn, table, &attrs, tx).await
    }

    /// Gives a new object of a file system of ZPL version `version`, before 5, its znode, with an
    /// ACL that a mode comes to, and a symbolic link its target.
    pub async fn create_old(
        dn: &Dnode,
        version: u64,
        (a, aces): (&ZnodeAttrs, &[Ace]),
        target: Option<&[u8]>,
        tx: &Tx,
    ) -> Result<()> {
        let mut bonus = vec![0; ZNODE_SIZE];
        a.to_znode(&mut bonus);
        let acl =
            znode_acl(aces, version).ok_or_else(|| Error::invalid("the owner or the ACL does not fit a znode"))?;
        bonus[ZNODE_ACL..].copy_from_slice(&acl);
        let target = target.unwrap_or_default();
        let is_behind = ZNODE_SIZE + target.len() <= ZNODE_MAX.min(dn.bonus_capacity(false));
        if is_behind {
            bonus.extend_from_slice(target);
        }
        dn.set_bonus_typed(ObjectType::ZNODE, &bonus, tx)?;
        if !is_behind {
            dn.set_block_size(target.len().next_multiple_of(512) as u32, tx)?;
            dn.write(0, target, tx).await?;
        }
        Ok(())
    }

    /// Sets the attributes of an object with a znode, and the ACL `aces` that its mode comes to, in
    /// the form that it has there; an ACL in an object of its own stays.
    pub fn set_old_mode(&self, a: &ZnodeAttrs, aces: &[Ace], tx: &Tx) -> Result<()> {
        let mut b = self.znode_with(a)?;
        let version = if le16(&b, ZNODE_ACL + 12) == 0 { 1 } else { ZPL_VERSION_FUID };
        if le64(&b, ZNODE_ACL) == 0
            && let Some(acl) = znode_acl(aces, version)
        {
            b[ZNODE_ACL..ZNODE_SIZE].copy_from_slice(&acl);
        }
        self.dn.set_bonus(&b, tx)
    }

    /// Gives an object with a znode attributes instead. One with an ACL of its own, a symbolic
    /// link, and one with more behind the znode stay as they are. `projid`: it belongs to project
    /// 0 then.
    pub async fn convert(dn: &Dnode, table: &Rc<SaTable>, projid: bool, tx: &Tx) -> Result<()> {
        let old = SaHandle { dn, table: Some(table) };
        let Some(z) = old.znode()? else { return Ok(()) };
        let kind = z.mode & S_IFMT;
        let Some(aces) = znode_aces(&z.acl).filter(|_| kind != S_IFLNK && z.tail.is_empty()) else { return Ok(()) };
        let mut a = ZnodeAttrs::from_znode(&old.znode_bonus()?);
        a.dacl_count = aces.len() as u64;
        if projid {
            (a.projid, a.flags) = (0, a.flags | pflags::PROJID);
        }
        let bytes = aces_to_bytes(&aces);
        let more = NewZnode { aces: &bytes, symlink: None, projid, rdev: matches!(kind, S_IFCHR | S_IFBLK) };
        SaHandle::create_znode(dn, table, &a, more, tx).await?;
        Ok(())
    }

    /// The table of an object with attributes.
    fn table(&self) -> &'a Rc<SaTable> {
        self.table.expect("only objects with znodes are opened without a table")
    }

    fn place(&self) -> String {
        format!("attributes of object {}", self.dn.object())
    }
    /// Whether the object has a znode of an old file system version instead of attributes.
    pub fn is_znode(&self) -> bool {
        self.dn.bonus_type() == ObjectType::ZNODE
    }
    fn znode_bonus(&self) -> Result<Rc<[u8]>> {
        let b = self.dn.bonus();
        if b.len() < ZNODE_SIZE {
            return Err(Error::corrupt(format!("znode of object {} has {} bytes", self.dn.object(), b.len())));
        }
        Ok(b)
    }
    /// The znode of an object that has one, with its ACL.
    pub fn znode(&self) -> Result<Option<ZnodePhys>> {
        if !self.is_znode() {
            return Ok(None);
        }
        ZnodePhys::parse(&self.znode_bonus()?).map(Some)
    }

    /// A buffer in native byte order.
    fn native<'b>(&self, b: &'b [u8]) -> Result<Cow<'b, [u8]>> {
        if !is_swapped(b) {
            return Ok(Cow::Borrowed(b));
        }
        let mut copy = b.to_vec();
        swap_buffer(&mut copy, &self.table().attrs.borrow(), &self.table().layouts.borrow())?;
        Ok(Cow::Owned(copy))
    }
    fn scan(&self, b: &[u8], mut f: impl FnMut(Span, &[u8])) -> Result<()> {
        let b = self.native(b)?;
        self.table().walk(&b, |s| f(s, &b[s.start..s.end]))
    }
    async fn spill(&self) -> Result<Option<Bytes>> {
        if self.dn.has_spill() { self.dn.spill().await } else { Ok(None) }
    }

    /// All attributes of fixed length.
    pub async fn attrs(&self) -> Result<ZnodeAttrs> {
        if self.is_znode() {
            return Ok(ZnodeAttrs::from_znode(&self.znode_bonus()?));
        }
        let mut a = ZnodeAttrs::default();
        let mut seen = 0u32;
        let mut take = |s: Span, v: &[u8]| {
            if let Some(attr) = s.attr {
                a.load(attr, v);
                seen |= 1 << attr as u16;
            }
        };
        self.scan(&self.dn.bonus(), &mut take).at(|| self.place())?;
        if let Some(spill) = self.spill().await? {
            self.scan(&spill, &mut take).at(|| self.place())?;
        }
        if seen & 1 << SaAttr::Mode as u16 == 0 {
            return Err(Error::corrupt(format!("object {} has no mode", self.dn.object())));
        }
        Ok(a)
    }

    /// Writes all attributes of fixed length. Existing attributes are overwritten in place; a
    /// missing one is added if it is not 0.
    pub async fn set_attrs(&self, a: &ZnodeAttrs, tx: &Tx) -> Result<()> {
        if self.is_znode() {
            return self.set_attrs_of_znode(a, tx);
        }
        if !self.patch_bonus(a, tx).at(|| self.place())? {
            self.update(Some(a), &[], tx).await?;
        }
        Ok(())
    }

    /// The fast path of [`SaHandle::set_attrs`]: patches the bonus; false if that is not enough.
    fn patch_bonus(&self, a: &ZnodeAttrs, tx: &Tx) -> Result<bool> {
        let old = self.dn.bonus();
        if self.dn.has_spill() || is_swapped(&old) {
            return Ok(false);
        }
        let mut a = *a;
        let mut new = old.to_vec();
        let mut seen = 0u32;
        self.table().walk(&old, |s| {
            if let Some(attr) = s.attr {
                a.store(attr, &mut new[s.start..s.end]);
                seen |= 1 << attr as u16;
            }
        })?;
        if seen == 0 || missing_optional(&a, |attr| seen & 1 << attr as u16 != 0).next().is_some() {
            return Ok(false);
        }
        if new[..] != old[..] {
            self.dn.set_bonus(&new, tx)?;
        }
        Ok(true)
    }

    /// One attribute's bytes. A znode has only the fixed ones and the symlink's target in the
    /// bonus.
    pub async fn get(&self, attr: SaAttr) -> Result<Option<Vec<u8>>> {
        Ok(self.get_many(&[attr]).await?.pop().flatten())
    }

    /// The bytes of several attributes, in the order of `attrs`.
    pub async fn get_many(&self, attrs: &[SaAttr]) -> Result<Vec<Option<Vec<u8>>>> {
        let mut out = vec![None; attrs.len()];
        if self.is_znode() {
            let b = self.znode_bonus()?;
            let mut a = ZnodeAttrs::from_znode(&b);
            for (o, &attr) in out.iter_mut().zip(attrs) {
                *o = match attr {
                    SaAttr::Symlink => ZnodePhys::parse(&b)?.symlink_target().map(<[u8]>::to_vec),
                    SaAttr::Projid => None,
                    SaAttr::Xattr if a.xattr == 0 => None,
                    _ => a.bytes(attr),
                };
            }
            return Ok(out);
        }
        let mut take = |s: Span, v: &[u8]| {
            for (o, &attr) in out.iter_mut().zip(attrs) {
                if s.attr == Some(attr) {
                    *o = Some(v.to_vec());
                }
            }
        };
        self.scan(&self.dn.bonus(), &mut take).at(|| self.place())?;
        if self.dn.has_spill() && out.iter().any(Option::is_none) {
            let mut take = |s: Span, v: &[u8]| {
                for (o, &attr) in out.iter_mut().zip(attrs) {
                    if s.attr == Some(attr) {
                        *o = Some(v.to_vec());
                    }
                }
            };
            if let Some(spill) = self.spill().await? {
                self.scan(&spill, &mut take).at(|| self.place())?;
            }
        }
        Ok(out)
    }

    /// The target of a symbolic link: an attribute, or bytes behind a znode or in its data.
    pub async fn symlink(&self) -> Result<Option<Vec<u8>>> {
        if let Some(target) = self.get(SaAttr::Symlink).await? {
            return Ok(Some(target));
        }
        match self.znode()? {
            Some(z) if z.mode & ondisk::zpl::S_IFMT == ondisk::zpl::S_IFLNK => {
                let block = self.dn.read_block(0).await?;
                let target = usize::try_from(z.size).ok().and_then(|n| block.get(..n));
                let target = target.ok_or_else(|| {
                    Error::corrupt(format!("symbolic link {} has a target of {} bytes", self.dn.object(), z.size))
                })?;
                Ok(Some(target.to_vec()))
            }
            _ => Ok(None),
        }
    }

    /// Sets one attribute, new or not.
    pub async fn set(&self, attr: SaAttr, bytes: &[u8], tx: &Tx) -> Result<()> {
        self.update(None, &[(attr, Some(bytes))], tx).await
    }
    /// Removes one attribute; [`ErrorKind::NoAttr`] if it does not exist.
    pub async fn remove(&self, attr: SaAttr, tx: &Tx) -> Result<()> {
        if self.get(attr).await?.is_none() {
            return Err(Error::new(ErrorKind::NoAttr, format!("object {} has no {}", self.dn.object(), attr.name())));
        }
        self.update(None, &[(attr, None)], tx).await
    }

    /// Changes many attributes at once: all of fixed length to those of `a`, then each of `changes`
    /// is set or, with `None`, removed. An error of kind `TooBig` if they do not fit even with a
    /// spill block; nothing is changed then.
    pub async fn update(&self, a: Option<&ZnodeAttrs>, changes: &[(SaAttr, Option<&[u8]>)], tx: &Tx) -> Result<()> {
        if self.is_znode() {
            if !changes.is_empty() {
                return Err(Error::unsupported(format!(
                    "object {} has a znode of an old file system version: it cannot get other attributes",
                    self.dn.object()
                )));
            }
            return match a {
                Some(a) => self.set_attrs_of_znode(a, tx),
                None => Ok(()),
            };
        }
        self.update_list(a, changes, tx).await.at(|| self.place())
    }

    /// The bonus of an object with a znode, with other attributes.
    fn znode_with(&self, a: &ZnodeAttrs) -> Result<Vec<u8>> {
        let mut b = self.znode_bonus()?.to_vec();
        a.to_znode(&mut b);
        Ok(b)
    }

    fn set_attrs_of_znode(&self, a: &ZnodeAttrs, tx: &Tx) -> Result<()> {
        self.dn.set_bonus(&self.znode_with(a)?, tx)
    }

    async fn update_list(&self, a: Option<&ZnodeAttrs>, changes: &[(SaAttr, Option<&[u8]>)], tx: &Tx) -> Result<()> {
        self.table().register_all(tx).await?;
        let mut list = Vec::new();
        let mut take = |s: Span, v: &[u8]| list.push(Value { num: s.num, attr: s.attr, bytes: v.to_vec() });
        self.scan(&self.dn.bonus(), &mut take)?;
        if let Some(spill) = self.spill().await? {
            self.scan(&spill, &mut take)?;
        }
        if let Some(a) = a {
            let mut a = *a;
            for v in &mut list {
                if let Some(attr) = v.attr {
                    a.store(attr, &mut v.bytes);
                }
            }
            let absent: Vec<SaAttr> = missing_optional(&a, |attr| list.iter().any(|v| v.attr == Some(attr))).collect();
            for attr in absent {
                let bytes = a.bytes(attr).expect("a field of the struct");
                insert(&mut list, self.value(attr, &bytes)?);
            }
        }
        for &(attr, bytes) in changes {
            let at = list.iter().position(|v| v.attr == Some(attr));
            match (at, bytes) {
                (Some(i), Some(b)) => list[i] = self.value(attr, b)?,
                (None, Some(b)) => insert(&mut list, self.value(attr, b)?),
                (Some(i), None) => drop(list.remove(i)),
                (None, None) => {}
            }
        }
        self.lay_out(list, tx).await
    }

    fn value(&self, attr: SaAttr, bytes: &[u8]) -> Result<Value> {
        let attrs = self.table().attrs.borrow();
        let num = attrs.num(attr).expect("all attributes have been registered");
        let len = attrs.info(num).map_or(0, |i| usize::from(i.len));
        if len != 0 && len != bytes.len() {
            return Err(Error::invalid(format!("attribute {} of {} bytes", attr.name(), bytes.len())));
        }
        if bytes.len() > usize::from(u16::MAX) {
            return Err(Error::new(ErrorKind::TooBig, format!("attribute {} of {} bytes", attr.name(), bytes.len())));
        }
        Ok(Value { num, attr: Some(attr), bytes: bytes.to_vec() })
    }

    /// Stores these attributes, divided between bonus and spill block.
    async fn lay_out(&self, list: Vec<Value>, tx: &Tx) -> Result<()> {
        let capacity = self.dn.bonus_capacity(false);
        if capacity < MIN_CAPACITY {
            return Err(Error::corrupt(format!("bonus has room for {capacity} bytes only")));
        }
        let sizes: Vec<(usize, bool)> = list.iter().map(|v| (v.bytes.len(), self.table().varies(v.num))).collect();
        let plan = plan(&sizes, capacity)?;
        let (here, there) = list.split_at(plan.in_bonus);
        let mut bonus = self.side(here, tx).await?;
        bonus.resize(plan.bonuslen, 0);
        let spill = if plan.spill_len == 0 {
            None
        } else {
            let spill = self.side(there, tx).await?;
            assert!(spill.len() == plan.spill_len && spill.len() <= SPILL_MAX, "spill of {} bytes", spill.len());
            Some(Bytes::from(spill))
        };
        // No waits from here on: either both sides change or neither. The side that shrinks goes
        // first.
        if spill.is_none() && self.dn.has_spill() {
            self.dn.set_spill(None, tx)?;
        }
        self.dn.set_bonus_typed(ObjectType::SA, &bonus, tx)?;
        if spill.is_some() {
            self.dn.set_spill(spill, tx)?;
        }
        Ok(())
    }

    async fn side(&self, list: &[Value], tx: &Tx) -> Result<Vec<u8>> {
        let nums: Vec<u16> = list.iter().map(|v| v.num).collect();
        let layout = self.table().layout_for(&nums, tx).await?;
        let values: Vec<(&[u8], bool)> =
            list.iter().map(|v| (v.bytes.as_slice(), self.table().varies(v.num))).collect();
        Ok(build(layout, &values))
    }
}

/// Attributes of a new file besides the fixed ones.
#[derive(Clone, Copy, Default)]
pub struct NewZnode<'a> {
    /// The ACL's entries as bytes (`ondisk::zpl::aces_to_bytes`).
    pub aces: &'a [u8],
    /// Target of a symbolic link.
    pub symlink: Option<&'a [u8]>,
    /// It has a project id.
    pub projid: bool,
    /// It has a device number.
    pub rdev: bool,
}

/// Optional attributes that the object lacks and whose value in `a` is not 0.
fn missing_optional(a: &ZnodeAttrs, has: impl Fn(SaAttr) -> bool) -> impl Iterator<Item = SaAttr> {
    [(SaAttr::Projid, a.projid), (SaAttr::Rdev, a.rdev), (SaAttr::Xattr, a.xattr), (SaAttr::DaclCount, a.dacl_count)]
        .into_iter()
        .filter(move |&(attr, v)| v != 0 && !has(attr))
        .map(|(attr, _)| attr)
}

/// Adds an attribute at the end; the project id goes to its fixed place behind the links (format
/// page 16 section 2).
fn insert(list: &mut Vec<Value>, v: Value) {
    let links = list.iter().position(|v| v.attr == Some(SaAttr::Links));
    match (v.attr, links) {
        (Some(SaAttr::Projid), Some(i)) => list.insert(i + 1, v),
        _ => list.push(v),
    }
}
