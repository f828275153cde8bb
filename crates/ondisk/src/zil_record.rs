//! The records of an intent log (format page 07 section 5): parsing and encoding.
//!
//! A record is a common part of 32 bytes ([`crate::zil::Record`]) and a body that depends on its
//! type. [`Op`] is the body. Parsing borrows nothing that it can copy cheaply: names and data stay
//! slices of the record. Encoding makes the record with its common part; the packer of a block
//! fills in txg and sequence number.

use base::{Error, Result};

use crate::blkptr::{BLKPTR_SIZE, Blkptr};
use crate::bytes::{le32, le64, put_le32, put_le64};
use crate::zil::{RECORD_HEADER_SIZE, Record};

/// Types of records.
pub mod tx {
    /// Make a file, device or socket.
    pub const CREATE: u64 = 1;
    /// Make a directory.
    pub const MKDIR: u64 = 2;
    /// Make a hidden directory of extended attributes.
    pub const MKXATTR: u64 = 3;
    /// Make a symbolic link.
    pub const SYMLINK: u64 = 4;
    /// Take a name away.
    pub const REMOVE: u64 = 5;
    /// Remove a directory.
    pub const RMDIR: u64 = 6;
    /// Give another name.
    pub const LINK: u64 = 7;
    /// Rename.
    pub const RENAME: u64 = 8;
    /// Write data.
    pub const WRITE: u64 = 9;
    /// Cut, or zero a range.
    pub const TRUNCATE: u64 = 10;
    /// Change attributes.
    pub const SETATTR: u64 = 11;
    /// Set an ACL of a file system before version 3.
    pub const ACL_V0: u64 = 12;
    /// Set an ACL.
    pub const ACL: u64 = 13;
    /// Make a file with an ACL.
    pub const CREATE_ACL: u64 = 14;
    /// Make a file with attributes.
    pub const CREATE_ATTR: u64 = 15;
    /// Make a file with both.
    pub const CREATE_ACL_ATTR: u64 = 16;
    /// Make a directory with an ACL.
    pub const MKDIR_ACL: u64 = 17;
    /// Make a directory with attributes.
    pub const MKDIR_ATTR: u64 = 18;
    /// Make a directory with both.
    pub const MKDIR_ACL_ATTR: u64 = 19;
    /// A write of which only the size counts.
    pub const WRITE2: u64 = 20;
    /// Set or remove an extended attribute that is kept as a system attribute.
    pub const SETSAXATTR: u64 = 21;
    /// Two objects exchange their names.
    pub const RENAME_EXCHANGE: u64 = 22;
    /// Rename, and leave a whiteout at the old name.
    pub const RENAME_WHITEOUT: u64 = 23;
    /// Clone blocks of another file.
    pub const CLONE_RANGE: u64 = 24;
}

/// Whether OpenZFS before 2.2 does not know records of this type. They go only into the log of a
/// dataset that has the feature `zilsaxattr` on disk (format page 17 section 3).
pub fn needs_zilsaxattr(txtype: u64) -> bool {
    (tx::SETSAXATTR..=tx::RENAME_WHITEOUT).contains(&txtype)
}

/// Bytes of a WRITE record before its data.
pub const WRITE_SIZE: usize = 192;
/// Bytes of a SETATTR record without options.
pub const SETATTR_SIZE: usize = 112;
/// Bytes of the part that names optional attributes.
pub const LR_ATTR_SIZE: usize = 72;
/// Bytes of a CLONE_RANGE record before its block pointers.
pub const CLONE_RANGE_SIZE: usize = 72;
const CREATE_SIZE: usize = 104;
const CREATE_ACL_SIZE: usize = 144;
const WHITEOUT_SIZE: usize = 112;

/// Attributes named by the mask of SETATTR, in the numbers of Linux.
pub mod setattr {
    /// Mode.
    pub const MODE: u64 = 1;
    /// Owner.
    pub const UID: u64 = 2;
    /// Group.
    pub const GID: u64 = 4;
    /// Size.
    pub const SIZE: u64 = 8;
    /// Access time.
    pub const ATIME: u64 = 0x10;
    /// Modification time.
    pub const MTIME: u64 = 0x20;
    /// Change time.
    pub const CTIME: u64 = 0x40;
    /// Optional attributes follow.
    pub const XVATTR: u64 = 1 << 31;
}

