//! Cache files: the configurations of imported pools in a file, as OpenZFS keeps them (property
//! `cachefile`, `zpool import -c`).
//!
//! A cache file is a packed nvlist that has, under the name of each pool, the configuration that
//! the MOS has. The commands that make, import, change and export a pool write the file that its
//! property names, and so does a thread whenever a pool has written another configuration by itself
//! (the end of a removal, [`PoolSet::follow_configs`]); pools in one file take turns. weir does not
//! need it, since it remembers its pools elsewhere ([`crate::keeper`]): without the property there
//! is none, but where the daemon was told to keep one ([`PoolSet::keep_cache_file`]).
//!
//! Of a file that is read only guids and paths are used: the devices themselves say the rest. A
//! device may have another name in its folder now, so the folders are searched.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use base::{Error, Result, ResultExt};
use ondisk::nvlist::{NvList, NvValue};
use ondisk::vdev_config::VdevConfig;

use crate::engine::PoolEngine;
use crate::keeper::Level;
use crate::pool_set::{PoolSet, Running};

/// The file that OpenZFS uses if nothing is said.
const USUAL: &str = "/etc/zfs/zpool.cache";
/// The largest file that is read, in bytes; a pool of a hundred disks has some 100 KiB.
const SIZE_MAX: u64 = 64 << 20;

/// The value of the property `cachefile`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum CacheFile {
    /// Nothing said: the file that the daemon keeps, if it keeps one.
    #[default]
    Usual,
    /// `none`
    None,
    /// This file.
    At(PathBuf),
}

impl CacheFile {
    /// The value that a command gives. A file has to be named by its path, in a folder that is
    /// there; a file that is there has to be a cache file, or empty.
    pub fn parse(value: &str) -> Result<CacheFile> {
        match value {
            "" => return Ok(CacheFile::Usual),
            "none" => return Ok(CacheFile::None),
            _ => {}
        }
        let path = Path::new(value);
        let bad = |what: String| Error::invalid(format!("property 'cachefile': {what}"));
        if !path.is_absolute() {
            return Err(bad(format!("'{value}' must be empty, an absolute path, or 'none'")));
        }
        let folder = path.parent().filter(|_| path.file_name().is_some() && !value.ends_with(['/', '.']));
        let folder = folder.ok_or_else(|| bad(format!("'{value}' is not a valid file")))?;
        if !folder.is_dir() {
            return Err(bad(format!("'{}' is not a valid directory", folder.display())));
        }
        if path.is_dir() {
            return Err(bad(format!("'{value}' is a directory")));
        }
        if let Err(e) = read(path) {
            return Err(bad(format!("'{value}' cannot be used: {e}; name another file, or remove it")));
        }
        Ok(CacheFile::At(path.to_path_buf()))
    }

    /// The file to write; `kept` is that of the daemon.
    fn path(&self, kept: Option<&Path>) -> Option<PathBuf> {
        match self {
            CacheFile::At(path) => Some(path.clone()),
            CacheFile::Usual => kept.map(Path::to_path_buf),
            CacheFile::None => None,
        }
    }

    /// The value as `zpool get` shows it; none: the default.
    pub fn shown(&self) -> Option<String> {
        match self {
            CacheFile::Usual => None,
            CacheFile::None => Some("none".into()),
            CacheFile::At(path) => path.to_str().filter(|p| *p != USUAL).map(str::to_string),
        }
    }
}

/// The writer of cache files: one change at a time.
#[derive(Default)]
pub(crate) struct CacheFiles {
    turn: Mutex<()>,
    /// That of pools whose property says nothing.
    kept: OnceLock<PathBuf>,
    /// Where pools say that they have another configuration.
    pub(crate) changes: Arc<Changes>,
}

/// The pools, by name, whose configuration on disk has changed.
#[derive(Default)]
pub struct Changes(Mutex<BTreeSet<String>>, Condvar);

impl Changes {
    pub(crate) fn add(&self, pool: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(pool.to_string());
        self.1.notify_all();
    }

    /// Waits until there are some, and takes them.
    fn take(&self) -> BTreeSet<String> {
        let pools = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut pools = self.1.wait_while(pools, |p| p.is_empty()).unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *pools)
    }
}

