//! System attributes: a file's mode, size, owner, times and the like, packed in the bonus and, when
//! that is too small, a spill block (format pages 08 sections 2 and 3, 16 section 1).
//!
//! Each dataset has a *registry* that gives attribute names their numbers and lengths, and
//! *layouts*, numbered sequences of attributes. A buffer is a header with a layout number and the
//! lengths of the attributes that have no fixed one, then the values in the layout's order, each
//! starting on 8 bytes.
//!
//! To read: [`AttrTable`] from the registry ZAP, [`Layouts`] from the layouts ZAP, then [`fields`]
//! for where each attribute is. To change the set or a length: list all attributes in order,
//! [`plan`] computes how many stay in the bonus, [`Layouts::find`] or [`Layouts::next_number`] give
//! each side its layout, [`build`] makes each side's bytes. Values of fixed length are overwritten
//! in place.

use std::collections::BTreeMap;

use base::{Error, ErrorKind, Result};

use crate::bytes::{le16, le32, le64, put_le16, put_le32};
use crate::byteswap::{swap_aces, swap_ints};
use crate::zap::ZapValue;
use crate::zpl::pflags;

/// First word of a buffer.
pub const SA_MAGIC: u32 = 0x002F_505A;
/// Largest content of a spill block in bytes.
pub const SPILL_MAX: usize = 128 << 10;
/// First layout number that the layouts ZAP can hold.
pub const FIRST_LAYOUT: u16 = 2;

/// The standard attributes of file systems. Discriminants are the standard numbers; a dataset's own
/// are in its registry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u16)]
pub enum Attr {
    /// Access time.
    Atime = 0,
    /// Modification time.
    Mtime,
    /// Change time.
    Ctime,
    /// Creation time.
    Crtime,
    /// Txg of creation.
    Gen,
    /// Mode with type.
    Mode,
    /// Size in bytes; entries + 2 of a directory.
    Size,
    /// Parent directory.
    Parent,
    /// Links.
    Links,
    /// Xattr directory.
    Xattr,
    /// Device number.
    Rdev,
    /// Flags, see [`pflags`].
    Flags,
    /// Owner.
    Uid,
    /// Group.
    Gid,
    /// Padding of old znodes.
    Pad,
    /// ACL of old znodes.
    ZnodeAcl,
    /// Number of ACEs.
    DaclCount,
    /// Target of a symbolic link.
    Symlink,
    /// Virus scan stamp.
    Scanstamp,
    /// ACEs.
    DaclAces,
    /// Xattrs as a packed name-value list.
    Dxattr,
    /// Project id.
    Projid,
}

/// How values of an attribute are converted between byte orders.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum AttrSwap {
    /// Array of u64.
    U64 = 0,
    /// Array of u32.
    U32 = 1,
    /// Array of u16.
    U16 = 2,
    /// Bytes.
    U8 = 3,
    /// ACEs.
    Acl = 4,
}

impl AttrSwap {
    fn from_u8(v: u8) -> Option<AttrSwap> {
        [AttrSwap::U64, AttrSwap::U32, AttrSwap::U16, AttrSwap::U8, AttrSwap::Acl].into_iter().find(|&s| s as u8 == v)
    }
}

/// The standard attributes by number: name, length (0 varies), conversion.
pub const STANDARD: [(&str, u16, AttrSwap); 22] = [
    ("ZPL_ATIME", 16, AttrSwap::U64),
    ("ZPL_MTIME", 16, AttrSwap::U64),
    ("ZPL_CTIME", 16, AttrSwap::U64),
    ("ZPL_CRTIME", 16, AttrSwap::U64),
    ("ZPL_GEN", 8, AttrSwap::U64),
    ("ZPL_MODE", 8, AttrSwap::U64),
    ("ZPL_SIZE", 8, AttrSwap::U64),
    ("ZPL_PARENT", 8, AttrSwap::U64),
    ("ZPL_LINKS", 8, AttrSwap::U64),
    ("ZPL_XATTR", 8, AttrSwap::U64),
    ("ZPL_RDEV", 8, AttrSwap::U64),
    ("ZPL_FLAGS", 8, AttrSwap::U64),
    ("ZPL_UID", 8, AttrSwap::U64),
    ("ZPL_GID", 8, AttrSwap::U64),
    ("ZPL_PAD", 32, AttrSwap::U64),
    ("ZPL_ZNODE_ACL", 88, AttrSwap::U8),
    ("ZPL_DACL_COUNT", 8, AttrSwap::U64),
    ("ZPL_SYMLINK", 0, AttrSwap::U8),
    ("ZPL_SCANSTAMP", 32, AttrSwap::U8),
    ("ZPL_DACL_ACES", 0, AttrSwap::Acl),
    ("ZPL_DXATTR", 0, AttrSwap::U8),
    ("ZPL_PROJID", 8, AttrSwap::U64),
];

