//! [`Objects`]: raw objects and ZAPs beside the files of a file system, changed by transactions.
//!
//! Below its files a file system is an array of numbered *objects*. Two kinds of them are for
//! programs: *data objects*, sparse arrays of bytes in blocks of one size, and *ZAPs*, maps from
//! names to values that grow to any size and are looked up in one or two reads. They live in the
//! same object set as the files: snapshots, clones, rollbacks, quotas, compression and encryption
//! hold for them as well, and other OpenZFS systems mount such a file system as any other, without
//! seeing them.
//!
//! One ZAP, [`Objects::root`], is there from the start (it is named by the entry
//! `org.openweir:objects` of the master node); everything else is found from it, by the numbers
//! that a program puts into it.
//!
//! Changes are made by a [`Batch`]: all of it happens in one txg, or nothing does. A batch is
//! checked as a whole before anything is changed; batches of one file system come one after the
//! other, and readers see each of them whole. [`Objects::commit`] ends when the batch is visible;
//! [`Objects::commit_durable`] when its txg is on disk. There is no intent log for objects:
//! durability is a txg's.
//!
//! ```
//! # use openweir::{Batch, CreateOptions, Engine, Value};
//! # fn main() -> openweir::Result<()> {
//! # let engine = Engine::start()?;
//! # let disk = engine.memory_device(128 << 20).wait()?;
//! # let pool = engine.create_pool("tank", disk, CreateOptions::default()).wait()?;
//! let objects = pool.filesystem("tank").wait()?.objects().wait()?;
//! let mut batch = Batch::new();
//! let log = batch.create_data(16 << 10);
//! batch.write(log, 0, "begun");
//! batch.insert(objects.root(), "log", log);
//! let done = objects.commit(batch).wait()?;
//! assert_eq!(objects.get(objects.root(), "log").wait()?, Some(Value::Number(done.number(log).unwrap())));
//! # Ok(())
//! # }
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{ObjectId, Txg};
use dmu::zap::{self, Cursor, ZapValue};
use dmu::{Dnode, ObjSpec, Objset, Tx, TxPlan};
use ondisk::object_type::ObjectType;
use ondisk::zpl::MASTER_NODE_OBJ;

use crate::call::Call;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::{FileSystem, FsInner};
use crate::inside::{FsState, READERS};

/// The entry of the master node that names the root ZAP.
const ENTRY: &[u8] = b"org.openweir:objects";
/// Type of data objects that no other structure uses (`DMU_OT_PLAIN_OTHER`): data, encrypted where
/// the file system is. The self-describing types of data look better suited, but OpenZFS 2.1 takes
/// them for metadata in its cache and asserts that they are (`dbuf_include_in_metadata_cache`).
const DATA: ObjectType = ObjectType::OTHER_U8;
/// Type of ZAPs that no other structure uses (`DMU_OT_ZAP_OTHER`): metadata, as directories are,
/// encrypted where the file system is.
const ZAP: ObjectType = ObjectType::OTHER_ZAP;
/// Changes that a batch may have.
pub const BATCH_CHANGES_MAX: usize = 1024;
/// Bytes that a batch may write.
pub const BATCH_BYTES_MAX: usize = 16 << 20;
/// Longest name in a ZAP, in bytes.
pub const NAME_MAX: usize = ondisk::zap::MAX_NAME;
/// Longest value in a ZAP, in bytes.
pub const VALUE_MAX: usize = ondisk::zap::MAX_VALUE;
/// Bytes of a block of a fat ZAP.
const ZAP_BLOCK: u64 = 16 << 10;
/// Blocks that one change of a ZAP dirties at most.
const ZAP_TOUCHES: u64 = 3;
/// Bytes that an entry takes beside its name and value.
const ENTRY_BYTES: u64 = 128;

/// Bytes that several changes of one ZAP may dirty: so many blocks each, but no more than the whole
/// ZAP (a compact ZAP that becomes a fat one doubles) and the new entries, in leaves that are a
/// quarter full.
fn zap_bytes(size: u64, changes: u64, entry_bytes: u64) -> u64 {
    let by_changes = changes * ZAP_TOUCHES * ZAP_BLOCK;
    by_changes.min(size.saturating_mul(2) + entry_bytes * 4 + 8 * ZAP_BLOCK)
}

