//! Properties that hold for one mount only (`zfs mount -o`), OpenZFS's temporary properties.
//!
//! The words are mount options (`ro`, `noexec`); each sets a property. While the mount exists this
//! value replaces the stored one, and `zfs get` shows it with the source `temporary` if it differs.
//! Setting or inheriting the property ends that. A mount that is made again (for `zfs rename`, a
//! rollback) keeps them.

use base::{Error, Result};
use dsl::Dir;
use serde::{Deserialize, Serialize};

/// The words of `-o`: word, property, value. `setuid` and `devices` also have the words of
/// mount(8).
const WORDS: &[(&str, &str, bool)] = &[
    ("ro", "readonly", true),
    ("rw", "readonly", false),
    ("readonly=on", "readonly", true),
    ("readonly=off", "readonly", false),
    ("atime", "atime", true),
    ("noatime", "atime", false),
    ("relatime", "relatime", true),
    ("norelatime", "relatime", false),
    ("exec", "exec", true),
    ("noexec", "exec", false),
    ("suid", "setuid", true),
    ("nosuid", "setuid", false),
    ("setuid", "setuid", true),
    ("nosetuid", "setuid", false),
    ("dev", "devices", true),
    ("nodev", "devices", false),
    ("devices", "devices", true),
    ("nodevices", "devices", false),
    ("xattr", "xattr", true),
    ("noxattr", "xattr", false),
];

/// Mount options by their names in messages, in pairs.
const KNOWN: &str =
    "ro/rw, atime/noatime, relatime/norelatime, exec/noexec, suid/nosuid, dev/nodev, xattr/noxattr and remount";

/// Values for one mount; None: the dataset's property.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct TempProps {
    /// `readonly`
    pub readonly: Option<bool>,
    /// `atime`
    pub atime: Option<bool>,
    /// `relatime`
    pub relatime: Option<bool>,
    /// `exec`
    pub exec: Option<bool>,
    /// `setuid`
    pub setuid: Option<bool>,
    /// `devices`
    pub devices: Option<bool>,
    /// `xattr`
    pub xattr: Option<bool>,
    /// Mount over a folder that is not empty despite `overlay=off` (`zfs mount -O`).
    pub over: bool,
    /// Mount it also if it was received redacted (`zfs mount -f`).
    pub redacted: bool,
}

/// A parsed `-o` of `zfs mount`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct MountHow {
    /// The values.
    pub temp: TempProps,
    /// Change an existing mount.
    pub remount: bool,
}

impl MountHow {
    /// Parses words separated by commas; the last word for a property wins.
    pub fn parse<'a>(lists: impl Iterator<Item = &'a str>) -> Result<MountHow> {
        let mut how = MountHow::default();
        for word in lists.flat_map(|l| l.split(',')) {
            if word == "remount" {
                how.remount = true;
                continue;
            }
            let known = WORDS.iter().find(|(w, _, _)| *w == word);
            let Some((_, prop, value)) = known else {
                return Err(Error::invalid(format!("mount option '{word}' is not known: there are {KNOWN}")));
            };
            if let Some(at) = how.temp.slot(prop) {
                *at = Some(*value);
            }
        }
        Ok(how)
    }
}

impl TempProps {
    fn slot(&mut self, prop: &str) -> Option<&mut Option<bool>> {
        Some(match prop {
            "readonly" => &mut self.readonly,
            "atime" => &mut self.atime,
            "relatime" => &mut self.relatime,
            "exec" => &mut self.exec,
            "setuid" => &mut self.setuid,
            "devices" => &mut self.devices,
            "xattr" => &mut self.xattr,
            _ => return None,
        })
    }

    /// The value for this mount, if it has one.
    pub fn get(mut self, prop: &str) -> Option<bool> {
        self.slot(prop).and_then(|at| *at)
    }

    /// Returns to the stored value.
    pub fn clear(&mut self, prop: &str) {
        if let Some(at) = self.slot(prop) {
            *at = None;
        }
    }

    /// The effective number of a property; a temporary "on" keeps the stored kind (`xattr=sa`).
    pub fn number(self, dir: &Dir, prop: &str) -> u64 {
        number(prop, self.get(prop), dir.prop(prop).0.num())
    }

    /// The effective number, if it differs from the stored one.
    pub fn changed(self, dir: &Dir, prop: &str) -> Option<u64> {
        let stored = dir.prop(prop).0.num();
        let counts = number(prop, self.get(prop), stored);
        (counts != stored).then_some(counts)
    }
}

fn number(prop: &str, temporary: Option<bool>, stored: u64) -> u64 {
    match temporary {
        // `xattr` means `sa`, as `xattr=on` does.
        Some(true) if prop == "xattr" && stored == 0 => 2,
        Some(on) if on != (stored != 0) => u64::from(on),
        _ => stored,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_words_with_commas() {
        let of = |lists: &[&str]| MountHow::parse(lists.iter().copied()).unwrap();
        assert_eq!(of(&["ro"]).temp, TempProps { readonly: Some(true), ..TempProps::default() });
        let all = of(&["ro,noatime,exec", "nosuid,nodev", "noxattr,rw,remount,relatime"]);
        let want = TempProps {
            readonly: Some(false),
            atime: Some(false),
            relatime: Some(true),
            exec: Some(true),
            setuid: Some(false),
            devices: Some(false),
            xattr: Some(false),
            over: false,
            redacted: false,
        };
        assert_eq!(all, MountHow { temp: want, remount: true });
        for bad in ["", "rx", "ro,", "remount=on", "nbmand", "readonly=maybe"] {
            let e = MountHow::parse([bad].into_iter()).unwrap_err().to_string();
            assert!(e.contains("is not known") && e.contains("remount"), "{e}");
        }
        // Each word has a place.
        for (word, prop, value) in WORDS {
            assert_eq!(of(&[word]).temp.get(prop), Some(*value), "{word}");
        }
    }

    #[test]
    fn what_is_on_keeps_its_kind() {
        for (temporary, stored, want) in
            [(None, 2, 2), (Some(true), 2, 2), (Some(true), 1, 1), (Some(false), 2, 0), (Some(false), 0, 0)]
        {
            assert_eq!(number("xattr", temporary, stored), want);
        }
        assert_eq!((number("atime", Some(true), 0), number("xattr", Some(true), 0)), (1, 2));
    }
}
