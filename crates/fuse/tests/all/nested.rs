//! A file system within the mount of another one, in the same session: as a plain user's are.
//! Skipped with a message where there is no FUSE.

use std::fs::{self, File};
use std::future::Future;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;

use crate::common::{Setup, can_mount, mounted};
use base::ErrorKind;
use dsl::props::PropValue;
use fuse::{Grafted, MountOpts, Mounted};
use host::{Engine, EngineConfig, TempDir};
use rt::Rt;
use spa::Pool;
use zpl::{FsCreateProps, InitOwner, Zfs, init_fs};

/// `acltype=posix`.
const ACLTYPE_POSIX: u64 = 1;

/// Runs something that may wait for the mount beside the engine.
async fn beside<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    host::blocking(f).await.unwrap()
}

struct World {
    rt: Rt,
    pool: Rc<Pool>,
    zfs: Rc<Zfs>,
    mount: Rc<Mounted>,
    root: PathBuf,
}

impl World {
    /// Creates a file system and opens it.
    async fn open(&self, name: &str) -> Rc<Zfs> {
        let dsl = self.pool.dsl();
        if dsl.find(name).is_err() {
            let owner = InitOwner { uid: 0, gid: 0, mode: 0o755, time: self.rt.wall_clock() };
            let props = vec![("acltype".to_string(), PropValue::Num(ACLTYPE_POSIX))];
            dsl.create_fs(name, props, init_fs(owner, FsCreateProps::default())).await.unwrap();
        }
        let ds = dsl.find(name).unwrap();
        Zfs::open(&ds, zpl::MountOpts::from_props(&ds)).await.unwrap()
    }

    /// Shows a file system at a folder of the mount.
    async fn graft(&self, name: &str, at: &str) -> (Rc<Zfs>, Rc<Grafted>) {
        let path = self.root.join(at);
        let folder = path.clone();
        beside(move || fs::create_dir_all(folder).unwrap()).await;
        let zfs = self.open(name).await;
        let grafted = fuse::graft(&self.rt, &self.mount, zfs.clone(), &path, None).await.unwrap();
        (zfs, grafted)
    }
}

fn with_world<F: Future<Output = ()>>(test: impl FnOnce(Rc<World>) -> F) {
    if !can_mount() {
        return;
    }
    let dir = TempDir::new("fuse").unwrap();
    let engine = Engine::new(EngineConfig::default()).unwrap();
    let rt = engine.rt();
    engine.block_on(async {
        let root = fs::canonicalize(dir.path()).unwrap();
        let mount = MountOpts { holds_others: true, ..MountOpts::default() };
        let (pool, zfs, mount) = mounted(&rt, &root, Setup { mount, ..Setup::default() }).await;
        let world = Rc::new(World { rt: rt.clone(), pool, zfs, mount, root });
        test(world.clone()).await;
        world.mount.unmount(false, false).await.unwrap();
        assert_eq!(world.mount.stats().refused, 0);
        assert_eq!(world.zfs.open_objects(), 0, "what was opened was released");
        world.zfs.unmount().await.unwrap();
        world.pool.export().await.unwrap();
    });
}

async fn end(zfs: Rc<Zfs>, grafted: &Grafted) {
    grafted.unmount(false).await.unwrap();
    assert_eq!(zfs.open_objects(), 0, "what was opened was released");
    zfs.unmount().await.unwrap();
}

/// A process that has done `first` and waits.
struct Waiting(Child);

impl Waiting {
    fn new(first: String) -> Waiting {
        let mut c = Command::new("sh");
        c.args(["-ec", &format!("{first}; echo there; exec sleep 600")]);
        let mut child = c.stdout(Stdio::piped()).spawn().unwrap();
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 6]).unwrap();
        Waiting(child)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Commands on mounts at `a` and `a/b/c`, one line each.
