//! ZAP objects: named values that many tasks look up and change at once (format page 04).
//!
//! The format of the blocks is in `ondisk::zap`. Here are the operations over a [`Dnode`]: which
//! blocks to read and to dirty, in which order, under which lock. Every ZAP has one lock and one
//! cached *form*, kept with the cached dnode (`ZapState`): lookups and walks share the lock,
//! changes exclude. The form of a *micro* ZAP is an index of its entries by hash and its free slots
//! (`micro`), that of a *fat* one is the header (`fat`). It always describes the newest state, is
//! built on first use, and is dropped if a change fails half-way.
//!
//! The normal path of a change: take the lock, find the name, then change one 64-byte entry (micro)
//! or one leaf and the count in the header (fat). A micro ZAP that cannot hold an entry becomes
//! fat; a full leaf splits. Both are rare and work on copies of the blocks (`fat::Overlay`), which
//! are written only when all of them are complete.
//!
//! Names are bytes without NUL, at most 255 of them; in directories 1023, and the dataset has the
//! feature `longname` then. Operations compare them byte for byte; [`lookup_norm`] follows the
//! rules of case-insensitive and normalising directories (format page 16 section 6) and returns the
//! stored name, for use with the other operations.

mod cursor;
mod fat;
mod micro;

pub use cursor::Cursor;
pub use ondisk::zap::{Match, ZapValue};

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result, ResultExt};
use ondisk::object_type::ObjectType;
use ondisk::zap::{MAX_LONG_NAME, MAX_NAME, MICRO_MAX_SIZE, MicroZap, ZapKind};
use rt::sync::RwLock;

use crate::ranks;
use crate::{Dnode, ObjSpec, Objset, Tx};
use fat::FatForm;
use micro::{MicroForm, Put};

/// Block size of a new ZAP.
const NEW_BLOCK: u32 = 512;

/// An entry of a ZAP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ZapEntry {
    /// Its name without NUL; in ZAPs with u64 keys the key's words as big-endian bytes.
    pub name: Vec<u8>,
    /// Its value.
    pub value: ZapValue,
}

/// The cached form of a ZAP.
enum Form {
    Micro(MicroForm),
    Fat(FatForm),
}

/// The lock and the cached form of a ZAP; attached to its dnode.
struct ZapState {
    lock: RwLock<()>,
    form: RefCell<Option<Rc<Form>>>,
    /// Counts changes, so that cursors notice outdated batches.
    changes: Cell<u64>,
}

impl ZapState {
    fn new() -> ZapState {
        ZapState { lock: RwLock::new(ranks::ZAP, ()), form: RefCell::new(None), changes: Cell::new(0) }
    }
    fn of(dn: &Dnode) -> Rc<ZapState> {
        dn.attach(ZapState::new)
    }
    /// The form, built from block 0 on first use. The caller holds the lock.
    async fn form(&self, dn: &Dnode) -> Result<Rc<Form>> {
        if let Some(form) = self.form.borrow().as_ref() {
            return Ok(form.clone());
        }
        let block = dn.read_block(0).await?;
        let form = match ondisk::zap::kind(&block)? {
            ZapKind::Micro => Form::Micro(Box::pin(MicroForm::build(&block, dn.objset().ctx())).await?),
            ZapKind::Fat => Form::Fat(FatForm::parse(&block)?),
        };
        let form = Rc::new(form);
        *self.form.borrow_mut() = Some(form.clone());
        Ok(form)
    }
    fn changed(&self) {
        self.changes.set(self.changes.get().wrapping_add(1));
    }
}

/// A change in progress: unless it reaches [`Change::done`], the cached form is dropped, since its
/// state is unknown.
struct Change<'a>(Option<&'a ZapState>);