/// The kind of object that a create record makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Make {
    /// A file, device, FIFO or socket, by the mode.
    File,
    /// A directory.
    Dir,
    /// A hidden directory for extended attributes.
    XattrDir,
    /// A symbolic link.
    Symlink,
}

/// The common part of create records.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Create {
    /// The directory; of a directory for extended attributes the object they belong to.
    pub dir: u64,
    /// The number that the new object has.
    pub object: u64,
    /// Its dnode in units of 512 bytes, at least 1.
    pub slots: u8,
    /// Mode with type.
    pub mode: u64,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Generation: the txg that made it.
    pub generation: u64,
    /// All its times.
    pub crtime: [u64; 2],
    /// Device number.
    pub rdev: u64,
}

impl Create {
    /// As records have it, without the directory.
    fn words(&self) -> [u64; 8] {
        let object = self.object | u64::from(self.slots.max(1) - 1) << 56;
        let [s, ns] = self.crtime;
        [object, self.mode, self.uid, self.gid, self.generation, s, ns, self.rdev]
    }
}

/// Optional attributes: `lr_attr`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LrAttr {
    /// Bits of the attributes that the record names.
    pub named: u32,
    /// Those of them that are set.
    pub set: u64,
    /// Creation time, if bit 0 is named.
    pub crtime: [u64; 2],
    /// The project, if bit 0x40000 is named.
    pub projid: u64,
}

/// An ACL in a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LrAcl<'a> {
    /// Entries.
    pub count: u64,
    /// Flags.
    pub flags: u64,
    /// The entries as they are stored (12 bytes each and no more in the oldest form).
    pub bytes: &'a [u8],
}

/// The operation of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op<'a> {
    /// Make an object.
    Create {
        /// Its kind.
        make: Make,
        /// Owner, place and mode.
        body: Create,
        /// Attributes beyond those of POSIX.
        attr: Option<LrAttr>,
        /// An ACL.
        acl: Option<LrAcl<'a>>,
        /// Its name.
        name: &'a [u8],
        /// The target of a symbolic link.
        target: &'a [u8],
    },
    /// Take a name away.
    Remove {
        /// The directory.
        dir: u64,
        /// The name.
        name: &'a [u8],
        /// The name is of a directory.
        is_dir: bool,
    },
    /// Give another name.
    Link {
        /// The directory.
        dir: u64,
        /// The object.
        object: u64,
        /// The name.
        name: &'a [u8],
    },
    /// Rename.
    Rename {
        /// The old directory.
        from: u64,
        /// The new one.
        to: u64,
        /// The old name.
        name: &'a [u8],
        /// The new one.
        new_name: &'a [u8],
    },
    /// Exchange two names.
    Exchange {
        /// The directory of one.
        from: u64,
        /// The directory of the other.
        to: u64,
        /// The name of one.
        name: &'a [u8],
        /// The name of the other.
        new_name: &'a [u8],
    },
    /// Rename, and leave a whiteout at the old name.
    Whiteout {
        /// The whiteout; its directory is the old one.
        body: Create,
        /// The new directory.
        to: u64,
        /// The old name.
        name: &'a [u8],
        /// The new one.
        new_name: &'a [u8],
    },
    /// Set an extended attribute in the system attributes.
    SetSaXattr {
        /// The object.
        object: u64,
        /// The name.
        name: &'a [u8],
        /// The value; none: the attribute is removed.
        value: &'a [u8],
    },
    /// Write data.
    Write {
        /// The object.
        object: u64,
        /// Where.
        offset: u64,
        /// How many bytes.
        length: u64,
        /// Where the data are: in the record, or in a block of their own.
        data: WriteData<'a>,
    },
    /// A write whose data were in the txg already.
    Write2 {
        /// The object.
        object: u64,
        /// Where.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
    /// Clone blocks of another file.
    CloneRange {
        /// The object.
        object: u64,
        /// Where.
        offset: u64,
        /// How many bytes; the last block may be cloned in part.
        length: u64,
        /// Bytes of a block.
        block_size: u64,
        /// The blocks of the source, as they were there.
        blocks: ClonedBlocks<'a>,
    },
    /// Cut or zero.
    Truncate {
        /// The object.
        object: u64,
        /// From where.
        offset: u64,
        /// How many bytes, 0 to the end.
        length: u64,
    },
    /// Change attributes.
    Setattr {
        /// The object.
        object: u64,
        /// The new values.
        set: LrSetattr,
        /// Attributes beyond those of POSIX.
        attr: Option<LrAttr>,
    },
    /// Set an ACL.
    Acl {
        /// The object.
        object: u64,
        /// The ACL.
        acl: LrAcl<'a>,
        /// Whether it is in the form from before version 3.
        old: bool,
    },
}

