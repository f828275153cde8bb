//! A real mount of a real pool, used through system calls. Skipped with a message where there is no
//! FUSE.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::common::{Setup, can_mount, mounted, with_mount};
use base::{ErrorKind, Nanos};
use fuse::MountOpts;
use host::{BackendChoice, Engine, EngineConfig, TempDir};
use zpl::{Case, FsCreateProps, Zfs};

fn os_error(r: std::io::Result<impl Sized>) -> i32 {
    r.err().expect("an error").raw_os_error().expect("of the system")
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut z = seed;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        z = z.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        out.extend_from_slice(&z.to_le_bytes());
    }
    out.truncate(len);
    out
}

#[test]
fn names() {
    with_mount(Setup::default(), |root| {
        let list = fs::read_to_string("/proc/self/mounts").unwrap();
        let line = list.lines().find(|l| l.contains(root.to_str().unwrap())).unwrap();
        assert!(
            line.starts_with("fuse-tests ") && (line.contains(" fuse.zfs rw,") || line.contains(" fuseblk.zfs rw,")),
            "{line}"
        );
        let p = |s: &str| root.join(s);
        fs::create_dir(p("d")).unwrap();
        fs::write(p("d/a"), "one").unwrap();
        assert_eq!(os_error(fs::create_dir(p("d/a"))), libc::EEXIST);
        assert_eq!(os_error(fs::remove_dir(p("d"))), libc::ENOTEMPTY);
        assert_eq!(os_error(fs::read(p("none"))), libc::ENOENT);
        assert_eq!(os_error(fs::read(p("d/a/b"))), libc::ENOTDIR);
        assert_eq!(os_error(File::create(p(&"n".repeat(256)))), libc::ENAMETOOLONG);
        fs::rename(p("d/a"), p("b")).unwrap();
        fs::hard_link(p("b"), p("d/c")).unwrap();
        let (b, c) = (fs::metadata(p("b")).unwrap(), fs::metadata(p("d/c")).unwrap());
        assert_eq!((b.ino(), b.nlink()), (c.ino(), 2));
        symlink("d/c", p("l")).unwrap();
        assert_eq!(fs::read_link(p("l")).unwrap(), Path::new("d/c"));
        assert_eq!(fs::read_to_string(p("l")).unwrap(), "one");
        fs::write(p("x"), "two").unwrap();
        fs::rename(p("x"), p("b")).unwrap();
        assert_eq!(fs::read_to_string(p("b")).unwrap(), "two");
        assert_eq!(fs::metadata(p("d/c")).unwrap().nlink(), 1);
        // Without a name but open.
        let mut f = OpenOptions::new().read(true).write(true).open(p("d/c")).unwrap();
        fs::remove_file(p("d/c")).unwrap();
        assert_eq!(f.metadata().unwrap().nlink(), 0);
        f.seek(SeekFrom::End(0)).unwrap();
        f.write_all(b" more").unwrap();
        f.rewind().unwrap();
        let mut s = String::new();
        f.read_to_string(&mut s).unwrap();
        assert_eq!(s, "one more");
        drop(f);
        fs::remove_dir(p("d")).unwrap();
        assert_eq!(fs::read_dir(&root).unwrap().count(), 2);
        // Special files.
        let mk = Command::new("sh")
            .args(["-c", "mkfifo f && mknod n c 1 3 && mknod big b 259 70000"])
            .current_dir(&root)
            .status();
        assert!(mk.unwrap().success());
        assert!(fs::metadata(p("f")).unwrap().file_type().is_fifo());
        let n = fs::metadata(p("n")).unwrap();
        assert!(n.file_type().is_char_device());
        assert_eq!(n.rdev(), libc::makedev(1, 3));
        assert_eq!(fs::metadata(p("big")).unwrap().rdev(), libc::makedev(259, 70_000));
        File::open(p("n")).expect("/dev/null by another name");
    });
}