impl Attr {
    /// All of them in order of their standard numbers.
    pub const ALL: [Attr; 22] = {
        use Attr::*;
        [
            Atime, Mtime, Ctime, Crtime, Gen, Mode, Size, Parent, Links, Xattr, Rdev, Flags, Uid, Gid, Pad, ZnodeAcl,
            DaclCount, Symlink, Scanstamp, DaclAces, Dxattr, Projid,
        ]
    };
    /// The name in the registry.
    pub fn name(self) -> &'static str {
        STANDARD[self as usize].0
    }
}

/// A registry entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AttrInfo {
    /// Name.
    pub name: String,
    /// Length in bytes, 0 when it varies.
    pub len: u16,
    /// Conversion.
    pub swap: AttrSwap,
}

/// The stored value of a registry entry.
pub fn pack_registry(num: u16, len: u16, swap: AttrSwap) -> u64 {
    u64::from(len) << 24 | u64::from(swap as u8) << 16 | u64::from(num)
}

/// Number, length and conversion from the stored value of a registry entry.
pub fn unpack_registry(v: u64) -> Result<(u16, u16, AttrSwap)> {
    match AttrSwap::from_u8((v >> 16) as u8) {
        Some(swap) if v >> 40 == 0 => Ok((v as u16, (v >> 24) as u16, swap)),
        _ => Err(Error::corrupt(format!("system attribute registry value {v:#x}"))),
    }
}

/// A dataset's attributes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AttrTable {
    attrs: Vec<AttrInfo>,
    known: [Option<u16>; 22],
}

impl AttrTable {
    /// The table of a new dataset.
    pub fn standard() -> AttrTable {
        let attrs = STANDARD.iter().map(|&(name, len, swap)| AttrInfo { name: name.into(), len, swap }).collect();
        AttrTable { attrs, known: std::array::from_fn(|i| Some(i as u16)) }
    }
    /// From the entries of the registry ZAP. Numbers must be dense from 0 and the first 16 the
    /// standard ones; a registry that does not exist yet (no entries) gives the standard table.
    pub fn from_registry<'a>(entries: impl IntoIterator<Item = (&'a str, u64)>) -> Result<AttrTable> {
        let mut map: BTreeMap<u16, AttrInfo> = BTreeMap::new();
        for (name, v) in entries {
            let (num, len, swap) = unpack_registry(v)?;
            let info = AttrInfo { name: name.to_owned(), len, swap };
            if let Some(old) = map.insert(num, info) {
                return Err(Error::corrupt(format!(
                    "system attributes {name} and {} both have number {num}",
                    old.name
                )));
            }
        }
        if map.is_empty() {
            return Ok(AttrTable::standard());
        }
        if map.keys().enumerate().any(|(i, &n)| i != usize::from(n)) {
            return Err(Error::corrupt("system attribute numbers have gaps"));
        }
        let attrs: Vec<AttrInfo> = map.into_values().collect();
        let mut known = [None; 22];
        for (i, a) in attrs.iter().enumerate() {
            if let Some(k) = STANDARD.iter().position(|s| s.0 == a.name) {
                if a.len != STANDARD[k].1 {
                    return Err(Error::corrupt(format!("system attribute {} has length {}", a.name, a.len)));
                }
                known[k] = Some(i as u16);
            }
        }
        for (i, s) in STANDARD.iter().enumerate().take(16) {
            if attrs.get(i).is_some_and(|a| a.name != s.0) {
                return Err(Error::corrupt(format!("system attribute {i} is {} instead of {}", attrs[i].name, s.0)));
            }
        }
        Ok(AttrTable { attrs, known })
    }
    /// Number of an attribute here, `None` when the dataset does not have it yet.
    pub fn num(&self, attr: Attr) -> Option<u16> {
        self.known[attr as usize]
    }
    /// The attribute of a number, if it is a standard one.
    pub fn attr(&self, num: u16) -> Option<Attr> {
        Attr::ALL.into_iter().find(|&a| self.num(a) == Some(num))
    }
    /// The registry entry of a number.
    pub fn info(&self, num: u16) -> Option<&AttrInfo> {
        self.attrs.get(usize::from(num))
    }
    /// All attributes in order of number.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &AttrInfo)> {
        self.attrs.iter().enumerate().map(|(i, a)| (i as u16, a))
    }
    /// Adds the standard attributes that are missing; their names and registry values, to be
    /// stored.
    pub fn add_missing(&mut self) -> Vec<(&'static str, u64)> {
        let mut added = Vec::new();
        for (k, &(name, len, swap)) in STANDARD.iter().enumerate() {
            if self.known[k].is_none() {
                let num = self.attrs.len() as u16;
                self.attrs.push(AttrInfo { name: name.into(), len, swap });
                self.known[k] = Some(num);
                added.push((name, pack_registry(num, len, swap)));
            }
        }
        added
    }
}