static BATCHES: AtomicU64 = AtomicU64::new(1);

/// An object: one that exists, by its number, or one that a batch is to make.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Object(Id);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Id {
    Stored(u64),
    New { batch: u64, index: usize },
}

impl Object {
    /// The object of that number.
    pub fn stored(number: u64) -> Object {
        Object(Id::Stored(number))
    }
    /// Its number; none before the batch that makes it was committed ([`Committed::number`]).
    pub fn number(self) -> Option<u64> {
        if let Id::Stored(n) = self.0 { Some(n) } else { None }
    }
}

/// The value of an entry of a ZAP.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Value {
    /// One number. A ZAP whose values are all of this kind, with names of up to 49 bytes, is a
    /// compact one.
    Number(u64),
    /// Several numbers. One alone comes back as [`Value::Number`].
    Numbers(Vec<u64>),
    /// Bytes, [`VALUE_MAX`] at most.
    Bytes(Vec<u8>),
    /// The number of an object that the same batch makes; comes back as [`Value::Number`].
    Object(Object),
}

impl Value {
    /// The number, if it is one.
    pub fn number(&self) -> Option<u64> {
        if let Value::Number(n) = self { Some(*n) } else { None }
    }
    /// The bytes, if it is bytes.
    pub fn bytes(&self) -> Option<&[u8]> {
        if let Value::Bytes(b) = self { Some(b) } else { None }
    }
    fn len(&self) -> u64 {
        match self {
            Value::Number(_) | Value::Object(_) => 8,
            Value::Numbers(n) => n.len() as u64 * 8,
            Value::Bytes(b) => b.len() as u64,
        }
    }
    fn of(v: &ZapValue) -> Value {
        match (v.as_bytes(), v.as_u64()) {
            (Some(b), _) => Value::Bytes(b.to_vec()),
            (None, Some(n)) => Value::Number(n),
            (None, None) => Value::Numbers(v.ints().collect()),
        }
    }
    fn stored(&self, number_of: impl Fn(Object) -> Result<u64>) -> Result<ZapValue> {
        Ok(match self {
            Value::Number(n) => ZapValue::from_u64(*n),
            Value::Numbers(n) => ZapValue::from_u64s(n),
            Value::Bytes(b) => ZapValue::from_bytes(b),
            Value::Object(o) => ZapValue::from_u64(number_of(*o)?),
        })
    }
}

impl From<u64> for Value {
    fn from(n: u64) -> Value {
        Value::Number(n)
    }
}
impl From<&str> for Value {
    fn from(s: &str) -> Value {
        Value::Bytes(s.as_bytes().to_vec())
    }
}
impl From<&[u8]> for Value {
    fn from(b: &[u8]) -> Value {
        Value::Bytes(b.to_vec())
    }
}
impl From<Vec<u8>> for Value {
    fn from(b: Vec<u8>) -> Value {
        Value::Bytes(b)
    }
}
impl From<Object> for Value {
    fn from(o: Object) -> Value {
        Value::Object(o)
    }
}

enum Change {
    Create { zap: bool, block_size: u32 },
    Free(Object),
    Write { object: Object, offset: u64, data: Vec<u8> },
    Punch { object: Object, offset: u64, len: u64 },
    Insert { zap: Object, name: Vec<u8>, value: Value },
    Set { zap: Object, name: Vec<u8>, value: Value },
    Remove { zap: Object, name: Vec<u8> },
}

/// Changes of objects and ZAPs that are made together or not at all: [`BATCH_CHANGES_MAX`] changes
/// and [`BATCH_BYTES_MAX`] bytes at most. They are made in the order in which they are put in.
pub struct Batch {
    id: u64,
    changes: Vec<Change>,
    expects: Vec<(Object, Vec<u8>, Option<Value>)>,
    created: usize,
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Batch({} changes)", self.changes.len())
    }
}

impl Default for Batch {
    fn default() -> Batch {
        Batch::new()
    }
}

