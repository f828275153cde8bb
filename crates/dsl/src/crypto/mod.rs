//! Keys of encrypted datasets: key objects, loading and changing keys, new encrypted datasets
//! (format page 12, sections 2 to 4 and 9).
//!
//! Vocabulary. A *key object* in the MOS holds the master key of a directory, encrypted (*wrapped*)
//! with the wrapping key that the user's passphrase or key file gives. A directory that the user
//! gave a key of its own is an *encryption root*; those below it that have none have key objects of
//! their own, which the root's wrapping key opens. A clone shares the key object of its origin.
//!
//! *Loading* a key unwraps the master keys of its root and of all datasets that inherit it, so that
//! their object sets can be opened; *unloading* drops them from memory; *changing* it wraps the
//! same master keys anew, so that no data is rewritten. Loaded keys are never stored: they are lost
//! when the pool closes.
//!
//! Keys are in the pool's [`KeyMemory`], which is locked and overwritten; this module copies no key
//! out of it. Keys are made from the system's entropy.
//!
//! `zio` encrypts blocks and makes their tags. Files: `wrapping` (keys from passphrases),
//! `key_object`, `create` (new datasets), `root` (changes of roots).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result, Txg};
use codec::crypto::Suite;
use codec::keymem::KeyMemory;
use rt::Rt;

use crate::dir::Dir;
use crate::pool::DslPool;

mod create;
mod errata;
mod key_object;
mod keydata;
mod received;
mod root;
pub(crate) mod salt;
mod wrapping;

pub(crate) use self::create::PreparedCrypt;
pub use self::errata::Errata;
pub(crate) use self::key_object::KeyObject;
pub(crate) use self::received::ReceivedKeys;
pub use self::wrapping::check_location;
use self::wrapping::{WrappingKey, derive};

/// The form in which the user keeps a key (property `keyformat`).
#[repr(u64)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyFormat {
    /// 32 bytes.
    Raw = 1,
    /// 64 hexadecimal digits.
    Hex = 2,
    /// 8 to 512 bytes of text.
    Passphrase = 3,
}

impl KeyFormat {
    const ALL: [KeyFormat; 3] = [KeyFormat::Raw, KeyFormat::Hex, KeyFormat::Passphrase];

    /// The format with this number.
    pub fn from_u64(n: u64) -> Option<KeyFormat> {
        Self::ALL.into_iter().find(|f| *f as u64 == n)
    }
    /// The property value.
    pub fn name(self) -> &'static str {
        match self {
            KeyFormat::Raw => "raw",
            KeyFormat::Hex => "hex",
            KeyFormat::Passphrase => "passphrase",
        }
    }
    /// The format that a property value names.
    pub fn parse(name: &str) -> Option<KeyFormat> {
        Self::ALL.into_iter().find(|f| f.name() == name)
    }
}

/// A key as typed or read from a file; a trailing newline is ignored except in raw keys. The caller
/// chooses the memory.
#[derive(Clone)]
pub struct KeyMaterial(Rc<dyn AsRef<[u8]>>);

impl KeyMaterial {
    /// A key in memory that the caller protects.
    pub fn new(bytes: impl AsRef<[u8]> + 'static) -> KeyMaterial {
        KeyMaterial(Rc::new(bytes))
    }

    fn bytes(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl std::fmt::Debug for KeyMaterial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyMaterial")
    }
}

/// A key for a new encryption root.
#[derive(Clone, Debug)]
pub struct NewKey {
    /// Its format.
    pub format: KeyFormat,
    /// The key itself.
    pub material: KeyMaterial,
    /// PBKDF2 rounds; default if `None`. For passphrases only.
    pub iters: Option<u64>,
    /// Value of property `keylocation`: `prompt` or a URL.
    pub location: String,
}

/// The encryption of a new dataset.
#[derive(Clone, Debug, Default)]
pub struct NewCrypt {
    /// `encryption=`: `None` as the parent, `Some(None)` off.
    pub suite: Option<Option<Suite>>,
    /// A key of its own, which makes it an encryption root.
    pub key: Option<NewKey>,
}