/// The block pointers of a CLONE_RANGE record, as bytes: none of them is encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClonedBlocks<'a>(&'a [u8]);

impl<'a> ClonedBlocks<'a> {
    /// Those in `bytes`, which hold whole pointers.
    pub fn new(bytes: &'a [u8]) -> ClonedBlocks<'a> {
        ClonedBlocks(bytes)
    }
    /// Those of a record. None if it is of another type.
    pub fn of(record: &Record<'a>) -> Result<Option<ClonedBlocks<'a>>> {
        if record.txtype != tx::CLONE_RANGE {
            return Ok(None);
        }
        let f = Fields { b: record.bytes, what: record.txtype };
        let len = usize::try_from(f.word(64)?).ok().and_then(|n| n.checked_mul(BLKPTR_SIZE));
        let bytes = f.rest(CLONE_RANGE_SIZE)?.get(..len.ok_or_else(|| f.short())?).ok_or_else(|| f.short())?;
        Ok(Some(ClonedBlocks(bytes)))
    }
    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len() / BLKPTR_SIZE
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// In the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = Blkptr> + 'a {
        Blkptr::iter_block(self.0)
    }
}

/// Where the data of a write are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteData<'a> {
    /// In the record.
    Here(&'a [u8]),
    /// In the block of the file, which was written by itself.
    Block(Blkptr),
}

/// The values of a SETATTR record; the mask selects the valid ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LrSetattr {
    /// Bits of [`setattr`].
    pub mask: u64,
    /// Mode.
    pub mode: u64,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Size.
    pub size: u64,
    /// Access time.
    pub atime: [u64; 2],
    /// Modification time.
    pub mtime: [u64; 2],
}

/// Reads fields of a record, of which hostile bytes may leave too few.
struct Fields<'a> {
    b: &'a [u8],
    what: u64,
}