impl Batch {
    /// No changes.
    pub fn new() -> Batch {
        Batch { id: BATCHES.fetch_add(1, Ordering::Relaxed), changes: Vec::new(), expects: Vec::new(), created: 0 }
    }
    fn create(&mut self, zap: bool, block_size: u32) -> Object {
        self.changes.push(Change::Create { zap, block_size });
        self.created += 1;
        Object(Id::New { batch: self.id, index: self.created - 1 })
    }
    /// Makes a data object with blocks of `block_size` bytes: a multiple of 512, 128 KiB at most.
    pub fn create_data(&mut self, block_size: u32) -> Object {
        self.create(false, block_size)
    }
    /// Makes an empty ZAP.
    pub fn create_zap(&mut self) -> Object {
        self.create(true, 0)
    }
    /// Frees an object that exists, with all that is in it. Not the root.
    pub fn free(&mut self, object: Object) {
        self.changes.push(Change::Free(object));
    }
    /// Writes bytes of a data object.
    pub fn write(&mut self, object: Object, offset: u64, data: impl Into<Vec<u8>>) {
        self.changes.push(Change::Write { object, offset, data: data.into() });
    }
    /// Frees `len` bytes of a data object from `offset` (`u64::MAX`: all behind it): they read as
    /// zeros.
    pub fn punch(&mut self, object: Object, offset: u64, len: u64) {
        self.changes.push(Change::Punch { object, offset, len });
    }
    /// Adds an entry; the batch fails with [`ErrorKind::Exists`] if the name is there.
    pub fn insert(&mut self, zap: Object, name: impl Into<Vec<u8>>, value: impl Into<Value>) {
        self.changes.push(Change::Insert { zap, name: name.into(), value: value.into() });
    }
    /// Sets the value of an entry, new or not.
    pub fn set(&mut self, zap: Object, name: impl Into<Vec<u8>>, value: impl Into<Value>) {
        self.changes.push(Change::Set { zap, name: name.into(), value: value.into() });
    }
    /// Removes an entry; the batch fails with [`ErrorKind::NotFound`] if it is not there.
    pub fn remove(&mut self, zap: Object, name: impl Into<Vec<u8>>) {
        self.changes.push(Change::Remove { zap, name: name.into() });
    }
    /// The batch fails with [`ErrorKind::Conflict`] unless the entry has this value before the
    /// batch (None: unless it is absent). So a program changes only a state that it has read.
    pub fn expect(&mut self, zap: Object, name: impl Into<Vec<u8>>, value: Option<Value>) {
        self.expects.push((zap, name.into(), value));
    }
    /// How many changes there are.
    pub fn len(&self) -> usize {
        self.changes.len()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

/// The result of a batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Committed {
    /// The txg that it is in: [`crate::Pool::wait_txg`] waits until that is on disk.
    pub txg: u64,
    batch: u64,
    created: Vec<u64>,
}

impl Committed {
    /// The number of an object that the batch made, or of one that existed; none for an object of
    /// another batch.
    pub fn number(&self, object: Object) -> Option<u64> {
        match object.0 {
            Id::Stored(n) => Some(n),
            Id::New { batch, index } if batch == self.batch => self.created.get(index).copied(),
            Id::New { .. } => None,
        }
    }
    /// The same as an object that exists.
    pub fn object(&self, object: Object) -> Option<Object> {
        self.number(object).map(Object::stored)
    }
}

/// An entry of a ZAP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its name.
    pub name: Vec<u8>,
    /// Its value.
    pub value: Value,
}

/// Properties of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectInfo {
    /// Whether it is a ZAP.
    pub is_zap: bool,
    /// Bytes of a block.
    pub block_size: u32,
    /// The end of its last block, in bytes: at least as much as was written.
    pub size: u64,
}

/// The objects of one file system. Cheap to clone; keeps the file system open.
#[derive(Clone)]
pub struct Objects {
    fs: Arc<FsInner>,
    root: u64,
}

impl std::fmt::Debug for Objects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Objects(root {})", self.root)
    }
}

impl FileSystem {
    /// The objects of this file system. The first time the root ZAP is made.
    /// [`ErrorKind::NotFound`] if it has none and is read-only.
    pub fn objects(&self) -> Call<Objects> {
        let inner = self.inner.clone();
        self.inner.call(move |fs, state| async move {
            let root = root_of(fs.objset(), &state, fs.opts().readonly).await?;
            Ok(Objects { fs: inner, root })
        })
    }
}

