//! Keys of encrypted datasets: key objects, loading and changing keys, new encrypted datasets
//! (format page 12, sections 2 to 4 and 9).
//!
//! Vocabulary. A *key object* in the MOS holds the master key of a directory, encrypted (*wrapped*)
//! with the wrapping key that the user's passphrase or key file gives. A directory that the user
//! gave a key of its own is an *encryption root*; those below it that have none have key objects of
//! their own, which the root's wrapping key opens. A clone shares the key object of its origin.
//!
//! *Loading* a key unwraps the master keys of its root and of everything that inherits from it,
//! after which their object sets open; *unloading* forgets them; *changing* it wraps the same
//! master keys anew, so that no data is rewritten. What is in memory here is lost with the pool:
//! keys are never stored.
//!
//! Keys are in the pool's [`KeyMemory`], which is locked and overwritten; nothing here copies one
//! out of it. They are made from the system's entropy.
//!
//! Blocks and their tags are the business of `zio`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result, ResultExt, Txg};
use codec::crypto::{
    MasterKey, PASSPHRASE_LEN, PBKDF2_ITERS_DEFAULT, PBKDF2_ITERS_MIN, Suite, WRAPPING_KEY_LEN, WrappedKey,
    wrapping_key_from_hex, wrapping_key_from_passphrase,
};
use codec::keymem::{KeyBox, KeyMemory};
use dmu::{Dnode, Tx, zap};
use ondisk::feature::FeatureId;
use ondisk::object_type::ObjectType;
use rt::Rt;
use zio::DataKey;

use crate::dir::Dir;
use crate::pool::DslPool;
use crate::props::PropValue;

/// Entry of a directory's ZAP that names its key object.
const KEY_OBJ: &[u8] = b"com.datto:crypto_key_obj";
/// Version of the keys that are made.
const VERSION: u64 = 1;
/// Most PBKDF2 rounds that are believed: more would only hang whoever loads the key.
const PBKDF2_ITERS_MAX: u64 = 100_000_000;

type WrappingKey = Rc<KeyBox<[u8; WRAPPING_KEY_LEN]>>;

/// In which form the user keeps a key (property `keyformat`).
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

/// What the user typed or keeps in a file; newlines at its end do not count but in raw keys. The
/// memory is the caller's choice.
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

/// How a new dataset is to be encrypted.
#[derive(Clone, Debug, Default)]
pub struct NewCrypt {
    /// `encryption=`: `None` as the parent, `Some(None)` off.
    pub suite: Option<Option<Suite>>,
    /// A key of its own, which makes it an encryption root.
    pub key: Option<NewKey>,
}

/// What is known of a dataset's encryption without its key.
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
    /// Whether the dataset has a key object of its own, which a clone has not.
    pub guid: u64,
}

/// A key object in memory. Directories that are clones of each other share it.
pub(crate) struct KeyObject {
    object: ObjectId,
    wrapped: RefCell<WrappedKey>,
    root: Cell<ObjectId>,
    format: Cell<KeyFormat>,
    salt: Cell<u64>,
    iters: Cell<u64>,
    refcount: Cell<u64>,
    key: RefCell<Option<Rc<DataKey>>>,
}

impl KeyObject {
    /// The key of blocks, if it is loaded.
    pub(crate) fn data_key(&self) -> Option<Rc<DataKey>> {
        self.key.borrow().clone()
    }

    fn open(&self, wrapping: &WrappingKey, memory: &Rc<KeyMemory>) -> Result<Rc<DataKey>> {
        let wrapped = self.wrapped.borrow();
        let master = wrapped.unwrap(wrapping, memory)?;
        Ok(DataKey::new(master, memory.clone(), wrapped.guid, wrapped.version))
    }