impl<'a> Fields<'a> {
    fn short(&self) -> Error {
        Error::corrupt(format!("intent log record of type {} has only {} bytes", self.what, self.b.len()))
    }
    fn word(&self, off: usize) -> Result<u64> {
        if self.b.len() < off + 8 { Err(self.short()) } else { Ok(le64(self.b, off)) }
    }
    fn pair(&self, off: usize) -> Result<[u64; 2]> {
        Ok([self.word(off)?, self.word(off + 8)?])
    }
    fn rest(&self, off: usize) -> Result<&'a [u8]> {
        self.b.get(off..).ok_or_else(|| self.short())
    }
    /// A name with its NUL at `off`, and the offset after it.
    fn name(&self, off: usize) -> Result<(&'a [u8], usize)> {
        let rest = self.rest(off)?;
        let end = rest.iter().position(|&c| c == 0);
        let end =
            end.ok_or_else(|| Error::corrupt(format!("intent log record of type {}: a name has no end", self.what)))?;
        Ok((&rest[..end], off + end + 1))
    }
    fn create(&self) -> Result<Create> {
        self.create_at(40)
    }
    /// A new object, whose number is at `at`, behind the directory.
    fn create_at(&self, at: usize) -> Result<Create> {
        let object = self.word(at)?;
        Ok(Create {
            dir: self.word(32)?,
            object: object & ((1 << 48) - 1),
            slots: ((object >> 56) as u8).saturating_add(1),
            mode: self.word(at + 8)?,
            uid: self.word(at + 16)?,
            gid: self.word(at + 24)?,
            generation: self.word(at + 32)?,
            crtime: self.pair(at + 40)?,
            rdev: self.word(at + 56)?,
        })
    }
    fn attr(&self, off: usize) -> Result<LrAttr> {
        if self.b.len() < off + LR_ATTR_SIZE {
            return Err(self.short());
        }
        let words = le32(self.b, off);
        if words != 3 {
            return Err(Error::corrupt(format!("optional attributes in a log record have {words} words of names")));
        }
        Ok(LrAttr {
            named: le32(self.b, off + 4),
            set: self.word(off + 16)?,
            crtime: self.pair(off + 24)?,
            projid: self.word(off + 40)?,
        })
    }
    /// The ACL at `off` after an ACL create body, the offset behind it and its fuids, and the
    /// number of domains.
    fn acl(&self, off: usize) -> Result<(Option<LrAcl<'a>>, usize, u64)> {
        let (count, domains, fuids) = (self.word(104)?, self.word(112)?, self.word(120)?);
        let (bytes, flags) = (self.word(128)?, self.word(136)?);
        let len = usize::try_from(bytes).ok().filter(|&n| n <= self.b.len()).ok_or_else(|| self.short())?;
        let body = self.rest(off)?.get(..len).ok_or_else(|| self.short())?;
        let fuids = usize::try_from(fuids).ok().filter(|&n| n <= self.b.len() / 8).ok_or_else(|| self.short())?;
        let acl = (len > 0).then_some(LrAcl { count, flags, bytes: body });
        Ok((acl, off + len.next_multiple_of(8) + fuids * 8, domains))
    }
}

/// The parts of a create record's type: kind of object, with an ACL, with attributes.
fn create_form(txtype: u64) -> Option<(Make, bool, bool)> {
    Some(match txtype {
        tx::CREATE => (Make::File, false, false),
        tx::MKDIR => (Make::Dir, false, false),
        tx::MKXATTR => (Make::XattrDir, false, false),
        tx::SYMLINK => (Make::Symlink, false, false),
        tx::CREATE_ACL => (Make::File, true, false),
        tx::CREATE_ATTR => (Make::File, false, true),
        tx::CREATE_ACL_ATTR => (Make::File, true, true),
        tx::MKDIR_ACL => (Make::Dir, true, false),
        tx::MKDIR_ATTR => (Make::Dir, false, true),
        tx::MKDIR_ACL_ATTR => (Make::Dir, true, true),
        _ => return None,
    })
}

