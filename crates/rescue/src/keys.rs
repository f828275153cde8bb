//! Keys of encrypted datasets: from key files of the user, tried on every encryption root.
//!
//! A key file holds what `zfs load-key` would be given: 32 raw bytes, 64 hexadecimal digits, or a
//! passphrase. The format is in the key object of the encryption root, and so are salt and rounds
//! of a passphrase. That a key is right is known from the MAC of the master key that it wraps.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use base::{Error, ErrorKind, Result, ResultExt};
use codec::crypto::{Suite, WRAPPING_KEY_LEN, WrappedKey, wrapping_key_from_hex, wrapping_key_from_passphrase};
use codec::keymem::{KeyBox, KeyMemory};
use zio::DataKey;

use crate::tree::{Entries, Lookup, Objset};

/// Most PBKDF2 rounds that are accepted from disk: more would only take hours.
const ROUNDS_MAX: u64 = 10_000_000;
/// Largest key file.
const FILE_MAX: u64 = 64 << 10;
/// Entry of a directory's ZAP that names its key object.
const KEY_OBJ: &str = "com.datto:crypto_key_obj";

/// `keyformat` in key objects (format page 12 section 2).
mod format {
    pub(super) const RAW: u64 = 1;
    pub(super) const HEX: u64 = 2;
    pub(super) const PASSPHRASE: u64 = 3;
}

/// A wrapping key.
type Derived = Rc<KeyBox<[u8; WRAPPING_KEY_LEN]>>;
/// The file, format, salt and rounds that a wrapping key is made of.
type MadeOf = (usize, u64, u64, u64);

/// The keys of the user.
pub struct Keys {
    files: Vec<Vec<u8>>,
    memory: Rc<KeyMemory>,
    derived: RefCell<BTreeMap<MadeOf, Option<Derived>>>,
}

impl Keys {
    /// Reads the key files.
    pub fn read(files: &[PathBuf]) -> Result<Keys> {
        let mut all = Vec::new();
        for path in files {
            let say = |e: std::io::Error| Error::new(ErrorKind::Io, format!("key file {}: {e}", path.display()));
            if std::fs::metadata(path).map_err(say)?.len() > FILE_MAX {
                return Err(Error::invalid(format!("key file {} is no key: it is too large", path.display())));
            }
            all.push(std::fs::read(path).map_err(say)?);
        }
        Ok(Keys { files: all, memory: Rc::new(KeyMemory::new(None)), derived: RefCell::default() })
    }

    /// The key of the datasets of directory `dir`, by the first of these states of the MOS that has
    /// its key object. Error: the key object is lost, or no key file opens it.
    pub fn of_dir(&self, stack: &[Objset], dir: u64) -> Result<Rc<DataKey>> {
        let mut last = Error::not_found("it has no key object");
        for mos in stack {
            match self.of_dir_in(mos, dir) {
                Ok(key) => return Ok(key),
                // That no key fits is the same in every state.
                Err(e) if e.kind() == ErrorKind::Denied => return Err(e),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    fn of_dir_in(&self, mos: &Objset, dir: u64) -> Result<Rc<DataKey>> {
        let own = key_object(mos, dir)?;
        let root = own.u64("DSL_CRYPTO_ROOT_DDOBJ").filter(|r| *r != dir);
        let of_root = root.map(|r| key_object(mos, r)).transpose()?;
        let params = of_root.as_ref().unwrap_or(&own);
        let wrapped = wrapped_key(&own)?;
        let kind = params.u64("keyformat").unwrap_or(0);
        let (salt, rounds) = (params.u64("pbkdf2salt").unwrap_or(0), params.u64("pbkdf2iters").unwrap_or(0));
        for n in 0..self.files.len() {
            let Some(wrapping) = self.wrapping(n, kind, salt, rounds) else { continue };
            if let Ok(master) = wrapped.unwrap(&wrapping, &self.memory) {
                return Ok(DataKey::new(master, self.memory.clone(), wrapped.guid, wrapped.version));
            }
        }
        Err(Error::new(
            ErrorKind::Denied,
            if self.files.is_empty() {
                "it is encrypted: give its key with --key-file"
            } else {
                "it is encrypted, and no key file has its key"
            },
        ))
    }

    /// The wrapping key that file `n` is in a format, if it can be one.
    fn wrapping(&self, n: usize, kind: u64, salt: u64, rounds: u64) -> Option<Derived> {
        let of = (n, kind, salt, rounds);
        if let Some(known) = self.derived.borrow().get(&of) {
            return known.clone();
        }
        let text = &self.files[n][..];
        let line = text.strip_suffix(b"\n").unwrap_or(text);
        let mut key = KeyBox::new(&self.memory, [0; WRAPPING_KEY_LEN]);
        let good = match kind {
            format::RAW if text.len() == WRAPPING_KEY_LEN => {
                key.copy_from_slice(text);
                true
            }
            format::HEX => wrapping_key_from_hex(line, &mut key).is_some(),
            format::PASSPHRASE if (1..=ROUNDS_MAX).contains(&rounds) && !line.is_empty() => {
                wrapping_key_from_passphrase(line, salt, rounds as u32, &mut key);
                true
            }
            _ => false,
        };
        let made = good.then(|| Rc::new(key));
        self.derived.borrow_mut().insert(of, made.clone());
        made
    }
}

/// The key object of a directory.
fn key_object(mos: &Objset, dir: u64) -> Result<Entries> {
    let zap = |num: u64| match mos.find(num) {
        Lookup::There(o) => Ok(o.entries()),
        Lookup::Free => Err(Error::not_found(format!("there is no object {num}"))),
        Lookup::Lost(e) => Err(e),
    };
    let num = zap(dir)?.u64(KEY_OBJ).ok_or_else(|| Error::not_found("it has no key object"))?;
    zap(num).at(|| "key object")
}

fn wrapped_key(e: &Entries) -> Result<WrappedKey> {
    let lost = |what: &str| Error::corrupt(format!("key object: {what} is lost"));
    let suite = e.u64("DSL_CRYPTO_SUITE").ok_or_else(|| lost("the suite"))?;
    Ok(WrappedKey {
        suite: Suite::from_u64(suite)
            .ok_or_else(|| Error::unsupported(format!("encryption suite {suite} is not known")))?,
        guid: e.u64("DSL_CRYPTO_GUID").ok_or_else(|| lost("the guid"))?,
        version: e.u64("DSL_CRYPTO_VERSION").unwrap_or(0),
        iv: e.bytes("DSL_CRYPTO_IV").ok_or_else(|| lost("the IV"))?,
        tag: e.bytes("DSL_CRYPTO_MAC").ok_or_else(|| lost("the MAC"))?,
        master: e.bytes("DSL_CRYPTO_MASTER_KEY_1").ok_or_else(|| lost("the master key"))?,
        hmac: e.bytes("DSL_CRYPTO_HMAC_KEY_1").ok_or_else(|| lost("the HMAC key"))?,
    })
}