    /// Writes what changes with the wrapping.
    async fn store_wrapping(&self, dn: &Dnode, tx: &Tx) -> Result<()> {
        let w = self.wrapped.borrow().clone();
        zap::update_u64(dn, b"DSL_CRYPTO_ROOT_DDOBJ", self.root.get().0, tx).await?;
        zap::update_bytes(dn, b"DSL_CRYPTO_IV", &w.iv, tx).await?;
        zap::update_bytes(dn, b"DSL_CRYPTO_MAC", &w.tag, tx).await?;
        zap::update_bytes(dn, b"DSL_CRYPTO_MASTER_KEY_1", &w.master, tx).await?;
        zap::update_bytes(dn, b"DSL_CRYPTO_HMAC_KEY_1", &w.hmac, tx).await?;
        zap::update_u64(dn, b"keyformat", self.format.get() as u64, tx).await?;
        zap::update_u64(dn, b"pbkdf2salt", self.salt.get(), tx).await?;
        zap::update_u64(dn, b"pbkdf2iters", self.iters.get(), tx).await
    }
}

/// The keys of a pool.
pub(crate) struct Keys {
    memory: Rc<KeyMemory>,
    objects: RefCell<BTreeMap<ObjectId, Rc<KeyObject>>>,
    /// Wrapping keys that are loaded, by the root's directory.
    wrapping: RefCell<BTreeMap<ObjectId, WrappingKey>>,
}

impl Keys {
    /// No keys yet, and the memory for them.
    pub(crate) fn new(rt: &Rt) -> Keys {
        let memory = Rc::new(KeyMemory::new(rt.page_lock()));
        Keys { memory, objects: RefCell::default(), wrapping: RefCell::default() }
    }
}

/// A passphrase on its way to PBKDF2: its bytes, and how many count.
type Passphrase = KeyBox<([u8; *PASSPHRASE_LEN.end()], usize)>;

/// A wrapping key with what is stored to make it again.
#[derive(Clone)]
struct Wrapping {
    key: WrappingKey,
    format: KeyFormat,
    salt: u64,
    iters: u64,
}

fn random<const N: usize>(rt: &Rt) -> [u8; N] {
    let mut out = [0; N];
    rt.entropy(&mut out);
    out
}

/// The wrapping key that the user's key gives. PBKDF2 takes its time: it runs away from the engine.
async fn derive(
    rt: &Rt,
    memory: &KeyMemory,
    format: KeyFormat,
    material: &KeyMaterial,
    (salt, iters): (u64, u64),
) -> Result<WrappingKey> {
    let mut key = KeyBox::new(memory, [0; WRAPPING_KEY_LEN]);
    let text = material.bytes();
    match format {
        KeyFormat::Raw if text.len() == key.len() => key.copy_from_slice(text),
        KeyFormat::Raw => return Err(Error::invalid(format!("a raw key has 32 bytes, not {}", text.len()))),
        KeyFormat::Hex => {
            let digits = wrapping_key_from_hex(text.strip_suffix(b"\n").unwrap_or(text), &mut key);
            digits.ok_or_else(|| Error::invalid("a hex key has 64 hexadecimal digits"))?;
        }
        KeyFormat::Passphrase => {
            let words = passphrase(memory, text)?;
            if iters == 0 || iters > PBKDF2_ITERS_MAX {
                return Err(Error::corrupt(format!("a passphrase cannot be stretched by {iters} rounds")));
            }
            let cost = base::Nanos(iters.saturating_mul(800));
            let stretch = move || {
                let (text, len) = &*words;
                wrapping_key_from_passphrase(&text[..*len], salt, iters as u32, &mut key);
                key
            };
            return Ok(Rc::new(rt.cpu(cost, stretch).await));
        }
    }
    Ok(Rc::new(key))
}

/// What of a typed passphrase counts. Error: too short or too long.
fn passphrase(memory: &KeyMemory, text: &[u8]) -> Result<Passphrase> {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    if !PASSPHRASE_LEN.contains(&text.len()) {
        let (min, max) = (PASSPHRASE_LEN.start(), PASSPHRASE_LEN.end());
        return Err(Error::invalid(format!("a passphrase has {min} to {max} characters, not {}", text.len())));
    }
    let mut words: Passphrase = KeyBox::new(memory, ([0; *PASSPHRASE_LEN.end()], text.len()));
    words.0[..text.len()].copy_from_slice(text);
    Ok(words)
}