#[test]
fn rename_without_replacing_and_exchange() {
    with_mount(Setup::default(), |root| {
        let (a, b) = (root.join("a"), root.join("b"));
        fs::write(&a, "a").unwrap();
        fs::write(&b, "b").unwrap();
        // The coreutils commands for renameat2.
        let mv = |args: &[&str]| Command::new("mv").args(args).arg(&a).arg(&b).output().unwrap();
        mv(&["-n"]);
        assert_eq!(fs::read_to_string(&b).unwrap(), "b");
        let swapped = mv(&["--exchange"]);
        if swapped.status.success() {
            assert_eq!((fs::read_to_string(&a).unwrap(), fs::read_to_string(&b).unwrap()), ("b".into(), "a".into()));
        } else {
            eprintln!("SKIPPED: this mv cannot exchange");
        }
    });
}

fn data_of_all_sizes(root: &Path) {
    let path = root.join("data");
    let f = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    let all = pattern(9 << 20, 3);
    // Aligned and not, small and large: all become one file.
    let mut at = 0;
    for (i, len) in [1, 4095, 4096, 131_072, 1 << 20, 3, 999_999, 2 << 20, 70_000, 1 << 20].iter().cycle().enumerate() {
        let end = (at + len).min(all.len());
        f.write_all_at(&all[at..end], at as u64).unwrap();
        at = end;
        if at == all.len() {
            break;
        }
        assert!(i < 1000);
    }
    f.sync_all().unwrap();
    assert_eq!(f.metadata().unwrap().len(), all.len() as u64);
    assert!(fs::read(&path).unwrap() == all);
    // Past the kernel's cache, too.
    let direct = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let mut buf = vec![0; 3 << 20];
    direct.read_exact_at(&mut buf, 123 * 4096).unwrap();
    assert!(buf == all[123 * 4096..][..3 << 20]);
    direct.write_all_at(&all[..1 << 20], 512).unwrap();
    f.read_exact_at(&mut buf[..1 << 20], 512).unwrap();
    assert!(buf[..1 << 20] == all[..1 << 20]);
    // Shorter, longer, holes.
    f.set_len(1000).unwrap();
    f.set_len(5000).unwrap();
    let mut want = vec![0; 5000];
    want[..512].copy_from_slice(&all[..512]);
    want[512..1000].copy_from_slice(&all[..488]);
    assert!(fs::read(&path).unwrap() == want);
    f.write_all_at(b"end", 1 << 40).unwrap();
    f.sync_data().unwrap();
    assert_eq!(f.metadata().unwrap().len(), (1 << 40) + 3);
    let mut hole = [1; 4096];
    f.read_exact_at(&mut hole, 1 << 30).unwrap();
    assert_eq!(hole, [0; 4096]);
    let mut appended = OpenOptions::new().append(true).open(&path).unwrap();
    appended.write_all(b"!").unwrap();
    assert_eq!(f.metadata().unwrap().len(), (1 << 40) + 4);
    drop(OpenOptions::new().write(true).truncate(true).open(&path).unwrap());
    assert_eq!(f.metadata().unwrap().len(), 0);
}

#[test]
fn data() {
    with_mount(Setup::default(), |root| data_of_all_sizes(&root));
}

#[test]
fn data_without_io_uring() {
    let setup = Setup { backend: BackendChoice::Threads, ..Setup::default() };
    with_mount(setup, |root| data_of_all_sizes(&root));
}

#[test]
fn data_with_writeback() {
    let mount = MountOpts { writeback: true, ..MountOpts::default() };
    with_mount(Setup { mount, ..Setup::default() }, |root| data_of_all_sizes(&root));
}

#[test]
fn large_directories() {
    with_mount(Setup::default(), |root| {
        let dir = root.join("many");
        fs::create_dir(&dir).unwrap();
        let names: BTreeSet<String> = (0..10_000).map(|i| format!("file-{i:05}{}", "x".repeat(i % 60))).collect();
        for n in &names {
            File::create(dir.join(n)).unwrap();
        }
        let list = || -> BTreeSet<String> {
            let list: Vec<String> =
                fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
            let set: BTreeSet<String> = list.iter().cloned().collect();
            assert_eq!(set.len(), list.len(), "nothing comes twice");
            set
        };
        assert_eq!(list(), names);
        // With attributes, which makes the kernel read both at once.
        let sizes: u64 = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().metadata().unwrap().nlink()).sum();
        assert_eq!(sizes, 10_000);
        // Removing while listing misses nothing that stays.
        let mut gone = BTreeSet::new();
        for e in fs::read_dir(&dir).unwrap() {
            let name = e.unwrap().file_name().into_string().unwrap();
            if gone.len() < 5000 {
                fs::remove_file(dir.join(&name)).unwrap();
                gone.insert(name);
            }
        }
        assert_eq!(list(), names.difference(&gone).cloned().collect());
        assert_eq!(os_error(fs::remove_dir(&dir)), libc::ENOTEMPTY);
        fs::remove_dir_all(&dir).unwrap();
    });
}