impl<'a> Op<'a> {
    /// The operation of a record. `Unsupported` for unknown types.
    pub fn parse(record: &Record<'a>) -> Result<Op<'a>> {
        let f = Fields { b: record.bytes, what: record.txtype };
        if let Some((make, with_acl, with_attr)) = create_form(record.txtype) {
            return Op::parse_create(&f, make, with_acl, with_attr);
        }
        match record.txtype {
            tx::REMOVE | tx::RMDIR => {
                Ok(Op::Remove { dir: f.word(32)?, name: f.name(40)?.0, is_dir: record.txtype == tx::RMDIR })
            }
            tx::LINK => Ok(Op::Link { dir: f.word(32)?, object: f.word(40)?, name: f.name(48)?.0 }),
            tx::RENAME => {
                let (name, next) = f.name(48)?;
                Ok(Op::Rename { from: f.word(32)?, to: f.word(40)?, name, new_name: f.name(next)?.0 })
            }
            tx::RENAME_EXCHANGE => {
                let (name, next) = f.name(48)?;
                Ok(Op::Exchange { from: f.word(32)?, to: f.word(40)?, name, new_name: f.name(next)?.0 })
            }
            tx::RENAME_WHITEOUT => {
                let (name, next) = f.name(WHITEOUT_SIZE)?;
                Ok(Op::Whiteout { body: f.create_at(48)?, to: f.word(40)?, name, new_name: f.name(next)?.0 })
            }
            tx::SETSAXATTR => {
                let (object, size) = (f.word(32)?, f.word(40)?);
                let (name, next) = f.name(48)?;
                let size = usize::try_from(size).map_err(|_| f.short())?;
                let value = f.rest(next)?.get(..size).ok_or_else(|| f.short())?;
                Ok(Op::SetSaXattr { object, name, value })
            }
            tx::WRITE => {
                let (object, offset, length) = (f.word(32)?, f.word(40)?, f.word(48)?);
                let bp = Blkptr::parse(f.rest(64)?)?;
                let data = if record.bytes.len() <= WRITE_SIZE {
                    WriteData::Block(bp)
                } else {
                    let len = usize::try_from(length).map_err(|_| f.short())?;
                    WriteData::Here(f.rest(WRITE_SIZE)?.get(..len).ok_or_else(|| f.short())?)
                };
                Ok(Op::Write { object, offset, length, data })
            }
            tx::CLONE_RANGE => {
                let (object, offset, length, block_size) = (f.word(32)?, f.word(40)?, f.word(48)?, f.word(56)?);
                let blocks = ClonedBlocks::of(record)?.ok_or_else(|| f.short())?;
                Ok(Op::CloneRange { object, offset, length, block_size, blocks })
            }
            tx::WRITE2 => Ok(Op::Write2 { object: f.word(32)?, offset: f.word(40)?, length: f.word(48)? }),
            tx::TRUNCATE => Ok(Op::Truncate { object: f.word(32)?, offset: f.word(40)?, length: f.word(48)? }),
            tx::SETATTR => {
                let set = LrSetattr {
                    mask: f.word(40)?,
                    mode: f.word(48)?,
                    uid: f.word(56)?,
                    gid: f.word(64)?,
                    size: f.word(72)?,
                    atime: f.pair(80)?,
                    mtime: f.pair(96)?,
                };
                let attr = if set.mask & setattr::XVATTR != 0 { Some(f.attr(SETATTR_SIZE)?) } else { None };
                Ok(Op::Setattr { object: f.word(32)?, set, attr })
            }
            tx::ACL_V0 => {
                let count = f.word(40)?;
                let len = usize::try_from(count).ok().and_then(|n| n.checked_mul(12)).ok_or_else(|| f.short())?;
                let bytes = f.rest(48)?.get(..len).ok_or_else(|| f.short())?;
                Ok(Op::Acl { object: f.word(32)?, acl: LrAcl { count, flags: 0, bytes }, old: true })
            }
            tx::ACL => {
                let (count, bytes, flags) = (f.word(40)?, f.word(64)?, f.word(72)?);
                let len = usize::try_from(bytes).map_err(|_| f.short())?;
                let bytes = f.rest(80)?.get(..len).ok_or_else(|| f.short())?;
                Ok(Op::Acl { object: f.word(32)?, acl: LrAcl { count, flags, bytes }, old: false })
            }
            other => Err(Error::unsupported(format!("intent log record of type {other}"))),
        }
    }

    fn parse_create(f: &Fields<'a>, make: Make, with_acl: bool, with_attr: bool) -> Result<Op<'a>> {
        let body = f.create()?;
        let mut at = if with_acl { CREATE_ACL_SIZE } else { CREATE_SIZE };
        let attr = if with_attr { Some(f.attr(at)?) } else { None };
        at += if with_attr { LR_ATTR_SIZE } else { 0 };
        let mut acl = None;
        let mut domains = 0;
        if with_acl {
            (acl, at, domains) = f.acl(at)?;
        }
        // Names of foreign domains stand before the name; without an ACL only where an id has one.
        if !with_acl && (body.uid >> 32 != 0 || body.gid >> 32 != 0) && make != Make::Symlink {
            domains = (body.uid >> 32).max(body.gid >> 32);
        }
        for _ in 0..domains.min(f.b.len() as u64) {
            at = f.name(at)?.1;
        }
        let (name, next) = f.name(at)?;
        let target = if make == Make::Symlink { f.name(next)?.0 } else { &[][..] };
        Ok(Op::Create { make, body, attr, acl, name, target })
    }

    /// The object that the operation needs to be there, if its absence makes the record void
    /// (format page 07 section 4).
    pub fn void_without(&self) -> Option<u64> {
        match *self {
            Op::Write { object, .. }
            | Op::Write2 { object, .. }
            | Op::CloneRange { object, .. }
            | Op::Truncate { object, .. }
            | Op::Setattr { object, .. }
            | Op::SetSaXattr { object, .. }
            | Op::Acl { object, .. } => Some(object),
            _ => None,
        }
    }

    /// The record, its txg and sequence number zero. Records with ACLs cannot be made:
    /// `Unsupported`.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut b = vec![0u8; RECORD_HEADER_SIZE];
        let word = |b: &mut Vec<u8>, w: u64| b.extend_from_slice(&w.to_le_bytes());
        let name = |b: &mut Vec<u8>, n: &[u8]| {
            b.extend_from_slice(n);
            b.push(0);
        };
        let txtype = match *self {
            Op::Create { acl: Some(_), .. } | Op::Acl { .. } => {
                return Err(Error::unsupported("ACLs are not written to intent logs"));
            }
            Op::Create { make, body, attr, acl: None, name: n, target } => {
                word(&mut b, body.dir);
                body.words().into_iter().for_each(|w| word(&mut b, w));
                if let Some(attr) = attr {
                    push_attr(&mut b, &attr);
                }
                name(&mut b, n);
                if make == Make::Symlink {
                    name(&mut b, target);
                }
                match (make, attr) {
                    (Make::File, None) => tx::CREATE,
                    (Make::File, Some(_)) => tx::CREATE_ATTR,
                    (Make::Dir, None) => tx::MKDIR,
                    (Make::Dir, Some(_)) => tx::MKDIR_ATTR,
                    (Make::XattrDir, _) => tx::MKXATTR,
                    (Make::Symlink, _) => tx::SYMLINK,
                }
            }
            Op::Remove { dir, name: n, is_dir } => {
                word(&mut b, dir);
                name(&mut b, n);
                if is_dir { tx::RMDIR } else { tx::REMOVE }
            }
            Op::Link { dir, object, name: n } => {
                word(&mut b, dir);
                word(&mut b, object);
                name(&mut b, n);
                tx::LINK
            }
            Op::Rename { from, to, name: n, new_name } | Op::Exchange { from, to, name: n, new_name } => {
                word(&mut b, from);
                word(&mut b, to);
                name(&mut b, n);
                name(&mut b, new_name);
                if matches!(self, Op::Rename { .. }) { tx::RENAME } else { tx::RENAME_EXCHANGE }
            }
            Op::Whiteout { body, to, name: n, new_name } => {
                word(&mut b, body.dir);
                word(&mut b, to);
                body.words().into_iter().for_each(|w| word(&mut b, w));
                name(&mut b, n);
                name(&mut b, new_name);
                tx::RENAME_WHITEOUT
            }
            Op::SetSaXattr { object, name: n, value } => {
                word(&mut b, object);
                word(&mut b, value.len() as u64);
                name(&mut b, n);
                b.extend_from_slice(value);
                tx::SETSAXATTR
            }
            Op::Write { object, offset, length, data } => {
                for w in [object, offset, length, 0] {
                    word(&mut b, w);
                }
                b.resize(WRITE_SIZE, 0);
                match data {
                    WriteData::Block(bp) => bp.write_to(&mut b[64..64 + BLKPTR_SIZE]),
                    WriteData::Here(d) => b.extend_from_slice(d),
                }
                tx::WRITE
            }
            Op::CloneRange { object, offset, length, block_size, blocks } => {
                for w in [object, offset, length, block_size, blocks.len() as u64] {
                    word(&mut b, w);
                }
                b.extend_from_slice(blocks.0);
                tx::CLONE_RANGE
            }
            Op::Write2 { object, offset, length } => {
                for w in [object, offset, length] {
                    word(&mut b, w);
                }
                b.resize(WRITE_SIZE, 0);
                tx::WRITE2
            }
            Op::Truncate { object, offset, length } => {
                for w in [object, offset, length] {
                    word(&mut b, w);
                }
                tx::TRUNCATE
            }
            Op::Setattr { object, set, attr } => {
                word(&mut b, object);
                let mask = if attr.is_some() { set.mask | setattr::XVATTR } else { set.mask & !setattr::XVATTR };
                for w in [mask, set.mode, set.uid, set.gid, set.size] {
                    word(&mut b, w);
                }
                for w in set.atime.into_iter().chain(set.mtime) {
                    word(&mut b, w);
                }
                if let Some(attr) = attr {
                    push_attr(&mut b, &attr);
                }
                tx::SETATTR
            }
        };
        b.resize(b.len().next_multiple_of(8), 0);
        put_le64(&mut b, 0, txtype);
        let len = b.len() as u64;
        put_le64(&mut b, 8, len);
        Ok(b)
    }
}

fn push_attr(b: &mut Vec<u8>, attr: &LrAttr) {
    let mut a = [0u8; LR_ATTR_SIZE];
    put_le32(&mut a, 0, 3);
    put_le32(&mut a, 4, attr.named);
    put_le64(&mut a, 16, attr.set);
    put_le64(&mut a, 24, attr.crtime[0]);
    put_le64(&mut a, 32, attr.crtime[1]);
    put_le64(&mut a, 40, attr.projid);
    b.extend_from_slice(&a);
}

/// The part of a record of `len` bytes with block pointers, which is not encrypted in the log of an
/// encrypted dataset, but authenticated with the rest (format pages 12 section 8, 17 section 3).
pub fn pointer_part(txtype: u64, len: usize) -> Option<(usize, usize)> {
    match txtype {
        tx::WRITE if len >= WRITE_SIZE => Some((64, WRITE_SIZE)),
        tx::CLONE_RANGE if len >= CLONE_RANGE_SIZE => Some((64, len)),
        _ => None,
    }
}

/// The parts of a record of `len` bytes that are encrypted in the log of an encrypted dataset: all
/// but the common part and [`pointer_part`].
pub fn encrypted_parts(txtype: u64, len: usize) -> [(usize, usize); 2] {
    match pointer_part(txtype, len) {
        Some((from, to)) => [(RECORD_HEADER_SIZE, from), (to, len)],
        None => [(RECORD_HEADER_SIZE, len), (len, len)],
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::zil::records;
    use proptest::prelude::*;

    fn reparsed(op: &Op<'_>) {
        let b = op.encode().unwrap();
        let r = records(&b, (0, b.len())).next().unwrap().unwrap();
        assert_eq!(r.bytes.len(), b.len());
        assert_eq!(Op::parse(&r).unwrap(), *op);
    }

    #[test]
    fn every_record_that_is_written_reads_back() {
        let body = Create {
            dir: 34,
            object: 130,
            slots: 2,
            mode: 0o100_644,
            uid: 1,
            gid: 2,
            generation: 7,
            crtime: [8, 9],
            rdev: 0,
        };
        let attr = LrAttr { named: 0x40040, set: 0x40, crtime: [0, 0], projid: 5 };
        for (make, attr) in [
            (Make::File, None),
            (Make::File, Some(attr)),
            (Make::Dir, None),
            (Make::Dir, Some(attr)),
            (Make::XattrDir, None),
        ] {
            let name: &[u8] = if make == Make::XattrDir { b"" } else { b"a name" };
            reparsed(&Op::Create { make, body, attr, acl: None, name, target: b"" });
        }
        reparsed(&Op::Create { make: Make::Symlink, body, attr: None, acl: None, name: b"l", target: b"to/there" });
        reparsed(&Op::Remove { dir: 34, name: b"x", is_dir: false });
        reparsed(&Op::Remove { dir: 34, name: b"1234567", is_dir: true });
        reparsed(&Op::Link { dir: 34, object: 2, name: b"x" });
        reparsed(&Op::Rename { from: 34, to: 35, name: b"x", new_name: b"yy" });
        reparsed(&Op::Exchange { from: 34, to: 35, name: b"x", new_name: b"yy" });
        let whiteout = Create { mode: 0o020_000, ..body };
        reparsed(&Op::Whiteout { body: whiteout, to: 35, name: b"x", new_name: b"yy" });
        reparsed(&Op::SetSaXattr { object: 2, name: b"user.x", value: b"a\0b" });
        reparsed(&Op::SetSaXattr { object: 2, name: b"user.x", value: b"" });
        reparsed(&Op::Write { object: 2, offset: 3, length: 5, data: WriteData::Here(b"12345") });
        reparsed(&Op::Write { object: 2, offset: 3, length: 5, data: WriteData::Block(Blkptr::hole()) });
        reparsed(&Op::Write2 { object: 2, offset: 3, length: 5 });
        reparsed(&Op::Truncate { object: 2, offset: 3, length: 0 });
        let pointers = [7; 3 * BLKPTR_SIZE];
        let blocks = ClonedBlocks::new(&pointers);
        assert_eq!((blocks.len(), blocks.iter().count()), (3, 3));
        reparsed(&Op::CloneRange { object: 2, offset: 512, length: 1300, block_size: 512, blocks });
        let set = LrSetattr { mask: setattr::SIZE | setattr::MTIME, size: 4, mtime: [5, 6], ..LrSetattr::default() };
        reparsed(&Op::Setattr { object: 2, set, attr: None });
        let with = LrSetattr { mask: setattr::XVATTR, ..set };
        reparsed(&Op::Setattr { object: 2, set: with, attr: Some(attr) });
    }

    /// The layouts of format page 17 section 3, word by word.
    #[test]
    fn records_of_2_2_have_their_fields_where_readers_look() {
        let word = |b: &[u8], at: usize| le64(b, at);
        let b = Op::SetSaXattr { object: 7, name: b"user.x", value: b"value" }.encode().unwrap();
        assert_eq!((word(&b, 0), word(&b, 8), word(&b, 32), word(&b, 40)), (21, 64, 7, 5));
        assert_eq!(&b[48..], b"user.x\0value\0\0\0\0");
        let b = Op::Exchange { from: 34, to: 35, name: b"a", new_name: b"bc" }.encode().unwrap();
        assert_eq!((word(&b, 0), word(&b, 8), word(&b, 32), word(&b, 40)), (22, 56, 34, 35));
        assert_eq!(&b[48..], b"a\0bc\0\0\0\0");
        let body = Create {
            dir: 34,
            object: 130,
            slots: 2,
            mode: 0o020_000,
            uid: 1,
            gid: 2,
            generation: 7,
            crtime: [8, 9],
            rdev: 0,
        };
        let b = Op::Whiteout { body, to: 35, name: b"a", new_name: b"b" }.encode().unwrap();
        let words: Vec<u64> = (4..14).map(|n| word(&b, n * 8)).collect();
        assert_eq!((word(&b, 0), word(&b, 8)), (23, 120));
        assert_eq!(words, [34, 35, 130 | 1 << 56, 0o020_000, 1, 2, 7, 8, 9, 0]);
        assert_eq!(&b[112..], b"a\0b\0\0\0\0\0");
    }

    proptest! {
        #[test]
        fn hostile_records_never_panic(mut b in proptest::collection::vec(any::<u8>(), 32..400), txtype in 0u64..26) {
            let len = b.len() / 8 * 8;
            b.truncate(len);
            put_le64(&mut b, 0, txtype);
            put_le64(&mut b, 8, len as u64);
            for r in records(&b, (0, len)).flatten() {
                let _ = Op::parse(&r);
            }
        }
    }
}
