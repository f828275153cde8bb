//! A file system over several states of its object set.
//!
//! The newest state decides. What is lost there is looked for in blocks of dnodes that a scan found
//! for it ([`Zpl::adopt`]), then in older states, newest first. A number that is free in the newest
//! state is free: older states bring nothing back that was removed.
//!
//! The tables that the attributes need (master node, registry, layouts) hardly ever change, so any
//! state's will do. Where even the master node is lost, its parts are found by the types of
//! objects.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::{Error, Result, ResultExt, Txg};
use ondisk::nvlist::{NvList, NvValue};
use ondisk::object_type::ObjectType;
use ondisk::sa::{AttrTable, Layouts};
use ondisk::zpl::{Dirent, MASTER_NODE_OBJ, master_key};
use zdb::zpl::Attrs;

use crate::tree::{Entries, Lookup, Object, Objset};

/// Longest symbolic link that is read.
const LINK_MAX: u64 = 64 << 10;
/// Largest extended attribute that is read.
const XATTR_MAX: u64 = 1 << 20;
/// Most extended attributes of a file that are read.
const XATTRS_MAX: usize = 4096;

/// Where an object comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The newest state.
    Newest,
    /// A state as of this txg.
    Older(Txg),
    /// A block that was found by its shape.
    Found,
}

/// What is known of an object of the file system.
pub enum Found {
    /// The object.
    There(Box<Object>, Origin),
    /// There is none.
    Free,
    /// It is lost.
    Lost(Error),
}

/// A name in a folder.
#[derive(Clone, Debug)]
pub struct Item {
    /// The name.
    pub name: Vec<u8>,
    /// The object.
    pub object: u64,
    /// Whether the name is known from an older state only.
    pub older: bool,
}

/// A file system.
pub struct Zpl {
    /// States of its object set, the newest first.
    pub views: Vec<Objset>,
    /// The root folder.
    pub root: u64,
    /// Folder of files that wait to be freed.
    pub unlinked: u64,
    /// Folder of shares, which has no name.
    pub shares: u64,
    table: AttrTable,
    layouts: Layouts,
    /// Blocks of dnodes that were found for lost ones, and their newest births.
    adopted: BTreeMap<u64, (Txg, Rc<[u8]>)>,
}

/// The first of some states' ZAPs with this number that has all its entries, or else all that the
/// states have together, newer entries first.
fn entries(views: &[Objset], num: u64) -> Option<Entries> {
    let mut out: Option<Entries> = None;
    for v in views {
        let Lookup::There(obj) = v.find(num) else { continue };
        let found = obj.entries();
        let complete = found.lost.is_empty();
        match &mut out {
            None => out = Some(found),
            Some(all) => {
                for (k, v) in found.map {
                    all.map.entry(k).or_insert(v);
                }
            }
        }
        if complete {
            break;
        }
    }
    out
}

impl Zpl {
    /// Opens it; `views` are not empty. Error: there is no way to its root.
    pub fn open(views: Vec<Objset>) -> Result<Zpl> {
        let mut it = Zpl {
            views,
            root: 0,
            unlinked: 0,
            shares: 0,
            table: AttrTable::standard(),
            layouts: Layouts::default(),
            adopted: BTreeMap::new(),
        };
        let master = entries(&it.views, MASTER_NODE_OBJ).unwrap_or_default();
        it.unlinked = master.u64(master_key::DELETE_QUEUE).unwrap_or(0);
        it.shares = master.u64(master_key::SHARES).unwrap_or(0);
        let (mut registry, mut layouts) = (0, 0);
        if let Some(sa) = master.u64(master_key::SA_ATTRS).and_then(|n| entries(&it.views, n)) {
            registry = sa.u64("REGISTRY").unwrap_or(0);
            layouts = sa.u64("LAYOUTS").unwrap_or(0);
        }
        it.root = master.u64(master_key::ROOT).unwrap_or(0);
        if it.root == 0 || layouts == 0 {
            it.search(&mut registry, &mut layouts);
        }
        if let Some(e) = entries(&it.views, registry) {
            let known = e.numbers().filter_map(|(k, v)| Some((std::str::from_utf8(k).ok()?, v)));
            it.table = AttrTable::from_registry(known).unwrap_or_else(|_| AttrTable::standard());
        }
        for (key, value) in entries(&it.views, layouts).map(|e| e.map).unwrap_or_default() {
            // One bad layout is no reason to do without the others.
            let _ = it.layouts.add_entry(&key, &value);
        }
        if it.root == 0 {
            it.root = it.search_root().ok_or_else(|| Error::corrupt("there is no way to its root folder"))?;
        }
        Ok(it)
    }