/// A dataset's layouts: attribute numbers in order, by layout number.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Layouts {
    map: BTreeMap<u16, Vec<u16>>,
}

impl Layouts {
    /// Adds an entry of the layouts ZAP: a decimal number and an array of u16.
    pub fn add_entry(&mut self, key: &[u8], value: &ZapValue) -> Result<()> {
        let num = std::str::from_utf8(key).ok().and_then(|s| s.parse::<u16>().ok()).filter(|n| *n < 1024);
        match num {
            Some(n) if value.int_size == 2 => {
                self.map.insert(n, value.ints().map(|v| v as u16).collect());
                Ok(())
            }
            _ => Err(Error::corrupt(format!("system attribute layout {:?}", String::from_utf8_lossy(key)))),
        }
    }
    /// The attributes of a layout.
    pub fn get(&self, num: u16) -> Option<&[u16]> {
        self.map.get(&num).map(Vec::as_slice)
    }
    /// The layout with exactly this sequence.
    pub fn find(&self, attrs: &[u16]) -> Option<u16> {
        self.map.iter().find(|(n, a)| **n >= FIRST_LAYOUT && a.as_slice() == attrs).map(|(n, _)| *n)
    }
    /// The number for a layout that is not there yet; an error when the header's ten bits can hold
    /// no more.
    pub fn next_number(&self) -> Result<u16> {
        let n = self.map.last_key_value().map_or(FIRST_LAYOUT, |(n, _)| (*n + 1).max(FIRST_LAYOUT));
        if n < 1024 {
            Ok(n)
        } else {
            Err(Error::new(ErrorKind::NoSpace, "no system attribute layout numbers are left"))
        }
    }
    /// Adds a layout; its number, its key and value in the layouts ZAP.
    pub fn add(&mut self, attrs: &[u16]) -> Result<(u16, String, ZapValue)> {
        let n = self.next_number()?;
        self.map.insert(n, attrs.to_vec());
        Ok((n, n.to_string(), ZapValue::from_u16s(attrs)))
    }
    /// All layouts in order of number.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &[u16])> {
        self.map.iter().map(|(n, a)| (*n, a.as_slice()))
    }
}

/// Where an attribute's value is in a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// Attribute number.
    pub num: u16,
    /// First byte.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

fn align8(v: usize) -> usize {
    v.next_multiple_of(8)
}

/// Bytes of the header of a buffer with `nvars` attributes of varying length.
pub fn header_size(nvars: usize) -> usize {
    align8(6 + 2 * nvars.max(1))
}

/// The layout number and header size of a buffer; `None` when it holds no attributes (an object
/// just made).
pub fn parse_header(b: &[u8]) -> Result<Option<(u16, usize)>> {
    if b.len() < 8 || le32(b, 0) == 0 {
        return Ok(None);
    }
    if le32(b, 0) != SA_MAGIC {
        return Err(Error::corrupt(format!("system attributes begin with {:#x}", le32(b, 0))));
    }
    let word = le16(b, 4);
    let (layout, size) = (word & 0x3ff, usize::from(word >> 10) * 8);
    if size < 8 || size > b.len() {
        return Err(Error::corrupt(format!("system attributes with a header of {size} bytes in {}", b.len())));
    }
    Ok(Some((layout, size)))
}