impl NewCrypt {
    /// Whether the dataset is encrypted, if its parent is not.
    pub fn is_on(&self) -> bool {
        self.suite.flatten().is_some()
    }

    /// Checks what is to encrypt the root of a new pool, before anything is written.
    pub fn check_of_root(&self, name: &str) -> Result<()> {
        match (&self.key, self.is_on()) {
            (None, true) => {
                Err(Error::invalid(format!("'{name}' needs a key: say which kind with -O keyformat=passphrase")))
            }
            (Some(_), false) => {
                Err(Error::invalid(format!("'{name}' is not to be encrypted and needs no key: leave it out")))
            }
            (Some(key), true) => wrapping::check(key),
            (None, false) => Ok(()),
        }
    }
}

/// A dataset's encryption, as known without its key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CryptInfo {
    /// Suite.
    pub suite: Suite,
    /// Name of the encryption root.
    pub root: String,
    /// Whether the dataset is that root.
    pub is_root: bool,
    /// Format of the root's key.
    pub format: KeyFormat,
    /// PBKDF2 rounds, 0 unless the key is a passphrase.
    pub iters: u64,
    /// Whether the key is loaded.
    pub available: bool,
    /// Guid of the master key (`DSL_CRYPTO_GUID`); clones share it with their origin.
    pub guid: u64,
}

/// The keys of a pool.
pub(crate) struct Keys {
    memory: Rc<KeyMemory>,
    objects: RefCell<BTreeMap<ObjectId, Rc<KeyObject>>>,
    /// Loaded wrapping keys, by the root's directory.
    wrapping: RefCell<BTreeMap<ObjectId, WrappingKey>>,
    /// Directories whose newest snapshot has no guid of its set of IVs; none before they were
    /// looked for.
    without_ivsets: RefCell<Option<Vec<ObjectId>>>,
}

impl Keys {
    /// No keys, and the memory for them.
    pub(crate) fn new(rt: &Rt) -> Keys {
        let memory = Rc::new(KeyMemory::new(rt.page_lock()));
        Keys { memory, objects: RefCell::default(), wrapping: RefCell::default(), without_ivsets: RefCell::default() }
    }
}

impl DslPool {
    /// False if the system refused to lock memory with keys of this pool, so that they may be
    /// swapped.
    pub fn keys_are_locked(&self) -> bool {
        self.keys().memory.is_locked()
    }

    /// The encryption of a directory; `None` if it is not encrypted.
    pub fn crypt_info(&self, dir: &Dir) -> Option<CryptInfo> {
        let crypt = dir.crypt()?;
        let root = self.dir_of(crypt.root.get().0).ok();
        let of_root = root.as_ref().and_then(|r| r.crypt()).unwrap_or_else(|| crypt.clone());
        let wrapped = crypt.wrapped.borrow();
        Some(CryptInfo {
            suite: wrapped.suite,
            root: root.map_or_else(|| dir.full_name(), |r| r.full_name()),
            is_root: crypt.root.get() == dir.object,
            format: of_root.format.get(),
            iters: of_root.iters.get(),
            available: crypt.key.borrow().is_some(),
            guid: wrapped.guid,
        })
    }

    /// Names of all encryption roots at and below `name`, parents first.
    pub fn encryption_roots(&self, name: &str) -> Result<Vec<String>> {
        let mut out = Vec::new();
        let mut todo = vec![self.find_dir(name)?];
        while let Some(dir) = todo.pop() {
            if dir.crypt().is_some_and(|c| c.root.get() == dir.object) {
                out.push(dir.full_name());
            }
            todo.extend(dir.children().into_iter().rev());
        }
        Ok(out)
    }

    /// The directory `name`, which must be an encryption root.
    fn encryption_root(&self, name: &str) -> Result<(Rc<Dir>, Rc<KeyObject>)> {
        let dir = self.find_dir(name)?;
        let Some(crypt) = dir.crypt() else {
            return Err(Error::invalid(format!("dataset '{name}' is not encrypted")));
        };
        if crypt.root.get() != dir.object {
            let root = self.crypt_info(&dir).map_or_else(String::new, |i| i.root);
            return Err(Error::invalid(format!("dataset '{name}' has no key of its own: it uses the key of '{root}'")));
        }
        Ok((dir, crypt))
    }