/// What a cache file has; nothing, if it is not there or empty.
fn read(file: &Path) -> Result<NvList> {
    let fail = |e: std::io::Error| Error::invalid(format!("the cache file cannot be read: {e}"));
    let len = match std::fs::metadata(file) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => 0,
        found => found.map_err(fail)?.len(),
    };
    if len > SIZE_MAX {
        return Err(Error::invalid(format!("{len} bytes are no cache file")));
    }
    match len {
        0 => Ok(NvList::new()),
        _ => NvList::decode(&std::fs::read(file).map_err(fail)?).at(|| "it is no cache file"),
    }
}

/// The guid of a configuration.
fn guid_of(config: &NvValue) -> Option<u64> {
    match config {
        NvValue::List(list) => list.require_u64("pool_guid").ok(),
        _ => None,
    }
}

impl CacheFiles {
    /// Puts the configuration of the pool `guid`, under its name, into `file`, in place of the one
    /// that it has; none: takes it out. A file without pools is removed.
    pub(crate) fn write(&self, file: &Path, guid: u64, config: Option<(&str, NvList)>) -> Result<()> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let place = || format!("cannot write the cache file '{}'", file.display());
        // A file that cannot be read keeps the entries of other pools.
        let old = read(file).at(place)?;
        let mut new = NvList::new();
        for (name, config) in old.iter().filter(|(_, config)| guid_of(config).is_some_and(|g| g != guid)) {
            new.push(name, config.clone());
        }
        if let Some((name, config)) = config {
            new.put(name, NvValue::List(config));
        }
        let fail = |e: std::io::Error| Error::new(base::ErrorKind::Io, e.to_string()).at(place());
        if new.is_empty() {
            return match std::fs::remove_file(file) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(fail(e)),
                _ => Ok(()),
            };
        }
        let mut next = file.as_os_str().to_owned();
        next.push(".tmp");
        std::fs::write(&next, new.encode_xdr()).map_err(fail)?;
        std::fs::rename(&next, file).map_err(fail)
    }
}

impl PoolEngine {
    /// The file to write. As in OpenZFS, a pool with an alternate root is in none by itself.
    fn cache_path(&self, kept: Option<&Path>) -> Option<PathBuf> {
        self.cache_file.borrow().path(kept.filter(|_| self.altroot.is_none()))
    }
}

impl PoolSet {
    /// Pools whose property says nothing are in this file. Before [`PoolSet::start`].
    pub fn keep_cache_file(&self, file: PathBuf) {
        let _ = self.cache_files.kept.set(file);
    }

    /// Updates the cache files of pools that change their configuration; never ends.
    pub fn follow_configs(&self) {
        loop {
            for pool in self.cache_files.changes.take() {
                // A pool that is being exported leaves its file for good.
                let _namespace = self.namespace();
                if let Some(running) = self.running(&pool) {
                    self.update_cache_file(&running, None);
                }
            }
        }
    }

    /// The cache file of a pool.
    pub(crate) fn cache_file_of(&self, running: &Running) -> Option<PathBuf> {
        let kept = self.cache_files.kept.get().cloned();
        running.thread.with_pool(|e| async move { Ok(e.cache_path(kept.as_deref())) }).unwrap_or_default()
    }

    /// Takes a pool out of a cache file. A failure is logged.
    pub(crate) fn leave_cache_file(&self, file: Option<&Path>, guid: u64) {
        if let Some(Err(e)) = file.map(|file| self.cache_files.write(file, guid, None)) {
            self.keeper.say(Level::Warning, &e.to_string());
        }
    }

    /// Writes the configuration of a pool to its cache file, and takes it out of the one that it
    /// was in `before`. A failure is logged, as it does not concern the pool.
    pub(crate) fn update_cache_file(&self, running: &Running, before: Option<&Path>) {
        let kept = self.cache_files.kept.get().cloned();
        let entry = |e: Rc<PoolEngine>| async move {
            Ok(e.cache_path(kept.as_deref()).map(|file| (file, e.pool.mos_config())))
        };
        let entry = running.thread.with_pool(entry);
        let file = entry.as_ref().ok().and_then(Option::as_ref).map(|(file, _)| file);
        self.leave_cache_file(before.filter(|b| file.is_none_or(|f| f != b)), running.guid());
        let done = entry.and_then(|entry| match entry {
            Some((file, c)) => self.cache_files.write(&file, running.guid(), Some((&c.name, c.to_nvlist()))),
            None => Ok(()),
        });
        if let Err(e) = done {
            self.keeper.say(Level::Warning, &e.to_string());
        }
    }
}

