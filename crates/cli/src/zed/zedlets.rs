//! Which programs are run for an event.
//!
//! A zedlet is named after the class of events that it is for: the class
//! (`ereport.fs.zfs.checksum`), what is left of it without its first three words (`checksum`), or
//! `all`, and behind that anything that does not begin with a letter (`checksum-mail.sh`). There is
//! no other special name: OpenZFS's `generic-notify.sh` is a pattern to copy from.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use base::{Error, ErrorKind, Result};

use super::log::{Level, Log};

/// `PATH` of zedlets: that of the C library.
pub const PATH: &str = "/usr/bin:/bin:/usr/sbin:/sbin";
/// Behind the class in the name of a zedlet that runs alone, as since OpenZFS 2.2.
const ALONE: &str = "-sync-";

/// How a zedlet is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Run {
    /// Beside others.
    Beside,
    /// While no other runs.
    Alone,
}

/// A class without its first three words, which are `*.fs.zfs`.
pub fn subclass(class: &str) -> &str {
    class.splitn(4, '.').nth(3).unwrap_or(class)
}

/// Whether a zedlet of that name is for events of `class`, and how it is run.
pub fn matching(name: &str, class: &str) -> Option<Run> {
    [class, subclass(class), "all"].into_iter().find_map(|prefix| {
        let rest = name.strip_prefix(prefix)?;
        let is_for = !prefix.is_empty() && !rest.starts_with(|c: char| c.is_ascii_alphabetic());
        let alone = rest.len() > ALONE.len() && rest.starts_with(ALONE);
        is_for.then_some(if alone { Run::Alone } else { Run::Beside })
    })
}

/// Why a file is no zedlet, if it is none: another user could make this one's rights his own.
fn objection(meta: &std::fs::Metadata, uid: u32, force: bool) -> Option<(Level, &'static str)> {
    let mode = meta.mode();
    if !meta.is_file() {
        return Some((Level::Info, "is no regular file"));
    }
    // zed.rc and what else zedlets need is in the folder too.
    if mode & 0o100 == 0 {
        return Some((Level::Info, "is not executable by its owner"));
    }
    let why = match () {
        () if force => None,
        () if meta.uid() != 0 && meta.uid() != uid => Some("belongs to another user"),
        () if mode & 0o020 != 0 => Some("is writable by its group"),
        () if mode & 0o002 != 0 => Some("is writable by everybody"),
        () => None,
    };
    why.map(|why| (Level::Notice, why))
}

/// The names of the zedlets of a folder, in order; says which files are none.
pub fn scan(folder: &Path, force: bool, log: &Log) -> Result<Vec<String>> {
    let failed = |e: std::io::Error| {
        Error::new(ErrorKind::Io, format!("the folder of zedlets '{}' cannot be read: {e}", folder.display()))
    };
    let uid = host::effective_uid();
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        let Ok(name) = entry.file_name().into_string() else {
            log.say(Level::Notice, &format!("'{}' is no zedlet: its name is not UTF-8", path.display()));
            continue;
        };
        if name.starts_with('.') {
            continue;
        }
        match std::fs::metadata(&path).map(|meta| objection(&meta, uid, force)) {
            Ok(None) => names.push(name),
            Ok(Some((level, why))) => log.say(level, &format!("'{}' is no zedlet: it {why}", path.display())),
            Err(e) => log.say(Level::Warning, &format!("'{}' is no zedlet: {e}", path.display())),
        }
    }
    names.sort();
    names.iter().for_each(|name| log.say(Level::Info, &format!("'{name}' is a zedlet")));
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn names_say_for_which_events() {
        let checksum = "ereport.fs.zfs.checksum";
        for (name, class, want) in [
            ("all-debug.sh", checksum, Some(Run::Beside)),
            ("all", checksum, Some(Run::Beside)),
            ("alla.sh", checksum, None),
            ("checksum-mail.sh", checksum, Some(Run::Beside)),
            ("checksum_2", checksum, Some(Run::Beside)),
            ("checksums.sh", checksum, None),
            ("check", checksum, None),
            ("ereport.fs.zfs.checksum.sh", checksum, Some(Run::Beside)),
            ("ereport.fs.zfs-x", checksum, None),
            ("generic-notify.sh", checksum, None),
            ("vdev.open_failed-x", "ereport.fs.zfs.vdev.open_failed", Some(Run::Beside)),
            ("open_failed-x", "ereport.fs.zfs.vdev.open_failed", None),
            ("statechange-sync-led.sh", "resource.fs.zfs.statechange", Some(Run::Alone)),
            ("all-sync-x", "resource.fs.zfs.statechange", Some(Run::Alone)),
            ("statechange-sync-", "resource.fs.zfs.statechange", Some(Run::Beside)),
            ("odd-x", "odd", Some(Run::Beside)),
            // Classes that no pool makes.
            ("-x", "", None),
            ("all-x", "", Some(Run::Beside)),
            ("-x", "a.b.c.", None),
            ("é", "a.b.c.é", Some(Run::Beside)),
        ] {
            assert_eq!(matching(name, class), want, "{name} for {class}");
        }
    }

    #[test]
    fn files_that_others_can_change_are_no_zedlets() {
        let dir = host::TempDir::new("zedlets").unwrap();
        for (name, mode) in
            [("b", 0o755), ("a", 0o700), (".hidden", 0o755), ("zed.rc", 0o644), ("group", 0o775), ("all", 0o757)]
        {
            std::fs::write(dir.join(name), "").unwrap();
            set_permissions(dir.join(name), Permissions::from_mode(mode)).unwrap();
        }
        std::fs::create_dir(dir.join("folder")).unwrap();
        std::os::unix::fs::symlink("a", dir.join("link")).unwrap();
        std::os::unix::fs::symlink("nothing", dir.join("dangling")).unwrap();
        let log = Log::to_stderr(false);
        assert_eq!(scan(dir.path(), false, &log).unwrap(), ["a", "b", "link"]);
        assert_eq!(scan(dir.path(), true, &log).unwrap(), ["a", "all", "b", "group", "link"]);
        let missing = scan(&dir.join("none"), false, &log).unwrap_err().to_string();
        assert!(missing.starts_with("the folder of zedlets '") && missing.contains("cannot be read"), "{missing}");
        let meta = std::fs::metadata(dir.join("a")).unwrap();
        let owner = meta.uid();
        assert_eq!(objection(&meta, owner, false), None);
        if owner != 0 {
            assert!(objection(&meta, owner + 1, false).is_some());
        }
    }
}