#[test]
fn attributes() {
    with_mount(Setup::default(), |root| {
        let path = root.join("f");
        fs::write(&path, "#!/bin/sh\necho ran\n").unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        let ran = Command::new(&path).output().unwrap();
        assert_eq!(ran.stdout, b"ran\n");
        let f = File::options().write(true).open(&path).unwrap();
        let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_007, 123_456_789);
        f.set_times(fs::FileTimes::new().set_modified(time).set_accessed(time)).unwrap();
        let m = f.metadata().unwrap();
        assert_eq!((m.mtime(), m.mtime_nsec(), m.atime_nsec()), (1_000_000_007, 123_456_789, 123_456_789));
        assert!(m.created().unwrap() > time, "the creation time is told");
        std::os::unix::fs::chown(&path, Some(1234), Some(567)).unwrap();
        let m = fs::metadata(&path).unwrap();
        assert_eq!((m.uid(), m.gid(), m.mode() & 0o7777), (1234, 567, 0o755));
        // A change of owner takes the set-user-id bit, a write of a stranger too.
        fs::set_permissions(&path, PermissionsExt::from_mode(0o6777)).unwrap();
        std::os::unix::fs::chown(&path, Some(1235), None).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777);
        fs::set_permissions(&path, PermissionsExt::from_mode(0o4777)).unwrap();
        let as_nobody = |script: &str| {
            use std::os::unix::process::CommandExt;
            Command::new("sh").args(["-c", script]).current_dir("/").env("F", &path).uid(65534).gid(65534).status()
        };
        fs::set_permissions(&root, PermissionsExt::from_mode(0o755)).unwrap();
        if as_nobody("echo x >> \"$F\"").unwrap().success() {
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777);
        } else {
            eprintln!("SKIPPED: others cannot reach the temporary folder");
        }
        fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        assert!(!as_nobody("cat \"$F\" 2>/dev/null").unwrap().success(), "the kernel checks permissions");
    });
}

#[test]
fn programs_that_run_are_not_truncated() {
    with_mount(Setup::default(), |root| {
        let path = root.join("prog");
        let Ok(program) = fs::read("/bin/sleep") else { return eprintln!("SKIPPED: no /bin/sleep") };
        fs::write(&path, &program).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        let mut child = Command::new(&path).arg("100").spawn().unwrap();
        let truncated = OpenOptions::new().write(true).truncate(true).open(&path);
        let same = fs::read(&path).unwrap() == program;
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(os_error(truncated), libc::ETXTBSY);
        assert!(same);
    });
}