/// The wrapping of a key that the user gives for the first time.
async fn new_wrapping(rt: &Rt, memory: &KeyMemory, new: &NewKey) -> Result<Wrapping> {
    let (mut salt, mut iters) = (0, 0);
    if new.format == KeyFormat::Passphrase {
        iters = new.iters.unwrap_or(PBKDF2_ITERS_DEFAULT);
        if !(PBKDF2_ITERS_MIN..=PBKDF2_ITERS_MAX).contains(&iters) {
            return Err(Error::invalid(format!("pbkdf2iters must be at least {PBKDF2_ITERS_MIN}, not {iters}")));
        }
        salt = u64::from_le_bytes(random(rt)).max(1);
    } else if new.iters.is_some() {
        return Err(Error::invalid("pbkdf2iters is for keys of format passphrase"));
    }
    check_location(&new.location)?;
    let key = derive(rt, memory, new.format, &new.material, (salt, iters)).await?;
    Ok(Wrapping { key, format: new.format, salt, iters })
}

/// Checks a value of property `keylocation` for an encryption root.
pub fn check_location(location: &str) -> Result<()> {
    let good = location == "prompt"
        || location.starts_with("file:///")
        || location.starts_with("https://")
        || location.starts_with("http://");
    if good {
        Ok(())
    } else {
        Err(Error::invalid(format!("keylocation '{location}' is neither 'prompt' nor a URL such as file:///etc/key")))
    }
}

/// What [`DslPool::plan_crypt`] has found out about a dataset to be made.
pub(crate) struct CryptPlan {
    suite: Suite,
    /// Root and wrapping; for a root of its own the directory is not there yet.
    root: Option<ObjectId>,
    wrapping: Wrapping,
    location: Option<String>,
}

impl DslPool {
    /// Reads the key object of a directory that has one.
    pub(crate) async fn load_crypt(&self, dn: &Dnode) -> Result<Option<Rc<KeyObject>>> {
        if dn.otype() != ObjectType::OTN_ZAP_METADATA {
            return Ok(None);
        }
        let Some(object) = zap::lookup_u64(dn, KEY_OBJ).await? else { return Ok(None) };
        let object = ObjectId(object);
        let known = self.keys().objects.borrow().get(&object).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let key = self.read_key_object(object).await.at(|| format!("key object {object}"))?;
        let key = Rc::new(key);
        self.keys().objects.borrow_mut().insert(object, key.clone());
        Ok(Some(key))
    }

    async fn read_key_object(&self, object: ObjectId) -> Result<KeyObject> {
        let dn = self.mos().hold(object).await?;
        if dn.otype() != ObjectType::OTN_ZAP_METADATA {
            return Err(Error::corrupt("it is not a ZAP"));
        }
        let optional = async |name: &str| zap::lookup_u64(&dn, name.as_bytes()).await;
        let number = async |name: &str| -> Result<u64> {
            optional(name).await?.ok_or_else(|| Error::corrupt(format!("it has no entry {name}")))
        };
        let bytes = async |name: &str, len: usize| -> Result<Vec<u8>> {
            let value = zap::lookup(&dn, name.as_bytes()).await?;
            let bytes: Vec<u8> = value.iter().flat_map(|v| v.ints().map(|b| b as u8)).collect();
            if bytes.len() == len { Ok(bytes) } else { Err(Error::corrupt(format!("its entry {name} is wrong"))) }
        };
        let suite = number("DSL_CRYPTO_SUITE").await?;
        let suite = Suite::from_u64(suite)
            .ok_or_else(|| Error::unsupported(format!("encryption suite {suite} is not known")))?;
        let version = optional("DSL_CRYPTO_VERSION").await?.unwrap_or(0);
        if version > VERSION {
            return Err(Error::unsupported(format!("version {version} of encryption keys is not known")));
        }
        let format = number("keyformat").await?;
        let wrapped = WrappedKey {
            suite,
            version,
            guid: number("DSL_CRYPTO_GUID").await?,
            iv: bytes("DSL_CRYPTO_IV", 12).await?.try_into().expect("12 bytes"),
            tag: bytes("DSL_CRYPTO_MAC", 16).await?.try_into().expect("16 bytes"),
            master: bytes("DSL_CRYPTO_MASTER_KEY_1", 32).await?.try_into().expect("32 bytes"),
            hmac: bytes("DSL_CRYPTO_HMAC_KEY_1", 64).await?.try_into().expect("64 bytes"),
        };
        Ok(KeyObject {
            object,
            wrapped: RefCell::new(wrapped),
            root: Cell::new(ObjectId(number("DSL_CRYPTO_ROOT_DDOBJ").await?)),
            format: Cell::new(
                KeyFormat::from_u64(format)
                    .ok_or_else(|| Error::unsupported(format!("keyformat {format} is not known")))?,
            ),
            // Of what inherits its key only the root's values count, and old writers left out the
            // others.
            salt: Cell::new(optional("pbkdf2salt").await?.unwrap_or(0)),
            iters: Cell::new(optional("pbkdf2iters").await?.unwrap_or(0)),
            refcount: Cell::new(optional("DSL_CRYPTO_REFCOUNT").await?.unwrap_or(1)),
            key: RefCell::default(),
        })
    }