async fn root_of(os: &Objset, state: &FsState, readonly: bool) -> Result<u64> {
    let master = os.hold(ObjectId(MASTER_NODE_OBJ)).await?;
    let _alone = state.batches.acquire(READERS).await;
    if let Some(root) = zap::lookup_u64(&master, ENTRY).await? {
        return Ok(root);
    }
    if readonly {
        return Err(Error::new(ErrorKind::NotFound, "the file system has no objects of programs"));
    }
    let tx = TxPlan::new(os).create(1).write_new(ZAP_BLOCK).zap(&master).assign().await?;
    let root = zap::create(os, ZAP, 0, &tx).await?.object().0;
    zap::add_u64(&master, ENTRY, root, &tx).await?;
    Ok(root)
}

fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.contains(&0) {
        return Err(Error::invalid("a name in a ZAP is not empty and has no NUL"));
    }
    if name.len() > NAME_MAX {
        return Err(Error::new(ErrorKind::NameTooLong, format!("a name in a ZAP has {NAME_MAX} bytes at most")));
    }
    Ok(())
}

fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// A batch that is checked and can be made.
struct Checked {
    batch: Batch,
    held: BTreeMap<u64, Dnode>,
}

impl Checked {
    /// Checks everything that can be checked, and reads the blocks that the changes need, so that
    /// damage shows before anything is changed.
    async fn of(batch: Batch, os: &Objset, root: u64) -> Result<Checked> {
        let bytes: usize =
            batch.changes.iter().map(|c| if let Change::Write { data, .. } = c { data.len() } else { 0 }).sum();
        if batch.changes.len() > BATCH_CHANGES_MAX || bytes > BATCH_BYTES_MAX {
            let why = format!("a batch has {BATCH_CHANGES_MAX} changes and {BATCH_BYTES_MAX} bytes at most");
            return Err(Error::new(ErrorKind::TooBig, why));
        }
        for (zap, name, value) in &batch.expects {
            check_name(name)?;
            let dn =
                hold(os, zap.number().ok_or_else(|| Error::invalid("only what exists is expected"))?, true).await?;
            let found = zap::lookup(&dn, name).await?.as_ref().map(Value::of);
            if found != *value {
                return Err(Error::new(ErrorKind::Conflict, "an expected entry is another").about(shown(name)));
            }
        }
        let mut checks = Checks::new(os, root, batch.id);
        for change in &batch.changes {
            checks.check(change).await?;
        }
        let held = checks.held;
        Ok(Checked { batch, held })
    }

    fn plan(&self, os: &Objset) -> TxPlan {
        let mut plan = TxPlan::new(os);
        // Changes and bytes of entries of each ZAP.
        let mut zaps: BTreeMap<Object, (u64, u64)> = BTreeMap::new();
        let mut only_frees = true;
        let stored = |o: &Object| o.number().and_then(|n| self.held.get(&n));
        for change in &self.batch.changes {
            only_frees &= matches!(change, Change::Free(_) | Change::Punch { .. } | Change::Remove { .. });
            plan = match change {
                Change::Create { .. } => plan.create(1).write_new(ZAP_BLOCK),
                Change::Free(o) => match stored(o) {
                    Some(dn) => plan.free(dn),
                    None => plan,
                },
                Change::Write { object, offset, data } => match stored(object) {
                    Some(dn) => plan.write(dn, *offset, data.len() as u64),
                    None => plan.write_new(data.len() as u64 + (128 << 10)),
                },
                Change::Punch { object, .. } => match stored(object) {
                    // Blocks at both edges are rewritten.
                    Some(dn) => plan.write(dn, 0, 1).write(dn, 0, 1),
                    None => plan,
                },
                Change::Insert { zap, name, value } | Change::Set { zap, name, value } => {
                    let (changes, bytes) = zaps.entry(*zap).or_default();
                    *changes += 1;
                    *bytes += ENTRY_BYTES + name.len() as u64 + value.len();
                    plan
                }
                Change::Remove { zap, .. } => {
                    zaps.entry(*zap).or_default().0 += 1;
                    plan
                }
            };
        }
        for (zap, (changes, bytes)) in &zaps {
            plan = match stored(zap) {
                Some(dn) => {
                    let size = (dn.max_blkid() + 1).saturating_mul(dn.block_size().into());
                    plan.zap(dn).write_blocks(dn, 0, zap_bytes(size, *changes, *bytes), ZAP_BLOCK)
                }
                // New ones are charged as data, but have one copy more.
                None => plan.write_new(2 * zap_bytes(0, *changes, *bytes)),
            };
        }
        if only_frees { plan.net_free() } else { plan }
    }