impl<'a> Change<'a> {
    fn begin(st: &'a ZapState) -> Change<'a> {
        st.changed();
        Change(Some(st))
    }
    fn done(mut self) {
        self.0 = None;
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if let Some(st) = self.0 {
            let gone = st.form.borrow_mut().take();
            drop(gone);
        }
    }
}

fn place(dn: &Dnode) -> String {
    format!("ZAP {} of object set {}", dn.object(), dn.objset().id())
}

fn show(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

fn exists(name: &[u8]) -> Error {
    Error::new(ErrorKind::Exists, format!("{:?} exists already", show(name)))
}

fn missing(name: &[u8]) -> Error {
    Error::not_found(format!("there is no {:?}", show(name)))
}

/// Makes an object that is an empty ZAP. `normflags`: the `NORM_*` bits of `ondisk::zap`, 0 for
/// nearly all.
pub async fn create(os: &Objset, otype: ObjectType, normflags: u64, tx: &Tx) -> Result<Dnode> {
    create_spec(os, ObjSpec::new(otype, NEW_BLOCK), normflags, tx).await
}

/// As [`create`], with a bonus.
pub async fn create_with_bonus(
    os: &Objset,
    otype: ObjectType,
    normflags: u64,
    bonustype: ObjectType,
    bonus: &[u8],
    tx: &Tx,
) -> Result<Dnode> {
    let spec = ObjSpec::new(otype, NEW_BLOCK).bonus(bonustype, bonus.len() as u16);
    let dn = create_spec(os, spec, normflags, tx).await?;
    dn.set_bonus(bonus, tx)?;
    Ok(dn)
}

/// As [`create`], with all parameters of the object: a directory with its bonus and dnode size. The
/// block size in `spec` is ignored.
pub async fn create_spec(os: &Objset, spec: ObjSpec, normflags: u64, tx: &Tx) -> Result<Dnode> {
    let dn = os.alloc(ObjSpec { blksz: NEW_BLOCK, ..spec }, tx).await?;
    init(&dn, normflags, tx).await?;
    Ok(dn)
}

/// Makes an object that is an empty fat ZAP with blocks of `1 << shift` bytes and the `FLAG_*` bits
/// of `ondisk::zap`: keys of several u64s, given as big-endian bytes, or hashed already.
pub async fn create_fat(os: &Objset, spec: ObjSpec, shift: u32, flags: u64, tx: &Tx) -> Result<Dnode> {
    let dn = os.alloc(ObjSpec { blksz: 1 << shift, ..spec }, tx).await?;
    let st = ZapState::of(&dn);
    let _lock = st.lock.write().await;
    let change = Change::begin(&st);
    let salt = os.ctx().rt().rng_u64() | 1;
    fat::init(&dn, shift, ondisk::zap::ZapParams { salt, normflags: 0, flags }, tx).await.at(|| place(&dn))?;
    drop(change);
    Ok(dn)
}

/// As [`create_spec`], under a given object number.
pub async fn create_at(os: &Objset, obj: ObjectId, spec: ObjSpec, normflags: u64, tx: &Tx) -> Result<Dnode> {
    let dn = os.alloc_at(obj, ObjSpec { blksz: NEW_BLOCK, ..spec }, tx).await?;
    init(&dn, normflags, tx).await?;
    Ok(dn)
}

/// Turns an existing object without data into an empty ZAP. The caller sets its type.
pub async fn init(dn: &Dnode, normflags: u64, tx: &Tx) -> Result<()> {
    let st = ZapState::of(dn);
    let _lock = st.lock.write().await;
    let change = Change::begin(&st);
    if dn.block_size() as usize > MICRO_MAX_SIZE {
        dn.set_block_size(NEW_BLOCK, tx)?;
    }
    let salt = dn.objset().ctx().rt().rng_u64() | 1;
    dn.update_block(0, tx, |b| MicroZap::init(b, salt, normflags).params()).await.at(|| place(dn))?;
    // Dropped without `done`: a form cached before is invalid.
    drop(change);
    Ok(())
}

/// The value under `name`.
pub async fn lookup(dn: &Dnode, name: &[u8]) -> Result<Option<ZapValue>> {
    let st = ZapState::of(dn);
    let _lock = st.lock.read().await;
    find(dn, &st, name, Match::Exact).await.map(|e| e.map(|e| e.value)).at(|| place(dn))
}

/// The value under `name`, which must be a single u64.
pub async fn lookup_u64(dn: &Dnode, name: &[u8]) -> Result<Option<u64>> {
    let st = ZapState::of(dn);
    let _lock = st.lock.read().await;
    let value = match &*st.form(dn).await.at(|| place(dn))? {
        Form::Micro(m) => return m.lookup(dn, name).await.at(|| place(dn)),
        Form::Fat(f) => f.find(dn, name, Match::Exact).await.and_then(|e| e.map(|e| e.value()).transpose()),
    };
    match value.at(|| place(dn))? {
        None => Ok(None),
        Some(v) => single(dn, name, &v).map(Some),
    }
}

fn single(dn: &Dnode, name: &[u8], v: &ZapValue) -> Result<u64> {
    v.as_u64().ok_or_else(|| {
        Error::corrupt(format!(
            "{}: {:?} is {} integers of {} bytes where one u64 is wanted",
            place(dn),
            show(name),
            v.num_ints(),
            v.int_size
        ))
    })
}

/// The entry that matches `name` by the rule `how`; of several the one with the lowest collision
/// differentiator (cd).
pub async fn lookup_norm(dn: &Dnode, name: &[u8], how: Match) -> Result<Option<ZapEntry>> {
    let st = ZapState::of(dn);
    let _lock = st.lock.read().await;
    find(dn, &st, name, how).await.at(|| place(dn))
}

async fn find(dn: &Dnode, st: &ZapState, name: &[u8], how: Match) -> Result<Option<ZapEntry>> {
    match &*st.form(dn).await? {
        Form::Micro(m) => m.find(dn, name, how).await,
        Form::Fat(f) => f.find(dn, name, how).await?.map(|e| e.entry()).transpose(),
    }
}

/// Adds an entry; [`ErrorKind::Exists`] if the name exists.
pub async fn add(dn: &Dnode, name: &[u8], value: &ZapValue, tx: &Tx) -> Result<()> {
    store(dn, name, value, Put::Add, tx).await
}

/// Sets the value under a name, new or not.
pub async fn update(dn: &Dnode, name: &[u8], value: &ZapValue, tx: &Tx) -> Result<()> {
    store(dn, name, value, Put::Update, tx).await
}

async fn store(dn: &Dnode, name: &[u8], value: &ZapValue, how: Put, tx: &Tx) -> Result<()> {
    let st = ZapState::of(dn);
    let _lock = st.lock.write().await;
    store_locked(dn, &st, name, value, how, tx).await.at(|| place(dn))
}

async fn store_locked(dn: &Dnode, st: &ZapState, name: &[u8], value: &ZapValue, how: Put, tx: &Tx) -> Result<()> {
    value.check()?;
    let long = name.len() > MAX_NAME;
    if long && (dn.otype() != ObjectType::DIRECTORY || name.len() > MAX_LONG_NAME) {
        return Err(Error::new(ErrorKind::NameTooLong, format!("a ZAP name of {} bytes", name.len())));
    }
    let mut form = st.form(dn).await?;
    if long {
        dn.objset().need_feature("org.zfsonlinux:longname", tx.txg());
    }
    if let Form::Micro(m) = &*form {
        if name.is_empty() || name.contains(&0) {
            return Err(Error::invalid("a ZAP name is empty or holds a NUL"));
        }
        match m.put(dn, st, name, value, how, tx).await? {
            micro::Outcome::Done => return Ok(()),
            micro::Outcome::DoesNotFit => form = Box::pin(fat::convert(dn, st, tx)).await?,
        }
    }
    match &*form {
        Form::Fat(f) => f.put(dn, st, name, value, how, tx).await,
        Form::Micro(_) => unreachable!("just converted"),
    }
}

/// Removes an entry; [`ErrorKind::NotFound`] if there is none.
pub async fn remove(dn: &Dnode, name: &[u8], tx: &Tx) -> Result<()> {
    let st = ZapState::of(dn);
    let _lock = st.lock.write().await;
    remove_locked(dn, &st, name, tx).await.at(|| place(dn))
}

async fn remove_locked(dn: &Dnode, st: &ZapState, name: &[u8], tx: &Tx) -> Result<()> {
    match &*st.form(dn).await? {
        Form::Micro(m) => m.remove(dn, st, name, tx).await,
        Form::Fat(f) => f.remove(dn, st, name, tx).await,
    }
}

/// Adds `delta` to the u64 under `name`, 0 if there is none. An entry that becomes 0 is removed.
pub async fn increment(dn: &Dnode, name: &[u8], delta: i64, tx: &Tx) -> Result<()> {
    if delta == 0 {
        return Ok(());
    }
    let st = ZapState::of(dn);
    let _lock = st.lock.write().await;
    let old = match find(dn, &st, name, Match::Exact).await.at(|| place(dn))? {
        None => 0,
        Some(e) => single(dn, name, &e.value)?,
    };
    match old.wrapping_add_signed(delta) {
        0 => remove_locked(dn, &st, name, tx).await.at(|| place(dn)),
        new => store_locked(dn, &st, name, &ZapValue::from_u64(new), Put::Update, tx).await.at(|| place(dn)),
    }
}

/// All entries in the order of cursors.
pub async fn list(dn: &Dnode) -> Result<Vec<ZapEntry>> {
    let mut all = Vec::new();
    let mut cursor = Cursor::new(dn);
    while let Some((entry, _)) = cursor.next().await? {
        all.push(entry);
    }
    Ok(all)
}

/// Number of entries.
pub async fn count(dn: &Dnode) -> Result<u64> {
    let st = ZapState::of(dn);
    let _lock = st.lock.read().await;
    Ok(match &*st.form(dn).await.at(|| place(dn))? {
        Form::Micro(m) => m.len() as u64,
        Form::Fat(f) => f.num_entries(),
    })
}

/// Whether the ZAP is fat (for debuggers and tests).
pub async fn is_fat(dn: &Dnode) -> Result<bool> {
    let st = ZapState::of(dn);
    let _lock = st.lock.read().await;
    Ok(matches!(&*st.form(dn).await.at(|| place(dn))?, Form::Fat(_)))
}

/// [`add`] of one u64.
pub async fn add_u64(dn: &Dnode, name: &[u8], value: u64, tx: &Tx) -> Result<()> {
    add(dn, name, &ZapValue::from_u64(value), tx).await
}
/// [`add`] of text, stored with a NUL.
pub async fn add_text(dn: &Dnode, name: &[u8], value: &str, tx: &Tx) -> Result<()> {
    add(dn, name, &ZapValue::from_str_nul(value), tx).await
}
/// [`update`] to one u64.
pub async fn update_u64(dn: &Dnode, name: &[u8], value: u64, tx: &Tx) -> Result<()> {
    update(dn, name, &ZapValue::from_u64(value), tx).await
}
/// [`update`] to text, stored with a NUL.
pub async fn update_text(dn: &Dnode, name: &[u8], value: &str, tx: &Tx) -> Result<()> {
    update(dn, name, &ZapValue::from_str_nul(value), tx).await
}
/// [`update`] to bytes as they are.
pub async fn update_bytes(dn: &Dnode, name: &[u8], value: &[u8], tx: &Tx) -> Result<()> {
    update(dn, name, &ZapValue::from_bytes(value), tx).await
}

/// The name of an integer-keyed entry: lower-case hexadecimal (format page 04 section 6).
pub fn int_key(v: u64) -> Vec<u8> {
    ondisk::zap::int_key(v).into_bytes()
}
/// The integer of such a name.
pub fn parse_int_key(name: &[u8]) -> Option<u64> {
    ondisk::zap::parse_int_key(name)
}
/// [`add_u64`] under an integer.
pub async fn add_int(dn: &Dnode, key: u64, value: u64, tx: &Tx) -> Result<()> {
    add_u64(dn, &int_key(key), value, tx).await
}
/// [`update_u64`] under an integer.
pub async fn update_int(dn: &Dnode, key: u64, value: u64, tx: &Tx) -> Result<()> {
    update_u64(dn, &int_key(key), value, tx).await
}
/// [`lookup_u64`] under an integer.
pub async fn lookup_int(dn: &Dnode, key: u64) -> Result<Option<u64>> {
    lookup_u64(dn, &int_key(key)).await
}
/// [`remove`] under an integer.
pub async fn remove_int(dn: &Dnode, key: u64, tx: &Tx) -> Result<()> {
    remove(dn, &int_key(key), tx).await
}