#[test]
fn extended_attributes() {
    with_mount(Setup::default(), |root| {
        let path = root.join("f");
        fs::write(&path, "").unwrap();
        let py = r#"
import os, sys, errno
p = sys.argv[1]
os.setxattr(p, "user.a", b"1")
os.setxattr(p, "user.big", b"x" * 60000)
os.setxattr(p, "trusted.t", b"t")
assert os.getxattr(p, "user.a") == b"1"
assert os.getxattr(p, "user.big") == b"x" * 60000
assert sorted(os.listxattr(p)) == ["trusted.t", "user.a", "user.big"], os.listxattr(p)
def err(f, want):
    try: f()
    except OSError as e:
        assert e.errno == want, e
        return
    assert False, "no error"
err(lambda: os.getxattr(p, "user.none"), errno.ENODATA)
err(lambda: os.removexattr(p, "user.none"), errno.ENODATA)
for name in ["user.", "trusted.", "security."]:
    err(lambda: os.setxattr(p, name, b"1"), errno.EINVAL)
    err(lambda: os.getxattr(p, name), errno.EINVAL)
    err(lambda: os.removexattr(p, name), errno.EINVAL)
for name in ["user", "name", "other.name", "system.name"]:
    err(lambda: os.setxattr(p, name, b"1"), errno.EOPNOTSUPP)
    err(lambda: os.getxattr(p, name), errno.EOPNOTSUPP)
    err(lambda: os.removexattr(p, name), errno.EOPNOTSUPP)
err(lambda: os.setxattr(p, "user.a", b"2", os.XATTR_CREATE), errno.EEXIST)
err(lambda: os.setxattr(p, "user.n", b"2", os.XATTR_REPLACE), errno.ENODATA)
os.setxattr(p, "user.a", b"", os.XATTR_REPLACE)
assert os.getxattr(p, "user.a") == b""
os.removexattr(p, "user.big")
assert sorted(os.listxattr(p)) == ["trusted.t", "user.a"]
d = os.open(p, os.O_RDWR)
os.posix_fallocate(d, 0, 10)
os.pwrite(d, b"data", 1 << 20)
os.fsync(d)
assert os.lseek(d, 0, os.SEEK_DATA) <= 1 << 20
err(lambda: os.lseek(d, (1 << 20) + 4, os.SEEK_DATA), errno.ENXIO)
assert os.lseek(d, 1 << 20, os.SEEK_HOLE) == (1 << 20) + 4
import mmap
m = mmap.mmap(d, 4096, offset=0)
m[0:5] = b"mmap!"
m.flush()
assert os.pread(d, 5, 0) == b"mmap!"
m.close()
assert open(p, "rb").read(5) == b"mmap!"
s = os.statvfs(p)
assert s.f_bsize == 131072 and s.f_frsize == 512 and s.f_namemax == 255, s
assert s.f_bavail > 100000 and s.f_files > 1000
os.close(d)
"#;
        match Command::new("python3").args(["-c", py]).arg(&path).status() {
            Ok(s) => assert!(s.success()),
            Err(_) => eprintln!("SKIPPED: no python3"),
        }
    });
}

