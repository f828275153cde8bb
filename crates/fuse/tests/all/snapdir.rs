//! `.zfs/snapshot` of a real mount. Skipped with a message where there is no FUSE.

use std::cell::Cell;
use std::fs;
use std::future::Future;
use std::io;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;

use crate::common::{Setup, can_mount, mounted};
use base::Result;
use fuse::{MountOpts, SnapChange, SnapSource, Snapdir};
use host::{Engine, EngineConfig, TempDir};
use zpl::Zfs;

struct Snaps(Rc<spa::Pool>, Rc<Cell<Snapdir>>, Rc<Cell<bool>>);

impl SnapSource for Snaps {
    fn snapdir(&self) -> Snapdir {
        self.1.get()
    }
    fn list(&self) -> Pin<Box<dyn Future<Output = Result<Vec<(String, u64)>>> + '_>> {
        Box::pin(async {
            let head = self.0.dsl().find("tank")?;
            let all = self.0.dsl().snapshots(&head).await?;
            Ok(all.into_iter().map(|s| (s.snapname(), s.object.0)).collect())
        })
    }
    fn changed(&self) -> Option<base::WallTime> {
        self.0.dsl().find("tank").ok()?.dir().snapshots_changed()
    }
    fn find<'a>(&'a self, name: &'a str) -> Pin<Box<dyn Future<Output = Result<Option<u64>>> + 'a>> {
        Box::pin(async move {
            match self.0.dsl().find_snapshot(&format!("tank@{name}")).await {
                Ok(snap) => Ok(Some(snap.object.0)),
                Err(e) if e.kind() == base::ErrorKind::NotFound => Ok(None),
                Err(e) => Err(e),
            }
        })
    }
    fn may_change(&self) -> bool {
        self.2.get()
    }
    fn change<'a>(&'a self, change: SnapChange<'a>) -> Pin<Box<dyn Future<Output = Result<()>> + 'a>> {
        Box::pin(async move {
            let (dsl, full) = (self.0.dsl(), |name: &str| format!("tank@{name}"));
            match change {
                SnapChange::Create(name) => dsl.snapshot(vec![full(name)], false, Vec::new()).await,
                SnapChange::Destroy(name) => dsl.destroy_snapshots(vec![full(name)], false).await,
                SnapChange::Rename(name, new) => dsl.rename_snapshot(&full(name), &full(new), false).await,
            }
        })
    }
    fn open<'a>(&'a self, name: &'a str) -> Pin<Box<dyn Future<Output = Result<Rc<Zfs>>> + 'a>> {
        Box::pin(async move {
            let snap = self.0.dsl().find_snapshot(&format!("tank@{name}")).await?;
            Zfs::open_uncounted(&snap, zpl::MountOpts { readonly: true, ..zpl::MountOpts::default() }).await
        })
    }
}