    async fn make(self, os: &Objset, tx: &Tx) -> Result<Vec<u64>> {
        let mut made: Vec<Dnode> = Vec::new();
        for change in self.batch.changes {
            let dn = |o: Object, made: &[Dnode]| -> Result<Dnode> {
                let found = match o.0 {
                    Id::Stored(n) => self.held.get(&n).cloned(),
                    Id::New { index, .. } => made.get(index).cloned(),
                };
                found.ok_or_else(|| Error::invalid("no such object"))
            };
            let number = |o: Object| -> Result<u64> { Ok(dn(o, &made)?.object().0) };
            let of = |v: &Value| match v {
                Value::Object(Object(Id::Stored(n))) => Ok(ZapValue::from_u64(*n)),
                other => other.stored(number),
            };
            match change {
                Change::Create { zap: true, .. } => made.push(zap::create(os, ZAP, 0, tx).await?),
                Change::Create { block_size, .. } => made.push(os.alloc(ObjSpec::new(DATA, block_size), tx).await?),
                Change::Free(o) => os.free(dn(o, &made)?.object(), tx).await?,
                Change::Write { data, .. } if data.is_empty() => {}
                Change::Write { object, offset, data } => dn(object, &made)?.write(offset, &data, tx).await?,
                Change::Punch { object, offset, len } => dn(object, &made)?.free_range(offset, len, tx).await?,
                Change::Insert { zap, name, value } => zap::add(&dn(zap, &made)?, &name, &of(&value)?, tx).await?,
                Change::Set { zap, name, value } => zap::update(&dn(zap, &made)?, &name, &of(&value)?, tx).await?,
                Change::Remove { zap, name } => zap::remove(&dn(zap, &made)?, &name, tx).await?,
            }
        }
        Ok(made.iter().map(|d| d.object().0).collect())
    }
}

/// The checks of a batch, change by change: the objects and entries as the changes before leave
/// them.
struct Checks<'a> {
    os: &'a Objset,
    root: u64,
    batch: u64,
    /// New objects: whether each is a ZAP.
    made: Vec<bool>,
    /// Whether entries are there.
    there: BTreeMap<(Object, &'a [u8]), bool>,
    freed: BTreeSet<u64>,
    held: BTreeMap<u64, Dnode>,
}