#[test]
fn many_at_once() {
    with_mount(Setup::default(), |root| {
        std::thread::scope(|s| {
            for t in 0..8 {
                let root = &root;
                s.spawn(move || {
                    let dir = root.join(format!("t{t}"));
                    fs::create_dir(&dir).unwrap();
                    for i in 0..40 {
                        let (path, data) = (dir.join(format!("{i}")), pattern(20_000 + i * 1000, t * 100 + i as u64));
                        fs::write(&path, &data).unwrap();
                        if i % 10 == 0 {
                            File::open(&path).unwrap().sync_all().unwrap();
                        }
                        assert!(fs::read(&path).unwrap() == data);
                        if i % 3 == 0 {
                            fs::rename(&path, root.join(format!("{t}-{i}"))).unwrap();
                        }
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(&root).unwrap().count(), 8 + 8 * 14);
    });
}

#[test]
fn names_without_case() {
    let fs_props = FsCreateProps { casesensitivity: Case::Insensitive, ..FsCreateProps::default() };
    with_mount(Setup { fs: fs_props, ..Setup::default() }, |root| {
        let p = |s: &str| root.join(s);
        assert!(!p("README").exists());
        fs::write(p("readme"), "x").unwrap();
        assert!(p("README").exists() && p("ReadMe").exists());
        fs::remove_file(p("ReadMe")).unwrap();
        assert!(!p("README").exists() && !p("readme").exists());
    });
}

#[test]
fn mounts_end() {
    if !can_mount() {
        return;
    }
    let engine = Engine::new(EngineConfig::default()).unwrap();
    let rt = engine.rt();
    let dir = TempDir::new("fuse").unwrap();
    let path = fs::canonicalize(dir.path()).unwrap();
    engine.block_on(async {
        let none = MountOpts::default();
        // Busy, then not.
        let (_pool, zfs, m) = mounted(&rt, &path, Setup::default()).await;
        let f = path.join("open");
        let file = host::blocking(move || File::create(f).unwrap()).await.unwrap();
        assert_eq!(m.unmount(false, false).await.unwrap_err().kind(), ErrorKind::Busy);
        assert!(m.is_alive());
        // A file that is closed while the unmount is under way does not count as use.
        let closes = host::blocking(move || drop(file));
        let (ended, closed) = rt::join::join2(m.unmount(false, false), closes).await;
        closed.unwrap();
        ended.unwrap();
        zfs.unmount().await.unwrap();
        let ds = _pool.dsl().find("tank").unwrap();
        let zfs = Zfs::open(&ds, zpl::MountOpts::from_props(&ds)).await.unwrap();
        let m = fuse::mount(&rt, zfs.clone(), &path, none.clone(), None).await.unwrap();
        let f = path.join("open");
        let file = host::blocking(move || File::create(f).unwrap()).await.unwrap();
        // Lazily: gone from the tree, alive until the file is closed.
        m.unmount(true, false).await.unwrap();
        assert!(rt.timeout(Nanos::from_ms(20), m.ended()).await.is_none());
        host::blocking(move || {
            file.write_all_at(b"still there", 0).unwrap();
            drop(file);
        })
        .await
        .unwrap();
        m.ended().await;
        assert!(!m.is_alive());
        // Again, read-only, and of the plain type; ended from outside.
        zfs.unmount().await.unwrap();
        let zfs = Zfs::open(&ds, zpl::MountOpts { readonly: true, ..zpl::MountOpts::from_props(&ds) }).await.unwrap();
        let m = fuse::mount(&rt, zfs.clone(), &path, MountOpts { subtype: None, ..none.clone() }, None).await.unwrap();
        let theirs = path.clone();
        host::blocking(move || {
            assert_eq!(fs::read(theirs.join("open")).unwrap(), b"still there");
            assert_eq!(os_error(File::create(theirs.join("new"))), libc::EROFS);
            let list = fs::read_to_string("/proc/self/mounts").unwrap();
            let line = list.lines().find(|l| l.contains(theirs.to_str().unwrap())).unwrap();
            assert!(line.contains(" fuse ro,") || line.contains(" fuseblk ro,"), "{line}");
            assert!(Command::new("umount").arg(&theirs).status().unwrap().success());
        })
        .await
        .unwrap();
        m.ended().await;
        zfs.unmount().await.unwrap();
        // By force, with a file open.
        let zfs2 = Zfs::open(&ds, zpl::MountOpts::from_props(&ds)).await.unwrap();
        let m = fuse::mount(&rt, zfs2.clone(), &path, none.clone(), None).await.unwrap();
        let f = path.join("open");
        let file = host::blocking(move || File::open(f).unwrap()).await.unwrap();
        m.unmount(true, true).await.unwrap();
        assert!(!m.is_alive());
        assert!(host::blocking(move || file.read_at(&mut [0], 0).is_err()).await.unwrap());
        zfs2.unmount().await.unwrap();
        // Nothing to mount on.
        let nowhere = fuse::mount(&rt, zfs, &path.join("none"), none, None).await;
        assert_eq!(nowhere.err().unwrap().kind(), ErrorKind::NotFound);
    });
}

#[test]
fn sync_and_syncfs_reach_the_pool() {
    if !can_mount() {
        return;
    }
    let engine = Engine::new(EngineConfig::default()).unwrap();
    let rt = engine.rt();
    let dir = TempDir::new("fuse").unwrap();
    let path = fs::canonicalize(dir.path()).unwrap();
    engine.block_on(async {
        let mount = MountOpts { sync_passes: true, ..MountOpts::default() };
        let (pool, zfs, m) = mounted(&rt, &path, Setup { mount, ..Setup::default() }).await;
        let list = fs::read_to_string("/proc/self/mounts").unwrap();
        if list.lines().any(|l| l.contains(path.to_str().unwrap()) && l.contains(" fuseblk.zfs ")) {
            // Nothing but a sync makes a txg.
            let usual = pool.txg().tunables();
            let mut t = usual;
            t.txg_timeout = Nanos::from_secs(3600);
            pool.txg().set_tunables(t);
            for (n, args) in [vec!["-f", "there"], vec![]].into_iter().enumerate() {
                let before = pool.txg().open_txg();
                let root = path.clone();
                host::blocking(move || {
                    fs::write(root.join("new"), format!("{n}")).unwrap();
                    fs::rename(root.join("new"), root.join("there")).unwrap();
                    assert!(Command::new("sync").args(args).current_dir(&root).status().unwrap().success());
                })
                .await
                .unwrap();
                assert!(pool.txg().last_synced() >= before, "syncfs, then sync: {n}");
                assert_eq!(pool.txg().dirty(), 0);
            }
            pool.txg().set_tunables(usual);
        } else {
            eprintln!("NOT TESTED: sync and syncfs (this kernel does not pass them on)");
        }
        m.unmount(false, false).await.unwrap();
        zfs.unmount().await.unwrap();
    });
}

#[test]
fn data_and_holes_are_seen_as_a_mapping_has_them() {
    with_mount(Setup::default(), |root| {
        let path = root.join("mapped");
        let py = r#"
import mmap, os, subprocess, sys
p = sys.argv[1]
d = os.open(p, os.O_RDWR | os.O_CREAT)
os.ftruncate(d, 1 << 20)
os.fsync(d)
assert os.lseek(d, 0, os.SEEK_HOLE) == 0
m = mmap.mmap(d, 1 << 20)
m[300000:300005] = b"mine!"
# The one who stored, by the only descriptor.
at = os.lseek(d, 0, os.SEEK_DATA)
assert 0 < at <= 300000, at
assert os.lseek(d, 0, os.SEEK_HOLE) == 0
end = os.lseek(d, at, os.SEEK_HOLE)
assert 300000 < end < 700000, end
m[at + (1 << 17)] = 1
assert os.lseek(d, at, os.SEEK_HOLE) == end + (1 << 17)
m[700000:700005] = b"mmap!"
os.close(d)
r = os.open(p, os.O_RDONLY)
at = os.lseek(r, 600000, os.SEEK_DATA)
assert 600000 < at <= 700000, at
assert 700000 < os.lseek(r, 700000, os.SEEK_HOLE) < 1 << 20
m[700000:700005] = b"again"
assert m[700000:700005] == b"again"
m[700000:700005] = b"mmap!"
subprocess.check_call(["cp", "--sparse=auto", p, p + ".copy"])
assert open(p + ".copy", "rb").read()[700000:700005] == b"mmap!"
m.close()
# The record that has it, and nothing else.
assert 0 < os.lseek(r, 0, os.SEEK_DATA) <= 700000
"#;
        let done = Command::new("python3").args(["-c", py]).arg(&path).status();
        match done {
            Ok(status) => assert!(status.success()),
            Err(_) => eprintln!("NOT TESTED: holes under a mapping (no python3)"),
        }
    });
}

#[test]
fn a_copy_in_another_mount_namespace_is_cut_off() {
    if !can_mount() {
        return;
    }
    // Without permission to make a namespace there is no copy.
    let ready = Command::new("unshare").args(["-m", "--propagation", "private", "true"]).status();
    if !ready.is_ok_and(|s| s.success()) {
        eprintln!("NOT TESTED: copies of mounts (mount namespaces cannot be made here)");
        return;
    }
    let engine = Engine::new(EngineConfig::default()).unwrap();
    let rt = engine.rt();
    let dir = TempDir::new("fuse").unwrap();
    let path = fs::canonicalize(dir.path()).unwrap();
    engine.block_on(async {
        let (_pool, zfs, m) = mounted(&rt, &path, Setup::default()).await;
        let mut copy = Command::new("unshare")
            .args(["-m", "--propagation", "private", "sh", "-c", "echo there; exec sleep 600"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = copy.stdout.take().unwrap();
        // Once it has printed something it has its copy.
        host::blocking(move || std::io::Read::read_exact(&mut out, &mut [0; 6]).unwrap()).await.unwrap();
        let ended = m.unmount(false, false).await;
        // Its mounts end with it, which calls into the engine.
        host::blocking(move || copy.kill().and_then(|()| copy.wait())).await.unwrap().unwrap();
        ended.unwrap();
        assert!(!m.is_alive());
        zfs.unmount().await.unwrap();
    });
}