/// The pools of a cache file.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Listed {
    /// Their guids.
    pub guids: BTreeSet<u64>,
    /// The folders of their devices.
    pub folders: BTreeSet<PathBuf>,
}

/// Reads a cache file.
pub(crate) fn listed(file: &Path) -> Result<Listed> {
    let place = || format!("cannot open '{}'", file.display());
    let list = read(file).at(place)?;
    if list.is_empty() {
        return Err(Error::invalid("there are no pools in it").at(place()));
    }
    let mut out = Listed::default();
    for (_, config) in list.iter() {
        let NvValue::List(list) = config else { continue };
        let Some(guid) = guid_of(config) else { continue };
        let Ok(tree) = list.require_list("vdev_tree").and_then(VdevConfig::from_nvlist) else { continue };
        out.guids.insert(guid);
        let paths = tree.leaves().filter_map(|leaf| leaf.path.as_deref());
        out.folders.extend(paths.filter_map(|p| Path::new(p).parent()).map(Path::to_path_buf));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Guid;
    use ondisk::vdev_config::VdevKind;

    fn config(guid: u64, paths: &[&str]) -> NvList {
        let mut root = VdevConfig::new(VdevKind::Root, 0, Guid(guid));
        for (id, path) in paths.iter().enumerate() {
            let mut leaf = VdevConfig::new(VdevKind::File, id as u64, Guid(guid + 1 + id as u64));
            leaf.path = Some(path.to_string());
            root.children.push(leaf);
        }
        let tree = root.to_nvlist(ondisk::vdev_config::ConfigForm::Mos);
        NvList::new().with_u64("pool_guid", guid).with_list("vdev_tree", tree)
    }

    #[test]
    fn pools_come_and_go() {
        let dir = std::env::temp_dir().join(format!("weir-cache-file-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (file, files) = (dir.join("zpool.cache"), CacheFiles::default());
        let of = |file: &Path| {
            let l = listed(file).unwrap();
            (Vec::from_iter(l.guids), Vec::from_iter(l.folders.iter().map(|f| f.display().to_string())))
        };
        files.write(&file, 100, Some(("a", config(100, &["/d/one", "/e/two"])))).unwrap();
        files.write(&file, 200, Some(("b", config(200, &["/f/three"])))).unwrap();
        assert_eq!(of(&file), (vec![100, 200], vec!["/d".into(), "/e".into(), "/f".into()]));
        // Under another name, and with other devices.
        files.write(&file, 100, Some(("c", config(100, &["/g/four"])))).unwrap();
        assert_eq!(of(&file), (vec![100, 200], vec!["/f".into(), "/g".into()]));
        files.write(&file, 200, None).unwrap();
        assert_eq!(of(&file), (vec![100], vec!["/g".into()]));
        files.write(&file, 100, None).unwrap();
        files.write(&file, 100, None).unwrap();
        assert!(!file.exists() && listed(&file).is_err());
        std::fs::write(&file, b"no such thing").unwrap();
        for e in [
            listed(&file).unwrap_err(),
            CacheFile::parse(file.to_str().unwrap()).unwrap_err(),
            files.write(&file, 100, Some(("a", config(100, &["/d/one"])))).unwrap_err(),
        ] {
            assert!(e.to_string().contains("it is no cache file"), "{e}");
        }
        assert_eq!(std::fs::read(&file).unwrap(), b"no such thing");
        std::fs::write(&file, b"").unwrap();
        CacheFile::parse(file.to_str().unwrap()).unwrap();
        files.write(&file, 100, Some(("a", config(100, &["/d/one"])))).unwrap();
        assert_eq!(of(&file).0, [100]);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn values_are_checked() {
        let at = |p: &str| Ok(CacheFile::At(p.into()));
        for (value, want) in [("", Ok(CacheFile::Usual)), ("none", Ok(CacheFile::None)), ("/tmp/x", at("/tmp/x"))] {
            assert_eq!(CacheFile::parse(value).map_err(|e| e.to_string()), want, "{value}");
        }
        for bad in ["x", "./x", "/", "/tmp/", "/tmp/..", "/tmp", "/no-such-folder/x"] {
            assert!(CacheFile::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(CacheFile::At(USUAL.into()).shown(), None);
        assert_eq!(CacheFile::At("/x".into()).shown(), Some("/x".into()));
    }
}