impl<'a> Checks<'a> {
    fn new(os: &'a Objset, root: u64, batch: u64) -> Checks<'a> {
        Checks {
            os,
            root,
            batch,
            made: Vec::new(),
            there: BTreeMap::new(),
            freed: BTreeSet::new(),
            held: BTreeMap::new(),
        }
    }

    async fn check(&mut self, change: &'a Change) -> Result<()> {
        let (object, want_zap) = match change {
            Change::Create { zap, block_size } => {
                if !zap && (!block_size.is_multiple_of(512) || !(512..=128 << 10).contains(block_size)) {
                    return Err(Error::invalid("a block has 512 to 131072 bytes, a multiple of 512"));
                }
                self.made.push(*zap);
                return Ok(());
            }
            Change::Free(o) => (*o, None),
            Change::Write { object, .. } | Change::Punch { object, .. } => (*object, Some(false)),
            Change::Insert { zap, .. } | Change::Set { zap, .. } | Change::Remove { zap, .. } => (*zap, Some(true)),
        };
        let dn = self.target(object, want_zap).await?;
        match change {
            Change::Free(_) => {
                let n = object.number().unwrap_or(self.root);
                if n == self.root {
                    return Err(Error::invalid("the root ZAP is not freed"));
                }
                self.freed.insert(n);
                Ok(())
            }
            Change::Write { offset, data, .. } => {
                let end = offset.checked_add(data.len() as u64).filter(|e| *e <= i64::MAX as u64);
                let end = end.ok_or_else(|| Error::new(ErrorKind::TooBig, "an object has 2^63 bytes at most"))?;
                if let Some(dn) = &dn
                    && end > *offset
                {
                    dn.read_range(*offset, 1).await?;
                    dn.read_range(end - 1, 1).await?;
                }
                Ok(())
            }
            Change::Punch { offset, len, .. } => {
                if let Some(dn) = &dn {
                    dn.read_range(*offset, 1).await?;
                    dn.read_range(offset.saturating_add(*len).min(i64::MAX as u64), 1).await?;
                }
                Ok(())
            }
            Change::Insert { name, .. } | Change::Set { name, .. } | Change::Remove { name, .. } => {
                self.entry(change, object, name, dn.as_ref()).await
            }
            Change::Create { .. } => Ok(()),
        }
    }

    /// The object of a change; none if the batch makes it. It must be a ZAP or not as `want_zap`
    /// has it, and not freed before.
    async fn target(&mut self, object: Object, want_zap: Option<bool>) -> Result<Option<Dnode>> {
        match object.0 {
            Id::New { batch, index } => {
                let zap = self.made.get(index).copied().filter(|_| batch == self.batch);
                let zap = zap.ok_or_else(|| Error::invalid("an object of another batch, or made later"))?;
                if want_zap != Some(zap) {
                    return Err(Error::invalid("the object is of the other kind, or freed by the batch that makes it"));
                }
                Ok(None)
            }
            Id::Stored(n) => {
                if self.freed.contains(&n) {
                    return Err(Error::new(ErrorKind::NotFound, format!("object {n} is freed by the same batch")));
                }
                let dn = match self.held.get(&n) {
                    Some(dn) => Dnode::clone(dn),
                    None => hold_ours(self.os, n).await?,
                };
                if want_zap.is_some_and(|zap| zap != dn.otype().is_zap()) {
                    return Err(Error::invalid(format!("object {n} is of the other kind")));
                }
                self.held.insert(n, dn.clone());
                Ok(Some(dn))
            }
        }
    }

    /// A change of an entry: its name and value, and whether the entry is there.
    async fn entry(&mut self, change: &Change, zap: Object, name: &'a [u8], dn: Option<&Dnode>) -> Result<()> {
        check_name(name)?;
        if let Change::Insert { value, .. } | Change::Set { value, .. } = change {
            let known = |o: Object| match o.0 {
                Id::New { batch, index } if batch == self.batch && index < self.made.len() => Ok(0),
                Id::Stored(n) => Ok(n),
                Id::New { .. } => Err(Error::invalid("an object of another batch, or made later")),
            };
            value.stored(known)?.check()?;
        }
        let key = (zap, name);
        let is_there = match (self.there.get(&key), dn) {
            (Some(known), _) => *known,
            (None, Some(dn)) => zap::lookup(dn, name).await?.is_some(),
            (None, None) => false,
        };
        match change {
            Change::Insert { .. } if is_there => {
                return Err(Error::new(ErrorKind::Exists, "the entry exists already").about(shown(name)));
            }
            Change::Remove { .. } if !is_there => {
                return Err(Error::new(ErrorKind::NotFound, "there is no such entry").about(shown(name)));
            }
            _ => {}
        }
        self.there.insert(key, !matches!(change, Change::Remove { .. }));
        Ok(())
    }
}

/// An object by its number; of any kind unless it must be a ZAP.
async fn hold(os: &Objset, number: u64, zap: bool) -> Result<Dnode> {
    if number == 0 || number >= ondisk::dnode::MAX_OBJECT {
        return Err(Error::new(ErrorKind::NotFound, format!("there is no object {number}")));
    }
    let dn = os.hold(ObjectId(number)).await?;
    if zap && !dn.otype().is_zap() {
        return Err(Error::invalid(format!("object {number} is no ZAP")));
    }
    Ok(dn)
}

/// Holds an object that may be changed: not a file, a directory or metadata of the file system.
async fn hold_ours(os: &Objset, number: u64) -> Result<Dnode> {
    let dn = hold(os, number, false).await?;
    match dn.otype() {
        DATA | ZAP => Ok(dn),
        _ => Err(Error::new(ErrorKind::Denied, format!("object {number} belongs to the files"))),
    }
}

impl Objects {
    /// The ZAP from which everything else is found.
    pub fn root(&self) -> Object {
        Object::stored(self.root)
    }

    /// Makes the changes of a batch, all in one txg, or none. Ends when every reader sees them.
    ///
    /// # Errors
    /// Those named at the changes, [`ErrorKind::Conflict`], [`ErrorKind::TooBig`],
    /// [`ErrorKind::NoSpace`], [`ErrorKind::Quota`], [`ErrorKind::ReadOnly`]: nothing was changed
    /// then. [`ErrorKind::Denied`] for objects that belong to files. A device that fails between
    /// the check and the change is the one case that leaves a batch half done; the error's sentence
    /// reports it.
    pub fn commit(&self, batch: Batch) -> Call<Committed> {
        self.commit_as(batch, false)
    }