/// Where the attributes of a bonus or spill buffer are, in the layout's order.
pub fn fields(b: &[u8], table: &AttrTable, layouts: &Layouts) -> Result<Vec<Field>> {
    let Some((number, header)) = parse_header(b)? else {
        return Ok(Vec::new());
    };
    let layout = layouts
        .get(number)
        .ok_or_else(|| Error::corrupt(format!("system attribute layout {number} does not exist")))?;
    let mut out = Vec::with_capacity(layout.len());
    let (mut vars, mut at) = (0, header);
    for &num in layout {
        let info = table
            .info(num)
            .ok_or_else(|| Error::corrupt(format!("system attribute {num} of layout {number} is not registered")))?;
        let len = if info.len != 0 {
            usize::from(info.len)
        } else {
            let off = 6 + 2 * vars;
            vars += 1;
            if off + 2 > header {
                return Err(Error::corrupt(format!(
                    "system attribute header of {header} bytes is too short for layout {number}"
                )));
            }
            usize::from(le16(b, off))
        };
        at = align8(at);
        if at + len > b.len() {
            return Err(Error::corrupt(format!(
                "system attribute {} ends at byte {} of {}",
                info.name,
                at + len,
                b.len()
            )));
        }
        out.push(Field { num, offset: at, len });
        at += len;
    }
    Ok(out)
}

/// How a list of attributes is divided (format page 16 section 1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// How many attributes, from the first, stay in the bonus.
    pub in_bonus: usize,
    /// The dnode's bonuslen.
    pub bonuslen: usize,
    /// Bytes of header and content of the spill buffer, 0 without one.
    pub spill_len: usize,
}

/// Divides attributes, given in order as (length, whether it varies), between a bonus of `capacity`
/// bytes without spill pointer and a spill block. An error of kind `TooBig` when even that is too
/// small.
pub fn plan(attrs: &[(usize, bool)], capacity: usize) -> Result<Plan> {
    let threshold = capacity - 128;
    let (mut total, mut header, mut vars) = (0usize, 8usize, 0);
    let (mut spill_at, mut must_spill) = (None, false);
    for (i, &(len, varies)) in attrs.iter().enumerate() {
        total = align8(total) + len;
        if varies {
            vars += 1;
            if vars > 1 {
                header += 2;
            }
        }
        if total + align8(header) > threshold && spill_at.is_none() {
            spill_at = Some(i);
        }
        must_spill |= total + align8(header) > capacity;
    }
    match spill_at {
        Some(at) if must_spill => {
            let (mut total, mut vars) = (0, 0);
            for &(len, varies) in &attrs[at..] {
                total = align8(total) + len;
                vars += usize::from(varies);
            }
            let spill_len = header_size(vars) + total;
            if spill_len > SPILL_MAX || attrs[at..].iter().any(|&(len, varies)| varies && len > usize::from(u16::MAX)) {
                return Err(Error::new(
                    ErrorKind::TooBig,
                    format!("system attributes of {spill_len} bytes do not fit a spill block"),
                ));
            }
            Ok(Plan { in_bonus: at, bonuslen: threshold, spill_len })
        }
        _ => Ok(Plan { in_bonus: attrs.len(), bonuslen: align8(header) + total, spill_len: 0 }),
    }
}

/// The bytes of one side: header, then the values in order, each with whether its length varies.
pub fn build(layout: u16, attrs: &[(&[u8], bool)]) -> Vec<u8> {
    assert!(layout < 1024);
    let nvars = attrs.iter().filter(|a| a.1).count();
    let header = header_size(nvars);
    let mut b = vec![0u8; header];
    put_le32(&mut b, 0, SA_MAGIC);
    put_le16(&mut b, 4, layout | ((header / 8) as u16) << 10);
    for (i, (v, _)) in attrs.iter().filter(|a| a.1).enumerate() {
        assert!(v.len() <= usize::from(u16::MAX), "attribute of {} bytes", v.len());
        put_le16(&mut b, 6 + 2 * i, v.len() as u16);
    }
    for (v, _) in attrs {
        b.resize(align8(b.len()), 0);
        b.extend_from_slice(v);
    }
    b
}

/// Whether a buffer was written in the other byte order.
pub fn is_swapped(b: &[u8]) -> bool {
    b.len() >= 8 && le32(b, 0) == SA_MAGIC.swap_bytes()
}

/// Converts a buffer for which [`is_swapped`] holds to this byte order, in place.
pub fn swap_buffer(b: &mut [u8], table: &AttrTable, layouts: &Layouts) -> Result<()> {
    if b.len() < 8 {
        return Err(Error::corrupt("system attributes of less than 8 bytes"));
    }
    b[0..4].reverse();
    b[4..6].reverse();
    let header = usize::from(le16(b, 4) >> 10) * 8;
    if header >= 8 && header <= b.len() {
        swap_ints::<2>(&mut b[6..header]);
    }
    for f in fields(b, table, layouts)? {
        let v = &mut b[f.offset..f.offset + f.len];
        match table.info(f.num).map(|i| i.swap) {
            Some(AttrSwap::U64) => swap_ints::<8>(v),
            Some(AttrSwap::U32) => swap_ints::<4>(v),
            Some(AttrSwap::U16) => swap_ints::<2>(v),
            Some(AttrSwap::Acl) => swap_aces(v),
            Some(AttrSwap::U8) | None => {}
        }
    }
    Ok(())
}