const LINES: &[&str] = &[
    "echo below > a/one; cat a/one; cat a/b/c/one 2>/dev/null || echo none",
    "echo inner > a/b/c/two; ls -A . a a/b a/b/c",
    "mv -T a z",
    "mv -T a/b/c a/b/d",
    "rmdir a/b/c",
    "rmdir a",
    "mkdir other; mv -T other a/b/c",
    "mv -T a/b a/moved; ls a/moved/c; mv -T a/moved a/b; ls a/b/c",
    "ln a/one here",
    "ln a/b/c/two a/three",
    "ln a/b/c/two a/b/c/three; stat -c '%h %s' a/b/c/three",
    "perl -e 'exit(rename(\"a/one\", \"one\") ? 0 : $!+0)'; echo $?",
    "perl -e 'exit(rename(\"a/one\", \"a/b/c/one\") ? 0 : $!+0)'; echo $?",
    "perl -e 'exit(rename(\"other\", \"a\") ? 0 : $!+0)'; echo $?",
    "mv a/one a/b/c/; ls a a/b/c; cat a/b/c/one",
    "mkdir -p a/b/c/deep/er; cd a/b/c/deep/er; ls ../../../..; pwd -P | sed 's:.*/a/:a/:'",
    "cd a/b/c; echo x > ../beside; ls ..; ls ../..; cat ../beside; rm ../beside",
    "umask 027; touch a/masked a/b/c/masked; mkdir a/dir a/b/c/dir; stat -c '%a' a/masked a/b/c/masked a/dir a/b/c/dir",
    "chmod 640 a/masked; chown 5:6 a/masked; stat -c '%a %u %g' a/masked; touch -d @1 a/masked; stat -c %Y a/masked",
    "setfattr -n user.x -v y a/masked; getfattr -d a/masked; getfattr -n user.none a/masked",
    "ln -s ../one a/b/c/link; readlink a/b/c/link; cat a/b/c/link; mkfifo a/b/c/fifo; stat -c %F a/b/c/fifo",
    "truncate -s 1M a/b/c/two; stat -c '%s' a/b/c/two; fallocate -p -o 0 -l 4096 a/b/c/two; echo $?",
    "perl -e 'open F, \"+<\", \"a/b/c/two\"; unlink \"a/b/c/two\"; print F \"gone\"; close F' && ls a/b/c",
    "find . -type f | sort",
    "find . | wc -l",
    "rm -r a/b/c/deep a/dir; ls a a/b/c",
    "rm -rf a/b; ls -R a",
    "cp -a a other/copy; ls -R other",
];

/// The output of each line in a folder.
fn said(root: &Path) -> Vec<String> {
    let line = |line: &&str| {
        let out = Command::new("bash").args(["-c", line]).current_dir(root).env("LC_ALL", "C").output().unwrap();
        let text = [out.stdout, out.stderr].concat();
        format!("{line}: {}", String::from_utf8_lossy(&text).replace(&*root.to_string_lossy(), ""))
    };
    LINES.iter().map(line).collect()
}

#[test]
fn commands_find_what_they_find_in_mounts_of_others() {
    with_world(|w| async move {
        let (a, at_a) = w.graft("tank/a", "a").await;
        let (c, at_c) = w.graft("tank/c", "a/b/c").await;
        let root = w.root.clone();
        let ours = beside(move || said(&root)).await;
        let theirs = beside(|| {
            let dir = TempDir::new("tmpfs").unwrap();
            let root = fs::canonicalize(dir.path()).unwrap();
            let mount = |at: &Path| {
                fs::create_dir_all(at).unwrap();
                assert!(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(at).status().unwrap().success());
            };
            let places = [root.clone(), root.join("a"), root.join("a/b/c")];
            places.iter().for_each(|p| mount(p));
            let said = said(&root);
            for at in places.iter().rev() {
                assert!(Command::new("umount").arg(at).status().unwrap().success());
            }
            said
        });
        for (ours, theirs) in ours.iter().zip(&theirs.await) {
            assert_eq!(ours, theirs);
        }
        assert_eq!(at_a.unmount(false).await.unwrap_err().kind(), ErrorKind::Busy, "c is within it");
        end(c, &at_c).await;
        end(a, &at_a).await;
    });
}

#[test]
fn files_have_numbers_and_space_of_their_own() {
    with_world(|w| async move {
        let (a, at_a) = w.graft("tank/a", "a").await;
        let root = w.root.clone();
        beside(move || {
            fs::write(root.join("f"), b"1").unwrap();
            fs::write(root.join("a/f"), b"2").unwrap();
            let ino = |p: &str| fs::symlink_metadata(root.join(p)).unwrap().ino();
            let mut all = ["", "a", "f", "a/f"].map(ino).to_vec();
            for (dir, name) in [("", "f"), ("a", "f")] {
                let mut list = fs::read_dir(root.join(dir)).unwrap().map(|e| e.unwrap());
                let e = list.find(|e| e.file_name() == name).unwrap();
                assert_eq!(
                    std::os::unix::fs::DirEntryExt::ino(&e),
                    ino(format!("{dir}/{name}").trim_start_matches('/'))
                );
            }
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), 4);
        })
        .await;
        // A quota shows whose space it is.
        let quota = vec![("quota".to_string(), PropValue::Num(64 << 20))];
        w.pool.dsl().set_props("tank/a", quota).await.unwrap();
        let root = w.root.clone();
        let blocks = |at: &Path| {
            let out = Command::new("stat").args(["-f", "-c", "%b %S"]).arg(at).output().unwrap();
            let text = String::from_utf8(out.stdout).unwrap();
            text.split_whitespace().map(|v| v.parse::<u64>().unwrap()).product::<u64>()
        };
        beside(move || {
            assert!(blocks(&root.join("a")) <= 64 << 20);
            assert!(blocks(&root) > 128 << 20);
        })
        .await;
        end(a, &at_a).await;
    });
}

