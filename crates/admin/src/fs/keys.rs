//! The keys of encrypted datasets: load, unload, change, on the pool's engine thread.

use base::{Error, ErrorKind, Result};
use codec::crypto::Suite;
use dsl::crypto::{KeyFormat, KeyMaterial, NewCrypt, NewKey};

use crate::engine::{PoolEngine, say};
use crate::keeper::Level;
use crate::request::Secret;
use crate::view::KeyView;

/// Removes the encryption properties from those of a new file system; `key` is from a prompt or a
/// file.
pub fn take_crypt(props: &mut Vec<(String, String)>, key: Option<Secret>) -> Result<NewCrypt> {
    let mut take = |name: &str| {
        let value = props.iter().rfind(|(n, _)| n == name).map(|(_, v)| v.clone());
        props.retain(|(n, _)| n != name);
        value
    };
    let suite = match take("encryption").as_deref() {
        None => None,
        Some("off") => Some(None),
        Some(text) => Some(Some(Suite::parse(text).ok_or_else(|| {
            Error::invalid(format!(
                "'{text}' is no value of encryption: use on, off, or aes-128-, aes-192-, aes-256- with ccm or gcm"
            ))
        })?)),
    };
    let (format, location, iters) = (take("keyformat"), take("keylocation"), take("pbkdf2iters"));
    let Some(format) = format else {
        if location.is_some() || iters.is_some() {
            return Err(Error::invalid("keylocation and pbkdf2iters need a keyformat beside them"));
        }
        return Ok(NewCrypt { suite, key: None });
    };
    Ok(NewCrypt { suite, key: Some(new_key(&format, location, iters.as_deref(), key)?) })
}

fn new_key(format: &str, location: Option<String>, iters: Option<&str>, key: Option<Secret>) -> Result<NewKey> {
    let format = KeyFormat::parse(format)
        .ok_or_else(|| Error::invalid(format!("'{format}' is no value of keyformat: use passphrase, hex or raw")))?;
    let iters = match iters {
        Some(text) => Some(text.parse().map_err(|_| Error::invalid(format!("pbkdf2iters is a number, not '{text}'")))?),
        None => None,
    };
    let Secret(bytes) = key.ok_or_else(|| Error::invalid("the key itself is missing"))?;
    let location = location.unwrap_or_else(|| "prompt".into());
    Ok(NewKey { format, material: KeyMaterial::new(bytes), iters, location })
}

impl PoolEngine {
    /// The encryption roots at `name`, and below it if `recursive`.
    pub async fn keys(&self, name: &str, recursive: bool) -> Result<Vec<KeyView>> {
        let dsl = self.pool.dsl();
        let name = self.resolve(name)?;
        let dir = dsl
            .find_dir(&name)
            .map_err(|_| Error::not_found(format!("cannot open '{name}': dataset does not exist")))?;
        let names = if recursive { dsl.encryption_roots(&name)? } else { vec![dir.full_name()] };
        let mut out = Vec::new();
        for name in names {
            let dir = dsl.find_dir(&name)?;
            let info =
                dsl.crypt_info(&dir).ok_or_else(|| Error::invalid(format!("dataset '{name}' is not encrypted")))?;
            let location = dir.prop("keylocation").0.text().to_string();
            out.push(KeyView {
                name,
                root: info.root,
                format: info.format.name().into(),
                location,
                available: info.available,
            });
        }
        Ok(out)
    }

    /// `zfs load-key`.
    pub async fn load_key(&self, name: &str, key: Secret, check_only: bool) -> Result<()> {
        let _admin = self.admin.acquire(1).await;
        let name = self.resolve(name)?;
        let dsl = self.pool.dsl();
        let loaded = dsl.load_key(&name, &KeyMaterial::new(key.0), check_only).await;
        self.warn_of_swap();
        loaded.map_err(|e| e.at(format!("cannot load the key of '{name}'")))
    }

    /// Warns in the log, once for each import, that keys may be swapped.
    fn warn_of_swap(&self) {
        if !self.pool.dsl().keys_are_locked() && !self.warned_of_swap.replace(true) {
            let why = "the system does not let the daemon lock more memory";
            let text =
                format!("pool '{}': its keys may be written to swap: {why}: raise RLIMIT_MEMLOCK", self.pool.name());
            say(Level::Warning, &text);
        }
    }

    /// `zfs unload-key`.
    pub async fn unload_key(&self, name: &str) -> Result<()> {
        let _admin = self.admin.acquire(1).await;
        let name = self.resolve(name)?;
        self.pool.dsl().unload_key(&name).await.map_err(|e| e.at(format!("cannot unload the key of '{name}'")))
    }

    /// `zfs change-key`; `props`: keyformat, keylocation, pbkdf2iters. Properties that are not
    /// given stay.
    pub async fn change_key(&self, name: &str, props: &[(String, String)], key: Option<Secret>) -> Result<()> {
        let _admin = self.admin.acquire(1).await;
        let name = self.resolve(name)?;
        self.change_key_inner(&name, props, key).await.map_err(|e| e.at(format!("cannot change the key of '{name}'")))
    }

    async fn change_key_inner(&self, name: &str, props: &[(String, String)], key: Option<Secret>) -> Result<()> {
        let dsl = self.pool.dsl();
        let Some(key) = key else { return dsl.inherit_key(name).await };
        let dir = dsl.find_dir(name)?;
        let info = dsl.crypt_info(&dir).ok_or_else(|| Error::invalid(format!("dataset '{name}' is not encrypted")))?;
        if let Some((other, _)) =
            props.iter().find(|(n, _)| !matches!(n.as_str(), "keyformat" | "keylocation" | "pbkdf2iters"))
        {
            return Err(Error::new(ErrorKind::Invalid, format!("property '{other}' cannot be changed with the key")));
        }
        let given = |wanted: &str| props.iter().rfind(|(n, _)| n == wanted).map(|(_, v)| v.clone());
        let format = given("keyformat").unwrap_or_else(|| info.format.name().into());
        let location = given("keylocation").or_else(|| {
            let now = dir.prop("keylocation").0.text().to_string();
            (info.is_root && now != "none").then_some(now)
        });
        dsl.change_key(name, new_key(&format, location, given("pbkdf2iters").as_deref(), Some(key))?).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_become_a_way_to_encrypt() {
        let parse = |props: &[(&str, &str)], key: Option<&str>| {
            let mut all: Vec<(String, String)> = props.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
            take_crypt(&mut all, key.map(|k| Secret(k.as_bytes().into()))).map(|c| (c, all))
        };
        let (crypt, rest) = parse(&[("encryption", "on"), ("atime", "off"), ("keyformat", "hex")], Some("00")).unwrap();
        assert_eq!(crypt.suite, Some(Some(Suite::Aes256Gcm)));
        assert_eq!(crypt.key.unwrap().location, "prompt");
        assert_eq!(rest, [("atime".to_string(), "off".to_string())]);
        assert_eq!(parse(&[("encryption", "off")], None).unwrap().0.suite, Some(None));
        for bad in [
            &[("encryption", "rot13")][..],
            &[("keylocation", "prompt")],
            &[("keyformat", "passphrase")],
            &[("keyformat", "long")],
        ] {
            assert!(parse(bad, None).is_err(), "{bad:?}");
        }
        assert!(parse(&[("keyformat", "hex"), ("pbkdf2iters", "many")], Some("00")).is_err());
    }
}