/// The owner of an object, for space accounting.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OwnerIds {
    /// User.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Project; 0 without one.
    pub projid: u64,
}

/// The owner from a bonus buffer, by the fixed places of the first attributes (format page 08
/// section 3). A buffer without attributes belongs to id 0.
pub fn owner_ids(b: &[u8]) -> Result<OwnerIds> {
    let Some((_, header)) = parse_header(b)? else {
        return Ok(OwnerIds::default());
    };
    let word = |off: usize| {
        crate::bytes::try_le64(b, header + off).ok_or_else(|| Error::corrupt("system attributes without an owner"))
    };
    let projid = if word(48)? & pflags::PROJID != 0 { word(128)? } else { 0 };
    Ok(OwnerIds { uid: word(24)?, gid: word(32)?, projid })
}

/// The owner from the bonus of a znode.
pub fn znode_owner_ids(b: &[u8]) -> Result<OwnerIds> {
    if b.len() < crate::zpl::ZNODE_SIZE {
        return Err(Error::corrupt(format!("znode of {} bytes", b.len())));
    }
    Ok(OwnerIds { uid: le64(b, 128), gid: le64(b, 136), projid: 0 })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    const BASE: [u16; 14] = [5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 16, 19];

    fn lens(attrs: &[u16], vars: &[usize]) -> Vec<(usize, bool)> {
        let mut v = vars.iter();
        attrs
            .iter()
            .map(|&a| match STANDARD[usize::from(a)].1 {
                0 => (*v.next().unwrap(), true),
                n => (usize::from(n), false),
            })
            .collect()
    }

    #[test]
    fn registry_values_of_real_pools() {
        assert_eq!(pack_registry(0, 16, AttrSwap::U64), 0x1000_0000);
        assert_eq!(pack_registry(15, 88, AttrSwap::U8), 0x5803_000f);
        assert_eq!(pack_registry(17, 0, AttrSwap::U8), 0x0003_0011);
        assert_eq!(pack_registry(19, 0, AttrSwap::Acl), 0x0004_0013);
        assert_eq!(pack_registry(21, 8, AttrSwap::U64), 0x0800_0015);
        assert_eq!(Attr::Projid.name(), "ZPL_PROJID");
        assert_eq!(Attr::ALL.map(|a| a as usize), std::array::from_fn(|i| i));
    }

    /// The examples of format page 08 section 3.
    #[test]
    fn plans_of_real_objects() {
        let fit = |bonuslen| Plan { in_bonus: usize::MAX, bonuslen, spill_len: 0 };
        let got = |attrs: &[u16], vars: &[usize]| {
            let p = plan(&lens(attrs, vars), 320).unwrap();
            if p.in_bonus == attrs.len() { Plan { in_bonus: usize::MAX, ..p } } else { p }
        };
        assert_eq!(got(&BASE, &[24]), fit(168));
        let mut projid = BASE[..12].to_vec();
        projid.extend([21, 16, 19]);
        assert_eq!(got(&projid, &[24]), fit(176));
        let mut link = BASE.to_vec();
        link.push(17);
        assert_eq!(got(&link, &[24, 6]), fit(182));
        assert_eq!(got(&link, &[24, 100]), fit(276));
        assert_eq!(got(&link, &[24, 599]), Plan { in_bonus: 14, bonuslen: 192, spill_len: 8 + 599 });
        projid.push(20);
        assert_eq!(got(&projid, &[24, 200]), Plan { in_bonus: 15, bonuslen: 192, spill_len: 208 });
        assert!(plan(&lens(&projid, &[24, 140_000]), 320).is_err());
        assert_eq!(
            (header_size(0), header_size(1), header_size(2), header_size(5), header_size(6)),
            (8, 8, 16, 16, 24)
        );
    }

    #[test]
    fn swapped_buffer() {
        let (table, mut layouts) = (AttrTable::standard(), Layouts::default());
        let (n, ..) = layouts.add(&[5, 19, 17]).unwrap();
        let aces = crate::zpl::aces_to_bytes(&crate::zpl::trivial_acl(0o755, false));
        let mode = 0o100644u64.to_le_bytes();
        let native = build(n, &[(&mode, false), (&aces, true), (b"target", true)]);
        let mut b = native.clone();
        b[0..4].reverse();
        b[4..6].reverse();
        swap_ints::<2>(&mut b[6..16]);
        b[16..24].reverse();
        for ace in b[24..48].chunks_exact_mut(8) {
            swap_ints::<2>(&mut ace[..4]);
            ace[4..].reverse();
        }
        assert!(is_swapped(&b));
        swap_buffer(&mut b, &table, &layouts).unwrap();
        assert_eq!(b, native);
    }

    #[test]
    fn tables_and_layouts() {
        let std = AttrTable::standard();
        let entries: Vec<(String, u64)> =
            std.iter().map(|(n, a)| (a.name.clone(), pack_registry(n, a.len, a.swap))).collect();
        let old: Vec<(&str, u64)> = entries.iter().take(20).map(|(n, v)| (n.as_str(), *v)).collect();
        let mut t = AttrTable::from_registry(old.clone()).unwrap();
        assert_eq!((t.num(Attr::Dxattr), t.num(Attr::DaclAces)), (None, Some(19)));
        assert_eq!(t.add_missing(), [("ZPL_DXATTR", 0x0003_0014), ("ZPL_PROJID", 0x0800_0015)]);
        assert_eq!(t, std);
        assert!(AttrTable::from_registry(old.into_iter().skip(1)).is_err());
        let mut l = Layouts::default();
        assert_eq!(l.add(&BASE).unwrap().0, 2);
        assert_eq!(l.add(&[20]).unwrap().0, 3);
        assert_eq!((l.find(&BASE), l.find(&[20, 1])), (Some(2), None));
        let mut again = Layouts::default();
        for (n, a) in l.iter() {
            again.add_entry(n.to_string().as_bytes(), &ZapValue::from_u16s(a)).unwrap();
        }
        assert_eq!(again, l);
    }

    proptest! {
        #[test]
        fn build_then_fields(attrs in proptest::collection::vec(0u16..22, 0..20), seed in any::<u8>(), big in 0usize..3000) {
            let (table, mut layouts) = (AttrTable::standard(), Layouts::default());
            let (n, ..) = layouts.add(&attrs).unwrap();
            let values: Vec<(Vec<u8>, bool)> = attrs.iter().enumerate().map(|(i, &a)| {
                let len = match STANDARD[usize::from(a)].1 { 0 => (big + i * 7) % 700, l => usize::from(l) };
                (vec![seed.wrapping_add(i as u8); len], STANDARD[usize::from(a)].1 == 0)
            }).collect();
            let refs: Vec<(&[u8], bool)> = values.iter().map(|(v, k)| (v.as_slice(), *k)).collect();
            let b = build(n, &refs);
            let f = fields(&b, &table, &layouts).unwrap();
            prop_assert_eq!(f.len(), attrs.len());
            for (f, (v, _)) in f.iter().zip(&values) {
                prop_assert_eq!(&b[f.offset..f.offset + f.len], &v[..]);
                prop_assert_eq!(f.offset % 8, 0);
            }
            // `plan` predicts the result of `build`.
            let sizes: Vec<(usize, bool)> = values.iter().map(|(v, k)| (v.len(), *k)).collect();
            let p = plan(&sizes, 832).unwrap();
            if p.in_bonus == attrs.len() {
                prop_assert_eq!(p.bonuslen, b.len());
                prop_assert!(p.bonuslen <= 832);
            } else {
                prop_assert!(build(n, &refs[..p.in_bonus]).len() <= p.bonuslen);
                prop_assert_eq!(build(n, &refs[p.in_bonus..]).len(), p.spill_len);
            }
        }

        #[test]
        fn hostile_bytes_never_panic(mut b in proptest::collection::vec(any::<u8>(), 0..400), magic in 0u8..3, layout in 2u16..4, header in 0u16..64) {
            let (table, mut layouts) = (AttrTable::standard(), Layouts::default());
            layouts.add(&BASE).unwrap();
            layouts.add(&[20, 17, 99]).unwrap();
            if b.len() >= 8 {
                put_le32(&mut b, 0, [SA_MAGIC, SA_MAGIC.swap_bytes(), 0][usize::from(magic)]);
                put_le16(&mut b, 4, layout | header << 10);
            }
            let _ = (fields(&b, &table, &layouts), owner_ids(&b), znode_owner_ids(&b));
            let _ = swap_buffer(&mut b, &table, &layouts);
        }
    }
}