#[test]
fn what_is_in_use_stays_and_what_is_only_remembered_does_not() {
    with_world(|w| async move {
        let root = w.root.clone();
        beside(move || {
            fs::create_dir(root.join("a")).unwrap();
            fs::write(root.join("a/hidden"), b"of the outer one").unwrap();
        })
        .await;
        let (a, at_a) = w.graft("tank/a", "a").await;
        let at = w.root.join("a");
        let file = at.clone();
        let open = beside(move || {
            fs::write(file.join("inner"), b"x").unwrap();
            fs::create_dir(file.join("d")).unwrap();
            assert!(!file.join("hidden").exists());
            File::open(file.join("inner")).unwrap()
        })
        .await;
        assert_eq!(at_a.unmount(false).await.unwrap_err().kind(), ErrorKind::Busy, "a file is open");
        beside(move || drop(open)).await;
        for first in ["cd $0/d", "cd $0", "exec 3<$0/d", "exec 3<>$0/inner"] {
            let first = first.replace("$0", &at.display().to_string());
            let process = beside(move || Waiting::new(first)).await;
            assert_eq!(at_a.unmount(false).await.unwrap_err().kind(), ErrorKind::Busy);
            assert!(at_a.is_alive());
            beside(move || drop(process)).await;
        }
        let file = at.clone();
        beside(move || assert!(file.join("inner").exists() && !file.join("hidden").exists())).await;
        end(a, &at_a).await;
        assert!(!at_a.is_alive());
        at_a.unmount(false).await.unwrap();
        let file = at.clone();
        beside(move || {
            assert_eq!(fs::read(file.join("hidden")).unwrap(), b"of the outer one");
            assert!(!file.join("inner").exists());
        })
        .await;
        // By force, and files open then.
        let (a, at_a) = w.graft("tank/a", "a").await;
        let file = at.clone();
        let mut open = beside(move || File::options().append(true).open(file.join("inner")).unwrap()).await;
        at_a.unmount(true).await.unwrap();
        let file = at.clone();
        beside(move || {
            use std::io::Write;
            assert_eq!(open.write(b"y").unwrap_err().raw_os_error(), Some(libc::EIO));
            drop(open);
            assert!(file.join("hidden").exists() && !file.join("inner").exists());
        })
        .await;
        a.unmount().await.unwrap();
        // And there again.
        let (a, at_a) = w.graft("tank/a", "a").await;
        beside(move || assert_eq!(fs::read(at.join("inner")).unwrap(), b"x")).await;
        end(a, &at_a).await;
    });
}

#[test]
fn the_end_of_the_mount_around_it_ends_it() {
    if !can_mount() {
        return;
    }
    with_world(|w| async move {
        let (a, at_a) = w.graft("tank/a", "a").await;
        assert!(fuse::graft(&w.rt, &w.mount, a.clone(), &w.root.join("a"), None).await.is_err(), "twice");
        assert!(fuse::graft(&w.rt, &w.mount, a.clone(), &w.root, None).await.is_err(), "at the root");
        let root = w.root.clone();
        beside(move || assert!(Command::new("umount").arg(root).status().unwrap().success())).await;
        at_a.ended().await;
        assert!(!at_a.is_alive());
        a.unmount().await.unwrap();
    });
}

#[test]
fn acls_decide_in_the_one_that_has_them() {
    with_world(|w| async move {
        let (a, at_a) = w.graft("tank/a", "a").await;
        let root = w.root.clone();
        beside(move || {
            let says = |line: &str| {
                let out = Command::new("sh").args(["-c", line]).current_dir(&root).output().unwrap();
                format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
            };
            says("chmod 755 .; echo x > f; echo x > a/f; chmod 600 f a/f; chown 0:0 f a/f");
            assert_eq!(says("setfacl -m u:5:r a/f; setpriv --reuid 5 --clear-groups cat a/f"), "x\n");
            assert!(says("setfacl -m u:5:r f").contains("not supported"));
            // Without ACLs the mode decides, for others as well.
            assert!(says("setpriv --reuid 5 --clear-groups cat f").contains("denied"));
            assert_eq!(says("chmod 664 f; chgrp 7 f; setpriv --reuid 5 --regid 7 --clear-groups cat f"), "x\n");
            assert_eq!(says("umask 022; mkdir d; stat -c %a d"), "755\n");
        })
        .await;
        end(a, &at_a).await;
    });
}
