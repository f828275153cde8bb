//! File systems: the master node, and the attributes of every object, in all versions of the ZPL.

use std::collections::BTreeMap;

use base::{Error, Result, ResultExt};
use ondisk::bytes::le64;
use ondisk::nvlist::{NvList, NvValue};
use ondisk::object_type::ObjectType;
use ondisk::sa::{Attr, AttrTable, Field, Layouts, fields, is_swapped, swap_buffer};
use ondisk::zap::ZapValue;
use ondisk::zpl::ZnodePhys;

use crate::objset::{Object, Objset};
use crate::zap;

/// Object of the master node.
pub const MASTER_NODE: u64 = 1;
/// Longest symbolic link or external ACL that is read.
const MAX_SMALL: u64 = 64 << 10;
/// Largest xattr value that is read.
const MAX_XATTR: u64 = 1 << 20;

/// A file system.
pub struct FileSystem {
    /// Its object set.
    pub os: Objset,
    /// The master node.
    pub master: BTreeMap<String, ZapValue>,
    /// ZPL version.
    pub version: u64,
    /// The root directory.
    pub root: u64,
    /// The attributes' numbers.
    pub table: AttrTable,
    /// The layouts.
    pub layouts: Layouts,
}

/// Attributes of a file. Those that are not there are 0 or empty.
#[derive(Clone, Debug, Default)]
pub struct Attrs {
    /// Mode with type.
    pub mode: u64,
    /// Size; of a directory its entries + 2.
    pub size: u64,
    /// Txg of creation.
    pub generation: u64,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Parent directory.
    pub parent: u64,
    /// Links.
    pub links: u64,
    /// Flags.
    pub flags: u64,
    /// Project.
    pub projid: u64,
    /// Device number.
    pub rdev: u64,
    /// Directory of xattrs, or 0.
    pub xattr: u64,
    /// Seconds and nanoseconds: access, modification, change, creation.
    pub times: [[u64; 2]; 4],
    /// Target of a symbolic link, as far as it is an attribute.
    pub symlink: Option<Vec<u8>>,
    /// Xattrs as a packed list.
    pub dxattr: Option<Vec<u8>>,
    /// Number of ACEs.
    pub dacl_count: Option<u64>,
    /// ACEs.
    pub dacl: Option<Vec<u8>>,
    /// External ACL object of old znodes, or 0.
    pub acl_object: u64,
    /// Fields of bonus and spill, with their layout numbers; `None` of old znodes.
    pub layout: Option<(u16, Option<u16>)>,
}

/// Linux's numbers in a stored device number.
pub fn rdev_major_minor(rdev: u64) -> (u64, u64) {
    (rdev >> 20 & 0xfff, rdev & 0xf_ffff)
}

/// A stored time as nanoseconds since 1970. Beyond 64 bits (after 2262) it wraps, as it does in
/// programs that ask Linux for nanoseconds.
pub fn time_ns(t: [u64; 2]) -> i64 {
    (t[0] as i64).wrapping_mul(1_000_000_000).wrapping_add(t[1] as i64)
}