    /// False once the system refused to lock memory with keys of this pool, so that they may be
    /// swapped.
    pub fn keys_are_locked(&self) -> bool {
        self.keys().memory.is_locked()
    }

    /// What is known of a directory's encryption; `None` if it is not encrypted.
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

    pub(crate) fn is_encryption_root(&self, dir: &Dir) -> bool {
        dir.crypt().is_some_and(|c| c.root.get() == dir.object)
    }

    /// Key objects that the wrapping key of the root opens.
    fn keys_of(&self, root: ObjectId) -> Vec<Rc<KeyObject>> {
        self.keys().objects.borrow().values().filter(|k| k.root.get() == root).cloned().collect()
    }

    /// Loads the key of an encryption root, for it and everything that inherits it. `check_only`:
    /// only whether it is the right one (also when it is loaded). Errors: `Denied` for a wrong key,
    /// `Exists` if it is loaded already.
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
        for key in self.keys_of(dir.object) {
            if key.key.borrow().is_none() {
                let opened = key.open(&wrapping, memory).map_err(|_| {
                    Error::corrupt(format!("key object {} is not encrypted with the key of '{name}'", key.object))
                })?;
                *key.key.borrow_mut() = Some(opened);
            }
        }
        self.keys().wrapping.borrow_mut().insert(dir.object, wrapping);
        Ok(())
    }

    /// Forgets the key of an encryption root. `Busy` while a dataset that needs it is in use.
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
            // What was written last needs the key until it is on disk.
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

    /// Gives a dataset another key, which makes it an encryption root if it was none. The old key
    /// must be loaded.
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
    fn wrapping_of(&self, crypt: &KeyObject) -> Result<(ObjectId, Wrapping)> {
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

    /// Wraps the keys of `dir` and of what inherits through it with another wrapping key, that of
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

    /// Whether a clone may take its origin's place: either the origin's directory is an encryption
    /// root, which moves, or nothing about keys changes, which it would if the two stood below
    /// different roots (format page 12 section 3). Error: `Denied`.
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

    /// Everything that is wrapped with the key of the root `old` has `new` for its root, and so has
    /// `keylocation` (syncing context). The keys stay as they are.
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

    /// Derives the wrapping key that a new dataset brings along, away from the sync.
    pub(crate) async fn prepare_crypt(&self, new: NewCrypt) -> Result<PreparedCrypt> {
        let wrapping = match &new.key {
            Some(key) => Some((new_wrapping(self.ctx().rt(), &self.keys().memory, key).await?, key.location.clone())),
            None => None,
        };
        Ok(PreparedCrypt { suite: new.suite, wrapping })
    }

    /// Decides how a dataset below `parent` is to be encrypted; `None`: not at all.
    pub(crate) fn plan_crypt(&self, name: &str, parent: &Dir, new: &PreparedCrypt) -> Result<Option<CryptPlan>> {
        let inherited = parent.crypt();
        let suite = match (new.suite, &inherited) {
            (Some(None), _) | (None, None) if new.wrapping.is_some() => {
                return Err(Error::invalid(format!("'{name}' is not to be encrypted and needs no key: leave it out")));
            }
            (Some(None), _) | (None, None) => return Ok(None),
            (Some(Some(suite)), _) => suite,
            (None, Some(crypt)) => crypt.wrapped.borrow().suite,
        };
        if !self.features().is_enabled(FeatureId::Encryption) {
            return Err(Error::unsupported(
                "encryption needs the pool feature 'encryption': enable it with 'zpool set feature@encryption=enabled'",
            ));
        }
        if let Some((wrapping, location)) = new.wrapping.clone() {
            return Ok(Some(CryptPlan { suite, root: None, wrapping, location: Some(location) }));
        }
        let Some(crypt) = inherited else {
            return Err(Error::invalid(format!("'{name}' needs a key: say which kind with -o keyformat=passphrase")));
        };
        let (root, wrapping) = self.wrapping_of(&crypt)?;
        Ok(Some(CryptPlan { suite, root: Some(root), wrapping, location: None }))
    }

    /// Makes the key object of a new directory (syncing context).
    pub(crate) async fn make_crypt(&self, dir: &Rc<Dir>, plan: CryptPlan, tx: &Tx) -> Result<()> {
        let rt = self.ctx().rt();
        let memory = &self.keys().memory;
        let master = MasterKey::new(plan.suite, memory, |out| rt.entropy(out));
        let guid = rt.new_guid().0;
        let root = plan.root.unwrap_or(dir.object);
        let dn = zap::create(self.mos(), ObjectType::OTN_ZAP_METADATA, 0, tx).await?;
        zap::add_u64(&dn, b"DSL_CRYPTO_SUITE", plan.suite as u64, tx).await?;
        zap::add_u64(&dn, b"DSL_CRYPTO_GUID", guid, tx).await?;
        zap::add_u64(&dn, b"DSL_CRYPTO_VERSION", VERSION, tx).await?;
        zap::add_u64(&dn, b"DSL_CRYPTO_REFCOUNT", 1, tx).await?;
        let key = Rc::new(KeyObject {
            object: dn.object(),
            wrapped: RefCell::new(master.wrap(&plan.wrapping.key, guid, VERSION, random(rt), memory)),
            root: Cell::new(root),
            format: Cell::new(plan.wrapping.format),
            salt: Cell::new(plan.wrapping.salt),
            iters: Cell::new(plan.wrapping.iters),
            refcount: Cell::new(1),
            key: RefCell::new(Some(DataKey::new(master, memory.clone(), guid, VERSION))),
        });
        key.store_wrapping(&dn, tx).await?;
        zap::add_u64(&self.zapify(dir.object, tx).await?, KEY_OBJ, key.object.0, tx).await?;
        self.keys().objects.borrow_mut().insert(key.object, key.clone());
        dir.set_crypt(Some(key));
        if plan.root.is_none() {
            self.keys().wrapping.borrow_mut().insert(dir.object, plan.wrapping.key);
        }
        if let Some(location) = plan.location {
            self.write_prop(dir, "keylocation", Some(&PropValue::Text(location)), tx).await?;
        }
        Ok(())
    }

    /// Makes `dir`, a clone of something in `origin`, use the same key object (syncing context).
    pub(crate) async fn share_crypt(&self, dir: &Rc<Dir>, origin: &Dir, tx: &Tx) -> Result<()> {
        let Some(key) = origin.crypt() else { return Ok(()) };
        zap::add_u64(&self.zapify(dir.object, tx).await?, KEY_OBJ, key.object.0, tx).await?;
        key.refcount.set(key.refcount.get() + 1);
        let dn = self.mos().hold(key.object).await?;
        zap::update_u64(&dn, b"DSL_CRYPTO_REFCOUNT", key.refcount.get(), tx).await?;
        dir.set_crypt(Some(key));
        Ok(())
    }

    /// The directory is destroyed: its reference to the key object goes, the last one with the
    /// object (syncing context).
    pub(crate) async fn drop_crypt(&self, dir: &Dir, tx: &Tx) -> Result<()> {
        let Some(key) = dir.crypt() else { return Ok(()) };
        dir.set_crypt(None);
        self.keys().wrapping.borrow_mut().remove(&dir.object);
        key.refcount.set(key.refcount.get().saturating_sub(1));
        if key.refcount.get() > 0 {
            let dn = self.mos().hold(key.object).await?;
            return zap::update_u64(&dn, b"DSL_CRYPTO_REFCOUNT", key.refcount.get(), tx).await;
        }
        self.keys().objects.borrow_mut().remove(&key.object);
        self.mos().free(key.object, tx).await
    }

    /// Refuses to move `dir` below `parent` if it inherits its key from elsewhere.
    pub(crate) fn check_crypt_move(&self, dir: &Dir, parent: &Dir) -> Result<()> {
        let Some(crypt) = dir.crypt() else {
            return match parent.crypt() {
                Some(_) => Err(Error::invalid(format!(
                    "'{}' is not encrypted and cannot move below '{}', which is",
                    dir.full_name(),
                    parent.full_name()
                ))),
                None => Ok(()),
            };
        };
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

/// What a wrong key is.
const WRONG_KEY: ErrorKind = ErrorKind::Denied;

/// The error of who needs a key that is not loaded.
pub(crate) fn key_missing(name: &str, root: &str) -> Error {
    Error::new(
        WRONG_KEY,
        format!("encryption key not loaded: dataset '{name}' needs it, 'zfs load-key {root}' loads it"),
    )
}

/// A [`NewCrypt`] whose wrapping key has been derived.
pub(crate) struct PreparedCrypt {
    suite: Option<Option<Suite>>,
    wrapping: Option<(Wrapping, String)>,
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::Pin;

    use base::{Nanos, WallTime};
    use rt::{CpuClass, HostIdentity, TaskId, TimerId, World};

    use super::*;

    /// A world that has entropy and nothing else.
    struct EntropyAlone(Cell<u8>);

    impl World for EntropyAlone {
        fn now(&self) -> Nanos {
            Nanos(0)
        }
        fn wall_clock(&self) -> WallTime {
            WallTime::default()
        }
        fn set_timer(&self, _: Nanos, _: std::task::Waker) -> TimerId {
            unreachable!("no timers")
        }
        fn cancel_timer(&self, _: TimerId) {}
        fn spawn(&self, _: &'static str, _: Pin<Box<dyn Future<Output = ()>>>) -> TaskId {
            unreachable!("no tasks")
        }
        fn rng_u64(&self) -> u64 {
            unreachable!("who knows one number of this generator knows all")
        }
        fn entropy(&self, out: &mut [u8]) {
            out.fill_with(|| self.0.replace(self.0.get().wrapping_add(1)));
        }
        fn cpu(&self, _: Nanos, _: CpuClass, _: Box<dyn FnOnce() + Send>, _: Box<dyn FnOnce()>) {
            unreachable!("no jobs")
        }
        fn charge(&self, _: Nanos) {}
        fn turn(&self) -> Rc<rt::Turn> {
            Rc::default()
        }
        fn physmem_bytes(&self) -> u64 {
            1 << 30
        }
        fn host_identity(&self) -> HostIdentity {
            HostIdentity::default()
        }
        fn current_task(&self) -> TaskId {
            TaskId::NONE
        }
    }

    #[test]
    fn keys_salts_and_ivs_are_entropy() {
        let rt = Rt::new(Rc::new(EntropyAlone(Cell::new(0))));
        assert_eq!(random::<3>(&rt), [0, 1, 2]);
        let memory = Rc::new(KeyMemory::new(rt.page_lock()));
        let master = MasterKey::new(Suite::Aes128Gcm, &memory, |out| rt.entropy(out));
        let key = DataKey::new(master, memory, 1, VERSION);
        // 16 bytes of master key and 64 of HMAC key were taken.
        let (salt, iv) = key.fresh_salt_iv(&rt);
        assert_eq!(salt.to_vec(), (83..91).collect::<Vec<u8>>());
        assert_eq!(iv.to_vec(), (91..103).collect::<Vec<u8>>());
        let (again, next) = key.fresh_salt_iv(&rt);
        assert_eq!((again, next[0]), (salt, 103));
    }

    #[test]
    fn passphrases_have_bounds() {
        let memory = KeyMemory::new(None);
        let counts = |text: &[u8]| passphrase(&memory, text).map(|p| p.1);
        assert_eq!(counts(b"12345678\n").unwrap(), 8);
        assert_eq!(counts(&[b'x'; 512]).unwrap(), 512);
        assert!(counts(b"1234567\n").is_err() && counts(&[b'x'; 513]).is_err());
    }
}
