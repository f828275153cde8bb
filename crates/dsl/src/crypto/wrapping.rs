//! Wrapping keys: made from the user's passphrase, hex or raw key (format page 12, section 2).
//!
//! A passphrase is stretched by PBKDF2 with a salt and a number of rounds, which the key object
//! stores; raw and hex keys are the wrapping key itself. All copies are in [`KeyMemory`].

use std::rc::Rc;

use base::{Error, Result};
use codec::crypto::{
    PASSPHRASE_LEN, PBKDF2_ITERS_DEFAULT, PBKDF2_ITERS_MIN, WRAPPING_KEY_LEN, wrapping_key_from_hex,
    wrapping_key_from_passphrase,
};
use codec::keymem::{KeyBox, KeyMemory};
use rt::Rt;

use super::{KeyFormat, KeyMaterial, NewKey};

/// Most PBKDF2 rounds that are accepted from disk: more would only block `load-key` for hours.
const PBKDF2_ITERS_MAX: u64 = 100_000_000;

pub(super) type WrappingKey = Rc<KeyBox<[u8; WRAPPING_KEY_LEN]>>;

/// A passphrase for PBKDF2: its bytes and length.
type Passphrase = KeyBox<([u8; *PASSPHRASE_LEN.end()], usize)>;

/// A wrapping key with the stored parameters to derive it again.
#[derive(Clone)]
pub(crate) struct Wrapping {
    pub(super) key: WrappingKey,
    pub(super) format: KeyFormat,
    pub(super) salt: u64,
    pub(super) iters: u64,
}

pub(super) fn random<const N: usize>(rt: &Rt) -> [u8; N] {
    let mut out = [0; N];
    rt.entropy(&mut out);
    out
}

/// Derives the wrapping key from the user's key. PBKDF2 is slow: it runs on the CPU pool.
pub(super) async fn derive(
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
        KeyFormat::Raw => return Err(raw_length(text.len())),
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

fn raw_length(len: usize) -> Error {
    Error::invalid(format!("a raw key has {WRAPPING_KEY_LEN} bytes, not {len}"))
}

/// Checks a new key of the user without the work that [`new_wrapping`] is: all that can be wrong
/// with it.
pub(super) fn check(new: &NewKey) -> Result<()> {
    let (memory, text) = (KeyMemory::new(None), new.material.bytes());
    check_iters(new)?;
    check_location(&new.location)?;
    match new.format {
        KeyFormat::Raw if text.len() != WRAPPING_KEY_LEN => Err(raw_length(text.len())),
        KeyFormat::Raw => Ok(()),
        KeyFormat::Hex => {
            let mut key = KeyBox::new(&memory, [0; WRAPPING_KEY_LEN]);
            let digits = wrapping_key_from_hex(text.strip_suffix(b"\n").unwrap_or(text), &mut key);
            digits.ok_or_else(|| Error::invalid("a hex key has 64 hexadecimal digits"))
        }
        KeyFormat::Passphrase => passphrase(&memory, text).map(drop),
    }
}

/// Checks the rounds of a new key; those that it will have, 0 if it is no passphrase.
fn check_iters(new: &NewKey) -> Result<u64> {
    if new.format != KeyFormat::Passphrase {
        return match new.iters {
            None => Ok(0),
            Some(_) => Err(Error::invalid("pbkdf2iters is for keys of format passphrase")),
        };
    }
    let iters = new.iters.unwrap_or(PBKDF2_ITERS_DEFAULT);
    if !(PBKDF2_ITERS_MIN..=PBKDF2_ITERS_MAX).contains(&iters) {
        return Err(Error::invalid(format!("pbkdf2iters must be at least {PBKDF2_ITERS_MIN}, not {iters}")));
    }
    Ok(iters)
}

/// A typed passphrase without its newline. Error: too short or too long.
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

/// The wrapping of a new key of the user.
pub(super) async fn new_wrapping(rt: &Rt, memory: &KeyMemory, new: &NewKey) -> Result<Wrapping> {
    let iters = check_iters(new)?;
    let salt = if new.format == KeyFormat::Passphrase { u64::from_le_bytes(random(rt)).max(1) } else { 0 };
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::Future;
    use std::pin::Pin;

    use base::{Nanos, WallTime};
    use rt::{CpuClass, HostIdentity, TaskId, TimerId, World};

    use codec::crypto::{MasterKey, Suite};
    use zio::DataKey;

    use super::super::key_object::VERSION;
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