#[test]
fn names_of_snapshots_are_never_stale_and_the_folders_have_times() {
    if !can_mount() {
        return;
    }
    let (dir, beside) = (TempDir::new("fuse").unwrap(), TempDir::new("fuse").unwrap());
    let engine = Engine::new(EngineConfig::default()).unwrap();
    let rt = engine.rt();
    engine.block_on(async {
        let before = rt.wall_clock().secs;
        // The second mount of the same file system has the folder.
        let (pool, zfs, first) = mounted(&rt, beside.path(), Setup::default()).await;
        let opts = MountOpts::default();
        let snapdir = Rc::new(Cell::new(Snapdir::Visible));
        let may_change = Rc::new(Cell::new(false));
        let snaps = Snaps(pool.clone(), snapdir.clone(), may_change.clone());
        let m = fuse::mount(&rt, zfs.clone(), dir.path(), opts, Some(Rc::new(snaps))).await.unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        let file = root.join("file");
        host::blocking(move || fs::write(file, "x").unwrap()).await.unwrap();
        pool.dsl().snapshot(vec!["tank@a".into()], false, Vec::new()).await.unwrap();
        let ctl = root.join(".zfs/snapshot");
        // Directory entries name the inodes that stat shows, in a snapshot too.
        for folder in [root.clone(), ctl.join("a")] {
            let inodes = host::blocking(move || {
                let entries = fs::read_dir(folder).unwrap().map(|e| e.unwrap());
                entries.map(|e| (e.file_name(), e.ino(), e.metadata().unwrap().ino())).collect::<Vec<_>>()
            });
            let inodes = inodes.await.unwrap();
            assert!(inodes.iter().any(|(name, ..)| name == "file"));
            assert!(inodes.iter().all(|(_, listed, own)| listed == own), "{inodes:?}");
        }
        let is_there = async |name: &str| {
            let path = ctl.join(name);
            host::blocking(move || fs::metadata(path).is_ok()).await.unwrap()
        };
        assert!(is_there("a").await && !is_there("b").await);
        pool.dsl().rename_snapshot("tank@a", "tank@b", false).await.unwrap();
        assert!(!is_there("a").await && is_there("b").await);
        pool.dsl().destroy_snapshots(vec!["tank@b".into()], false).await.unwrap();
        assert!(!is_there("b").await);
        // Folders that are made, renamed and removed are snapshots, where that is allowed.
        let in_list = async |name: &str| pool.dsl().find_snapshot(&format!("tank@{name}")).await.is_ok();
        let at = |name: &str| ctl.join(name);
        let make = async |name: &str| {
            let path = at(name);
            host::blocking(move || fs::create_dir(path)).await.unwrap()
        };
        assert_eq!(make("c").await.unwrap_err().raw_os_error(), Some(libc::EACCES));
        may_change.set(true);
        make("c").await.unwrap();
        assert!(in_list("c").await && is_there("c/file").await);
        assert_eq!(make("c").await.unwrap_err().raw_os_error(), Some(libc::EEXIST));
        make("not a name!").await.unwrap_err();
        let (from, to, out) = (at("c"), at("d"), root.join("out"));
        host::blocking(move || fs::rename(from, to).unwrap()).await.unwrap();
        assert!(in_list("d").await && !in_list("c").await && is_there("d/file").await && !is_there("c").await);
        let from = at("d");
        host::blocking(move || fs::rename(from, out).unwrap_err()).await.unwrap();
        let gone = at("d");
        host::blocking(move || fs::remove_dir(gone).unwrap()).await.unwrap();
        assert!(!in_list("d").await && !is_there("d").await);
        let gone = at("d");
        assert_eq!(
            host::blocking(move || fs::remove_dir(gone).unwrap_err().kind()).await.unwrap(),
            io::ErrorKind::NotFound
        );
        may_change.set(false);
        // The list's times are those of its last change.
        let changed = pool.dsl().find("tank").unwrap().dir().snapshots_changed().unwrap();
        let path = root.join(".zfs/snapshot");
        let m_list = host::blocking(move || fs::metadata(path).unwrap()).await.unwrap();
        assert_eq!((m_list.mtime(), m_list.mtime_nsec()), (changed.secs, changed.nanos.into()));
        for folder in [".zfs", ".zfs/snapshot"] {
            let path = root.join(folder);
            let m = host::blocking(move || fs::metadata(path).unwrap()).await.unwrap();
            for t in [m.atime(), m.mtime(), m.ctime()] {
                assert!((before..=rt.wall_clock().secs).contains(&t), "{folder}: {t}");
            }
        }
        // What is disabled is not there, even where the kernel remembers the folder.
        let listed = async || {
            let root = root.clone();
            let list = move || {
                let names = |folder: &Path| -> io::Result<Vec<_>> {
                    fs::read_dir(folder)?.map(|e| Ok(e?.file_name())).collect()
                };
                // The C library ends the listing of a folder that is gone without an error.
                let kept = |e: io::Error| if e.kind() == io::ErrorKind::NotFound { Ok(Vec::new()) } else { Err(e) };
                (names(&root).unwrap().contains(&".zfs".into()), names(&root.join(".zfs")).or_else(kept).unwrap())
            };
            host::blocking(list).await.unwrap()
        };
        let all = vec!["snapshot".into()];
        for (state, want) in [
            (Snapdir::Visible, (true, all.clone())),
            (Snapdir::Disabled, (false, Vec::new())),
            (Snapdir::Hidden, (false, all)),
        ] {
            snapdir.set(state);
            m.root_changed();
            assert_eq!(listed().await, want, "{state:?}");
            // A folder that is listed counts as a link of the root.
            let at = root.clone();
            let links = host::blocking(move || fs::metadata(at).unwrap().nlink()).await.unwrap();
            assert_eq!(links, 2 + u64::from(state == Snapdir::Visible), "{state:?}");
        }
        for m in [m, first] {
            m.unmount(false, false).await.unwrap();
        }
        zfs.unmount().await.unwrap();
        pool.export().await.unwrap();
    });
}