impl FileSystem {
    /// Reads the data shared by all files of a file system.
    pub fn open(os: &Objset) -> Result<FileSystem> {
        let master = zap::map(&os.object(MASTER_NODE)?).at(|| format!("{}: master node", os.name))?;
        let number = |k: &str| master.get(k).and_then(ZapValue::as_u64);
        let need =
            |k: &str| number(k).ok_or_else(|| Error::corrupt(format!("{}: the master node has no entry {k}", os.name)));
        let (version, root) = (need("VERSION")?, need("ROOT")?);
        let mut table = AttrTable::standard();
        let mut layouts = Layouts::default();
        if let Some(sa) = number("SA_ATTRS") {
            let sa = zap::map_u64(&os.object(sa)?)?;
            if let Some(&r) = sa.get("REGISTRY") {
                let entries = zap::map_u64(&os.object(r)?)?;
                table = AttrTable::from_registry(entries.iter().map(|(n, v)| (n.as_str(), *v)))
                    .at(|| format!("{}: attribute registry", os.name))?;
            }
            if let Some(&l) = sa.get("LAYOUTS") {
                for e in zap::entries(&os.object(l)?)? {
                    layouts.add_entry(&e.key, &e.value).at(|| os.name.to_string())?;
                }
            }
        }
        Ok(FileSystem { os: os.clone(), master, version, root, table, layouts })
    }
    /// A number in the master node.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.master.get(key).and_then(ZapValue::as_u64)
    }

    /// The attributes of an object, which has a bonus of system attributes or an old znode.
    pub fn attrs(&self, obj: &Object) -> Result<Attrs> {
        self.attrs_inner(obj).at(|| format!("{}: attributes", obj.place()))
    }
    fn attrs_inner(&self, obj: &Object) -> Result<Attrs> {
        let bonus = obj.dn.bonus();
        match obj.dn.bonustype {
            ObjectType::ZNODE => Attrs::of_znode(bonus),
            ObjectType::SA => {
                let mut a = Attrs::default();
                let bonus_layout = a.take(bonus, &self.table, &self.layouts)?;
                let mut spill_layout = None;
                if let Some(bp) = obj.dn.spill.filter(|bp| !bp.is_hole()) {
                    let block = obj.io.read(&bp).at(|| "spill block")?;
                    spill_layout = Some(a.take(&block, &self.table, &self.layouts)?);
                }
                a.layout = Some((bonus_layout, spill_layout));
                Ok(a)
            }
            t => Err(Error::corrupt(format!("bonus of type {t}"))),
        }
    }
    /// The target of a symbolic link.
    pub fn target(&self, obj: &Object, a: &Attrs) -> Result<Vec<u8>> {
        match &a.symlink {
            Some(t) => Ok(t.clone()),
            None if a.size > MAX_SMALL => Err(Error::corrupt(format!("symbolic link of {} bytes", a.size))),
            None => obj.read(0, a.size as usize),
        }
    }
    /// All extended attributes, from the list in the attributes and from the directory.
    pub fn xattrs(&self, a: &Attrs) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let mut out = BTreeMap::new();
        if let Some(packed) = &a.dxattr {
            for (name, v) in NvList::decode(packed).at(|| "xattr list")?.iter() {
                if let NvValue::ByteArray(v) | NvValue::Uint8Array(v) = v {
                    out.insert(name.as_bytes().to_vec(), v.clone());
                }
            }
        }
        if a.xattr != 0 {
            for e in zap::entries(&self.os.object(a.xattr)?)? {
                let v = e.u64().ok_or_else(|| Error::corrupt("xattr entry is not a number"))?;
                let obj = self.os.object(ondisk::zpl::Dirent::unpack(v).object)?;
                let size = self.attrs(&obj)?.size;
                if size > MAX_XATTR {
                    return Err(Error::corrupt(format!("xattr value of {size} bytes")));
                }
                out.entry(e.key).or_insert(obj.read(0, size as usize)?);
            }
        }
        Ok(out)
    }
    /// The object at `path` below the root.
    pub fn lookup(&self, path: &str) -> Result<Object> {
        let mut at = self.os.object(self.root)?;
        for name in path.split('/').filter(|n| !n.is_empty() && *n != ".") {
            let v = zap::lookup(&at, name.as_bytes())?.and_then(|v| v.as_u64());
            let v = v.ok_or_else(|| Error::not_found(format!("{}: there is no {path}", self.os.name)))?;
            at = self.os.object(ondisk::zpl::Dirent::unpack(v).object)?;
        }
        Ok(at)
    }
    /// The path of an object by its parents, as far as they lead; for people.
    pub fn path_of(&self, num: u64) -> Option<String> {
        let mut parts = Vec::new();
        let mut at = num;
        for _ in 0..1024 {
            if at == self.root {
                parts.push(String::new());
                parts.reverse();
                let p = parts.join("/");
                return Some(if p.is_empty() { "/".into() } else { p });
            }
            let obj = self.os.object(at).ok()?;
            let a = self.attrs(&obj).ok()?;
            let parent = self.os.object(a.parent).ok()?;
            if a.flags & ondisk::zpl::pflags::XATTR != 0 && !parent.dn.otype.is_zap() {
                parts.push("<xattrdir>".into());
            } else {
                let entries = zap::entries(&parent).ok()?;
                let named = |v: u64| ondisk::zpl::Dirent::unpack(v).object == at;
                parts.push(entries.iter().find(|e| e.u64().is_some_and(named))?.name());
            }
            at = a.parent;
        }
        None
    }
}