    /// Whether a directory has a key of its own.
    pub fn is_encryption_root(&self, dir: &Dir) -> bool {
        dir.crypt().is_some_and(|c| c.root.get() == dir.object)
    }

    /// Key objects that the wrapping key of the root opens.
    fn keys_of(&self, root: ObjectId) -> Vec<Rc<KeyObject>> {
        self.keys().objects.borrow().values().filter(|k| k.root.get() == root).cloned().collect()
    }

    /// Opens the key objects of the root that are not open; the error is the first that the
    /// wrapping key does not open.
    fn open_keys(&self, root: ObjectId, wrapping: &WrappingKey) -> std::result::Result<(), ObjectId> {
        for key in self.keys_of(root).into_iter().filter(|key| key.key.borrow().is_none()) {
            let opened = key.open(wrapping, &self.keys().memory).map_err(|_| key.object)?;
            *key.key.borrow_mut() = Some(opened);
        }
        Ok(())
    }

    /// Loads the key of an encryption root, for it and all datasets that inherit it. `check_only`:
    /// only checks the key (also if it is loaded). Errors: `Denied` for a wrong key, `Exists` if it
    /// is loaded already.
    pub async fn load_key(&self, name: &str, material: &KeyMaterial, check_only: bool) -> Result<()> {
        let (dir, crypt) = self.encryption_root(name)?;
        if !check_only && crypt.key.borrow().is_some() {
            return Err(Error::new(ErrorKind::Exists, format!("the key of '{name}' is loaded already")));
        }
        let rt = self.ctx().rt();
        let memory = &self.keys().memory;
        let stretching = (crypt.salt.get(), crypt.iters.get());
        let wrapping = derive(rt, memory, crypt.format.get(), material, stretching).await?;
        let wrong = |_| Error::new(WRONG_KEY, format!("that is not the key of '{name}'"));
        crypt.open(&wrapping, memory).map_err(wrong)?;
        if check_only {
            return Ok(());
        }
        self.open_keys(dir.object, &wrapping).map_err(|object| {
            Error::corrupt(format!("key object {object} is not encrypted with the key of '{name}'"))
        })?;
        self.keys().wrapping.borrow_mut().insert(dir.object, wrapping);
        Ok(())
    }

    /// Unloads the key of an encryption root. `Busy` while a dataset that needs it is in use.
    pub async fn unload_key(&self, name: &str) -> Result<()> {
        let (dir, crypt) = self.encryption_root(name)?;
        if crypt.key.borrow().is_none() {
            return Err(Error::invalid(format!("the key of '{name}' is not loaded")));
        }
        let heads = || {
            self.root()
                .subtree()
                .into_iter()
                .filter(|d| d.crypt().is_some_and(|c| c.root.get() == dir.object))
                .filter_map(|d| d.head())
        };
        let busy = || match heads().find(|h| h.is_used()) {
            Some(head) => Err(Error::new(
                ErrorKind::Busy,
                format!("the key of '{name}' cannot be unloaded: '{}' is in use, unmount it first", head.name()),
            )),
            None => Ok(()),
        };
        busy()?;
        if self.is_writable() {
            // Unsynced changes need the key until they are on disk.
            self.txg().wait_synced(Txg(0)).await?;
            busy()?;
        }
        for head in heads() {
            head.set_objset(None);
        }
        for key in self.keys_of(dir.object) {
            *key.key.borrow_mut() = None;
        }
        self.keys().wrapping.borrow_mut().remove(&dir.object);
        Ok(())
    }
}

/// The error kind of a wrong or missing key.
const WRONG_KEY: ErrorKind = ErrorKind::Denied;

/// The error for a key that is not loaded.
pub(crate) fn key_missing(name: &str, root: &str) -> Error {
    Error::new(
        WRONG_KEY,
        format!("encryption key not loaded: dataset '{name}' needs it, 'zfs load-key {root}' loads it"),
    )
}