    /// Finds registry and layouts by their types.
    fn search(&self, registry: &mut u64, layouts: &mut u64) {
        for v in &self.views {
            v.for_each(&mut |o| {
                if let Ok(o) = o {
                    match o.dn.otype {
                        ObjectType::SA_ATTR_REGISTRATION if *registry == 0 => *registry = o.num,
                        ObjectType::SA_ATTR_LAYOUTS if *layouts == 0 => *layouts = o.num,
                        _ => {}
                    }
                }
            });
            if *registry != 0 && *layouts != 0 {
                return;
            }
        }
    }
    /// The folder that is its own parent.
    fn search_root(&self) -> Option<u64> {
        let mut root = None;
        for v in &self.views {
            v.for_each(&mut |o| {
                if let Ok(o) = o
                    && root.is_none()
                    && o.dn.otype == ObjectType::DIRECTORY
                    && self.attrs(&o).is_ok_and(|a| a.parent == o.num)
                {
                    root = Some(o.num);
                }
            });
            if root.is_some() {
                return root;
            }
        }
        None
    }

    /// The newest state.
    pub fn newest(&self) -> &Objset {
        &self.views[0]
    }
    /// Takes a block of dnodes that a scan found for block `blk` of the newest state.
    pub fn adopt(&mut self, blk: u64, txg: Txg, block: Rc<[u8]>) {
        self.adopted.insert(blk, (txg, block));
    }