impl Attrs {
    /// Adds the system attributes in a buffer (bonus or spill block); the layout's number comes
    /// back.
    pub fn take(&mut self, buf: &[u8], table: &AttrTable, layouts: &Layouts) -> Result<u16> {
        let a = self;
        let mut swapped = Vec::new();
        let buf = if is_swapped(buf) {
            swapped.extend_from_slice(buf);
            swap_buffer(&mut swapped, table, layouts)?;
            &swapped[..]
        } else {
            buf
        };
        for Field { num, offset, len } in fields(buf, table, layouts)? {
            let v = &buf[offset..offset + len];
            let word = |i: usize| v.get(8 * i..8 * i + 8).map_or(0, |b| le64(b, 0));
            match table.attr(num) {
                Some(Attr::Atime) => a.times[0] = [word(0), word(1)],
                Some(Attr::Mtime) => a.times[1] = [word(0), word(1)],
                Some(Attr::Ctime) => a.times[2] = [word(0), word(1)],
                Some(Attr::Crtime) => a.times[3] = [word(0), word(1)],
                Some(Attr::Gen) => a.generation = word(0),
                Some(Attr::Mode) => a.mode = word(0),
                Some(Attr::Size) => a.size = word(0),
                Some(Attr::Parent) => a.parent = word(0),
                Some(Attr::Links) => a.links = word(0),
                Some(Attr::Xattr) => a.xattr = word(0),
                Some(Attr::Rdev) => a.rdev = word(0),
                Some(Attr::Flags) => a.flags = word(0),
                Some(Attr::Uid) => a.uid = word(0),
                Some(Attr::Gid) => a.gid = word(0),
                Some(Attr::Projid) => a.projid = word(0),
                Some(Attr::Symlink) => a.symlink = Some(v.to_vec()),
                Some(Attr::Dxattr) => a.dxattr = Some(v.to_vec()),
                Some(Attr::DaclCount) => a.dacl_count = Some(word(0)),
                Some(Attr::DaclAces) => a.dacl = Some(v.to_vec()),
                Some(Attr::ZnodeAcl) => a.acl_object = word(0),
                Some(Attr::Pad | Attr::Scanstamp) | None => {}
            }
        }
        Ok(ondisk::sa::parse_header(buf)?.map_or(0, |(layout, _)| layout))
    }

    /// The attributes in the bonus of a file from before ZPL version 5.
    pub fn of_znode(bonus: &[u8]) -> Result<Attrs> {
        let z = ZnodePhys::parse(bonus)?;
        Ok(Attrs {
            mode: z.mode,
            size: z.size,
            generation: z.generation,
            uid: z.uid,
            gid: z.gid,
            parent: z.parent,
            links: z.links,
            flags: z.flags,
            projid: 0,
            rdev: z.rdev,
            xattr: z.xattr,
            times: [z.atime, z.mtime, z.ctime, z.crtime],
            symlink: z.symlink_target().map(<[u8]>::to_vec),
            acl_object: z.acl.get(..8).map_or(0, |b| le64(b, 0)),
            ..Attrs::default()
        })
    }
}