    /// As [`Objects::commit`], and ends when the changes are on disk.
    pub fn commit_durable(&self, batch: Batch) -> Call<Committed> {
        self.commit_as(batch, true)
    }

    fn commit_as(&self, batch: Batch, durable: bool) -> Call<Committed> {
        let root = self.root;
        self.fs.call(move |fs, state| async move {
            if fs.opts().readonly {
                return Err(Error::new(ErrorKind::ReadOnly, "the file system is read-only").about(fs.name()));
            }
            let (os, id) = (fs.objset(), batch.id);
            let (txg, created) = {
                let _alone = state.batches.acquire(READERS).await;
                let checked = Checked::of(batch, os, root).await?;
                let tx = checked.plan(os).assign().await?;
                let created = checked.make(os, &tx).await.map_err(|e| {
                    Error::new(e.kind(), format!("the batch stopped half way, and what it did stays: {}", e.message()))
                })?;
                (tx.txg().0, created)
            };
            if durable {
                os.ctx().txg().wait_synced(Txg(txg)).await?;
            }
            Ok(Committed { txg, batch: id, created })
        })
    }

    /// Reads with the objects as they are between two batches.
    fn look<T, F, Fut>(&self, object: Object, zap: bool, f: F) -> Call<T>
    where
        T: Send + 'static,
        F: FnOnce(Dnode) -> Fut + Send + 'static,
        Fut: Future<Output = base::Result<T>> + 'static,
    {
        let Some(number) = object.number() else {
            return Call::ready(Err(Error::invalid("the object is not made yet: ask Committed::object")));
        };
        self.fs.call(move |fs, state| async move {
            let _with = state.batches.acquire(1).await;
            Ok(f(hold(fs.objset(), number, zap).await?).await?)
        })
    }

    /// The value under a name; None if there is none.
    pub fn get(&self, zap: Object, name: impl Into<Vec<u8>>) -> Call<Option<Value>> {
        let name = name.into();
        self.look(zap, true, move |dn| async move { Ok(zap::lookup(&dn, &name).await?.as_ref().map(Value::of)) })
    }

    /// How many entries a ZAP has.
    pub fn count(&self, zap: Object) -> Call<u64> {
        self.look(zap, true, |dn| async move { zap::count(&dn).await })
    }

    /// Up to `max` entries of a ZAP, in the order of its hash. `cookie` is 0 for the first and the
    /// result of the call before for the others, which is None at the end. An entry that is there
    /// all the time comes exactly once, even if others change meanwhile.
    pub fn entries(&self, zap: Object, cookie: u64, max: usize) -> Call<(Vec<Entry>, Option<u64>)> {
        self.look(zap, true, move |dn| async move {
            let mut cursor = Cursor::at(&dn, cookie);
            let found = cursor.next_batch(max.max(1)).await?;
            let next = if found.len() < max.max(1) { None } else { found.last().map(|(_, c)| *c) };
            let entries = found.into_iter().map(|(e, _)| Entry { value: Value::of(&e.value), name: e.name });
            Ok((entries.collect(), next))
        })
    }

    /// `len` bytes of an object from `offset` (16 MiB at most). Bytes never written, also behind
    /// the end, read as zeros.
    pub fn read(&self, object: Object, offset: u64, len: usize) -> Call<Vec<u8>> {
        if len > BATCH_BYTES_MAX {
            return Call::ready(Err(Error::new(ErrorKind::TooBig, "16 MiB are read at once at most")));
        }
        self.look(object, false, move |dn| async move {
            let mut out = vec![0; len];
            dn.read(offset, &mut out).await?;
            Ok(out)
        })
    }

    /// The properties of an object. [`ErrorKind::NotFound`] if the number is free.
    pub fn info(&self, object: Object) -> Call<ObjectInfo> {
        self.look(object, false, |dn| async move {
            let block_size = dn.block_size();
            let size = (dn.max_blkid() + 1).saturating_mul(block_size.into());
            Ok(ObjectInfo { is_zap: dn.otype().is_zap(), block_size, size })
        })
    }
}