    /// Numbers of the objects in blocks that a scan found.
    pub fn adopted_numbers(&self) -> impl Iterator<Item = u64> + '_ {
        let per = self.newest().per_block();
        self.adopted.keys().flat_map(move |blk| blk * per..(blk + 1) * per)
    }

    /// Object `num`.
    pub fn find(&self, num: u64) -> Found {
        let newest = self.newest();
        let first = match newest.find(num) {
            Lookup::There(o) => return Found::There(o, Origin::Newest),
            Lookup::Free => return Found::Free,
            Lookup::Lost(e) => e,
        };
        let block = self.adopted.get(&(num / newest.per_block()));
        let adopted = block.map(|(txg, b)| (*txg, newest.adopt(num, b)));
        for view in &self.views[1..] {
            let known = view.find(num);
            match &adopted {
                // Younger than all of this state.
                Some((txg, Lookup::There(o))) if *txg > view.txg => {
                    return Found::There(o.clone(), Origin::Found);
                }
                _ => {}
            }
            match known {
                Lookup::There(o) => return Found::There(o, Origin::Older(view.txg)),
                Lookup::Free => return Found::Free,
                Lookup::Lost(_) => {}
            }
        }
        match adopted {
            Some((_, Lookup::There(o))) => Found::There(o, Origin::Found),
            Some((_, Lookup::Free)) => Found::Free,
            _ => Found::Lost(first),
        }
    }
    /// The object in older states that differ from `newest`, newest first.
    pub fn older(&self, newest: &Object) -> Vec<(Object, Txg)> {
        let mut out: Vec<(Object, Txg)> = Vec::new();
        for view in &self.views[1..] {
            if let Lookup::There(o) = view.find(newest.num)
                && o.dn.otype == newest.dn.otype
                && o.dn.blkptr != newest.dn.blkptr
                && out.iter().all(|(other, _)| other.dn.blkptr != o.dn.blkptr)
            {
                out.push((*o, view.txg));
            }
        }
        out
    }

    /// The attributes of an object.
    pub fn attrs(&self, obj: &Object) -> Result<Attrs> {
        let all = || match obj.dn.bonustype {
            ObjectType::ZNODE => Attrs::of_znode(obj.dn.bonus()),
            ObjectType::SA => {
                let mut a = Attrs::default();
                a.take(obj.dn.bonus(), &self.table, &self.layouts)?;
                if let Some(spill) = obj.spill()? {
                    a.take(&spill, &self.table, &self.layouts)?;
                }
                Ok(a)
            }
            t => Err(Error::corrupt(format!("bonus of type {t}"))),
        };
        all().at(|| format!("attributes of object {}", obj.num))
    }
    /// The attributes as far as the bonus has them: the spill block holds what is least important.
    pub fn attrs_without_spill(&self, obj: &Object) -> Result<Attrs> {
        let mut a = Attrs::default();
        a.take(obj.dn.bonus(), &self.table, &self.layouts)?;
        Ok(a)
    }

    /// The names in a folder, in order, and why some may be missing. Names that are lost in the
    /// newest state are taken from older ones, if the object is still there and in this folder.
    pub fn list(&self, dir: &Object) -> (Vec<Item>, Vec<String>) {
        let found = dir.entries();
        let item = |name: &[u8], v: u64, older| Item { name: name.to_vec(), object: Dirent::unpack(v).object, older };
        let mut items: BTreeMap<Vec<u8>, Item> = BTreeMap::new();
        for (name, v) in found.numbers() {
            items.insert(name.to_vec(), item(name, v, false));
        }
        if !found.lost.is_empty() {
            let known: BTreeSet<u64> = items.values().map(|i| i.object).collect();
            for (older, _) in self.older(dir) {
                let all = older.entries();
                for (name, v) in all.numbers() {
                    let new = item(name, v, true);
                    if items.contains_key(name) || known.contains(&new.object) {
                        continue;
                    }
                    let still_there = match self.find(new.object) {
                        Found::There(o, _) => self.attrs(&o).is_ok_and(|a| a.parent == dir.num),
                        Found::Free => false,
                        Found::Lost(_) => true,
                    };
                    if still_there {
                        items.insert(name.to_vec(), new);
                    }
                }
            }
        }
        (items.into_values().collect(), found.lost)
    }

    /// The target of a symbolic link.
    pub fn target(&self, obj: &Object, a: &Attrs) -> Result<Vec<u8>> {
        match &a.symlink {
            Some(t) => Ok(t.clone()),
            None if a.size > LINK_MAX => Err(Error::corrupt(format!("symbolic link of {} bytes", a.size))),
            None => obj.read(a.size as usize),
        }
    }

    /// The extended attributes that are left, and why some may be missing.
    pub fn xattrs(&self, a: &Attrs) -> (BTreeMap<Vec<u8>, Vec<u8>>, Vec<String>) {
        let (mut out, mut lost) = (BTreeMap::new(), Vec::new());
        match a.dxattr.as_deref().map(NvList::decode) {
            Some(Ok(list)) => {
                for (name, v) in list.iter() {
                    if let NvValue::ByteArray(v) | NvValue::Uint8Array(v) = v {
                        out.insert(name.as_bytes().to_vec(), v.clone());
                    }
                }
            }
            Some(Err(e)) => lost.push(format!("list of extended attributes: {e}")),
            None => {}
        }
        if a.xattr == 0 {
            return (out, lost);
        }
        let Found::There(dir, _) = self.find(a.xattr) else {
            lost.push("the folder of extended attributes is lost".into());
            return (out, lost);
        };
        let found = dir.entries();
        lost.extend(found.lost.iter().cloned());
        for (name, v) in found.numbers().take(XATTRS_MAX) {
            let value = || -> Result<Vec<u8>> {
                let Found::There(o, _) = self.find(Dirent::unpack(v).object) else {
                    return Err(Error::corrupt("it is lost"));
                };
                let size = self.attrs(&o)?.size;
                if size > XATTR_MAX {
                    return Err(Error::corrupt(format!("it has {size} bytes")));
                }
                o.read(size as usize)
            };
            match value() {
                Ok(v) => {
                    out.entry(name.to_vec()).or_insert(v);
                }
                Err(e) => lost.push(format!("extended attribute {}: {e}", String::from_utf8_lossy(name))),
            }
        }
        (out, lost)
    }
}
