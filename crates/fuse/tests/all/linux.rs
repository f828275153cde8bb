//! Cases of Linux beyond POSIX, through a real mount. Skipped with a message where there is no
//! FUSE.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Output};

use ondisk::feature::FeatureId;

use crate::common::{Setup, with_mount, with_mount_of};

fn sh(dir: &Path, script: &str) -> Output {
    Command::new("sh").args(["-ec", script]).current_dir(dir).output().unwrap()
}

/// The output of a script, which must succeed.
#[track_caller]
fn says(dir: &Path, script: &str) -> String {
    let out = sh(dir, script);
    assert!(out.status.success(), "{script}: {out:?}");
    String::from_utf8(out.stdout).unwrap().trim().to_string()
}

/// A system call that the standard library does not have; its error, 0 for none.
fn syscall(dir: &Path, args: &str) -> i32 {
    let script = format!("perl -e 'my ($n, @a) = ({args}); my $r = syscall($n, @a); exit($r == -1 ? $!+0 : 0)'");
    sh(dir, &script).status.code().unwrap()
}

fn renameat2(dir: &Path, from: &str, to: &str, flags: u32) -> i32 {
    let cwd = libc::AT_FDCWD;
    syscall(dir, &format!(r#"{}, {cwd}, "{from}", {cwd}, "{to}", {flags}"#, libc::SYS_renameat2))
}

#[test]
fn a_directory_that_was_removed_is_empty_and_has_no_links() {
    with_mount(Setup::default(), |root| {
        for remove in ["rmdir ../d", "mkdir ../e; mv -T ../e ../d"] {
            let out =
                says(&root, &format!("mkdir d; cd d; {remove}; ls -A; stat -c %h .; exec 3<.; stat -Lc %h /dev/fd/3"));
            assert_eq!(out, "0\n0", "{remove}");
            let out = sh(&root, &format!("mkdir -p d; cd d; {remove}; echo > new"));
            assert!(!out.status.success() && String::from_utf8_lossy(&out.stderr).contains("nonexistent"), "{out:?}");
            says(&root, "[ ! -e d ] || rmdir d");
        }
        // One that is open, but no process's working folder.
        fs::create_dir(root.join("d")).unwrap();
        let d = File::open(root.join("d")).unwrap();
        fs::remove_dir(root.join("d")).unwrap();
        assert_eq!(d.metadata().unwrap().nlink(), 0);
        assert_eq!(fs::read_dir(format!("/proc/self/fd/{}", d.as_raw_fd())).unwrap().count(), 0);
    });
}

#[test]
fn files_without_a_name_get_one() {
    with_mount(Setup::default(), |root| {
        let anonymous = |more: i32| {
            OpenOptions::new().read(true).write(true).mode(0o640).custom_flags(libc::O_TMPFILE | more).open(&root)
        };
        let link = |f: &File, name: &str| {
            let (cwd, follow, fd) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW, f.as_raw_fd());
            let from = format!("/proc/{}/fd/{fd}", std::process::id());
            syscall(&root, &format!(r#"{}, {cwd}, "{from}", {cwd}, "{name}", {follow}"#, libc::SYS_linkat))
        };
        let mut f = anonymous(0).unwrap();
        f.write_all(b"content").unwrap();
        let m = f.metadata().unwrap();
        assert_eq!((m.nlink(), m.mode() & 0o7777, m.len()), (0, 0o640, 7));
        assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
        assert_eq!(link(&f, "name"), 0);
        assert_eq!(f.metadata().unwrap().nlink(), 1);
        f.sync_all().unwrap();
        assert_eq!(fs::read_to_string(root.join("name")).unwrap(), "content");
        assert_eq!(link(&anonymous(0).unwrap(), "name"), libc::EEXIST);
        assert_eq!(link(&anonymous(libc::O_EXCL).unwrap(), "sealed"), libc::ENOENT);
        drop(f);
        fs::remove_file(root.join("name")).unwrap();
    });
}

#[test]
fn a_rename_leaves_a_whiteout() {
    with_mount(Setup::default(), |root| {
        fs::write(root.join("a"), "a").unwrap();
        fs::create_dir(root.join("d")).unwrap();
        assert_eq!(renameat2(&root, "a", "d/b", libc::RENAME_WHITEOUT), 0);
        assert_eq!(fs::read_to_string(root.join("d/b")).unwrap(), "a");
        let left = fs::symlink_metadata(root.join("a")).unwrap();
        assert!(left.file_type().is_char_device());
        assert_eq!((left.rdev(), left.mode() & 0o7777), (0, 0));
        let both = libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE;
        fs::write(root.join("c"), "c").unwrap();
        assert_eq!(renameat2(&root, "c", "d/b", both), libc::EEXIST);
        let exchange = libc::RENAME_EXCHANGE;
        assert_eq!(renameat2(&root, "c", "d/b", libc::RENAME_WHITEOUT | exchange), libc::EINVAL);
        assert_eq!(renameat2(&root, "c", "d/b", exchange), 0);
        assert_eq!(fs::read_to_string(root.join("c")).unwrap(), "a");
    });
}

#[test]
fn overlayfs_has_its_upper_layer_here() {
    with_mount(Setup::default(), |root| {
        let known = fs::read_to_string("/proc/filesystems").unwrap();
        if !known.contains("overlay") {
            eprintln!("SKIPPED: this kernel has no overlayfs");
            return;
        }
        let out = says(
            &root,
            "mkdir lower upper work merged; mkdir lower/d lower/gone
             for f in keep change remove move d/in gone/x; do echo lower > lower/$f; done
             unshare -m --propagation private sh -ec '
                 mount -t overlay o -o lowerdir=lower,upperdir=upper,workdir=work merged
                 cd merged
                 echo upper >> change; rm remove; mv move moved; rm -r gone; mkdir gone; echo new > gone/y
                 echo more > d/more; mv d e; ln keep kept; chmod 600 keep; setfattr -n user.a -v b keep
                 sync
                 find . | sort | tr \"\\n\" \" \"'
             ls -A upper | tr '\\n' ' '; stat -c '%t:%T %F' upper/remove",
        );
        assert!(out.starts_with(". ./change ./e ./e/in ./e/more ./gone ./gone/y ./keep ./kept ./moved "), "{out}");
        assert!(out.ends_with("0:0 character special file"), "{out}");
        assert_eq!(fs::read_to_string(root.join("upper/change")).unwrap(), "lower\nupper\n");
        assert_eq!(fs::read_to_string(root.join("lower/change")).unwrap(), "lower\n");
        // The same again from disk.
        let again = "unshare -m --propagation private sh -ec '
            mount -t overlay o -o lowerdir=lower,upperdir=upper,workdir=work merged
            cd merged; cat moved e/more gone/y; ls gone'";
        assert_eq!(says(&root, again), "lower\nmore\nnew\ny");
    });
}

#[test]
fn attribute_names_have_slashes_and_files_the_last_byte() {
    with_mount(Setup::default(), |root| {
        says(&root, "echo > f; setfattr -n user.a/b -v c f");
        assert_eq!(says(&root, "getfattr --only-values -n user.a/b f"), "c");
        use std::os::unix::fs::FileExt;
        let f = File::create(root.join("large")).unwrap();
        f.write_all_at(b"x", i64::MAX as u64 - 1).unwrap();
        assert_eq!(f.metadata().unwrap().len(), i64::MAX as u64);
    });
}

/// Reads are accesses also where the kernel has the data already, or there are none.
#[test]
fn opening_and_reading_changes_the_access_time() {
    let always: &[(&str, u64)] = &[("relatime", 0)];
    for props in [&[], always] {
        with_mount(Setup { props, ..Setup::default() }, move |root| {
            let read = |name: &str| {
                let mut all = Vec::new();
                File::open(root.join(name)).unwrap().read_to_end(&mut all).unwrap();
                fs::metadata(root.join(name)).unwrap().atime()
            };
            fs::write(root.join("full"), vec![7; 10_000]).unwrap();
            fs::write(root.join("empty"), "").unwrap();
            fs::create_dir(root.join("dir")).unwrap();
            // Cached files, with times as if written long ago and not read since.
            for name in ["full", "empty"] {
                read(name);
                says(&root, &format!("touch -d @1000 {name}"));
                assert!(read(name) > 1000, "{name} {props:?}");
            }
            says(&root, "touch -d @1000 full");
            let mut unseen =
                OpenOptions::new().read(true).custom_flags(libc::O_NOATIME).open(root.join("full")).unwrap();
            unseen.read_exact(&mut [0; 100]).unwrap();
            assert_eq!(unseen.metadata().unwrap().atime(), 1000);
            says(&root, "touch -d @1000 dir; ls dir");
            assert!(fs::metadata(root.join("dir")).unwrap().atime() > 1000);
            if !props.is_empty() {
                says(&root, "touch -a -d @2000000000 full; touch -a -d @1000 full");
                assert!(read("full") > 1000);
            }
        });
    }
}

/// Stores to a shared mapping from before a file became immutable: earlier ones are kept, later
/// ones are neither kept nor seen.
#[test]
fn mappings_of_immutable_files_show_what_is_in_them() {
    with_mount(Setup::default(), |root| {
        let python = Command::new("python3").arg("-V").output();
        if !python.is_ok_and(|o| o.status.success()) {
            eprintln!("SKIPPED: no python3 to map a file with");
            return;
        }
        let script = "
import fcntl, mmap, os, struct, time
fd = os.open('f', os.O_RDWR | os.O_CREAT, 0o644)
os.write(fd, b'x' * 8192)
fd = os.open('f', os.O_RDWR)
m = mmap.mmap(fd, 8192)
def flags(v):
    fcntl.ioctl(fd, 0x40086602, struct.pack('l', v))
m[0:1] = b'a'
flags(0x10)
m[4096:4097] = b'b'
try:
    m.flush()
    print('no error')
except PermissionError:
    pass
for _ in range(10000):
    # The kernel drops the page on its own time.
    if m[4096:4097] != b'b':
        break
    time.sleep(0.001)
print(m[0:1], m[4096:4097], os.pread(fd, 1, 0), os.pread(fd, 1, 4096))
flags(0)
m[4096:4097] = b'c'
m.flush()
print(os.pread(fd, 1, 4096))
";
        let out = Command::new("python3").args(["-c", script]).current_dir(&root).output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        assert_eq!(said, "b'a' b'x' b'a' b'x'\nb'c'\n", "{out:?}");
    });
}

/// The kernel checks flags of files that it keeps itself; those of FUSE it leaves to the daemon.
#[test]
fn protected_files_are_not_opened_for_writing() {
    with_mount(Setup::default(), |root| {
        let tools = Command::new("sh").args(["-c", "command -v chattr"]).output();
        if !tools.is_ok_and(|o| o.status.success()) {
            eprintln!("SKIPPED: no chattr");
            return;
        }
        let open = |how: &OpenOptions| how.open(root.join("f")).map(|_| ());
        let errors = |all: &[OpenOptions]| -> Vec<i32> {
            all.iter().map(|how| open(how).err().and_then(|e| e.raw_os_error()).unwrap_or(0)).collect()
        };
        let how = |read: bool, write: bool, append: bool| {
            let mut o = OpenOptions::new();
            o.read(read).write(write).append(append);
            o
        };
        let mut truncating = how(false, true, false);
        truncating.truncate(true);
        let all = [
            how(true, false, false),
            how(false, true, false),
            how(true, true, false),
            how(false, false, true),
            how(true, false, true),
            truncating,
        ];
        fs::write(root.join("f"), "x").unwrap();
        says(&root, "chattr +i f");
        assert_eq!(errors(&all), [0, 1, 1, 1, 1, 1], "immutable");
        says(&root, "chattr -i +a f");
        assert_eq!(errors(&all), [0, 1, 1, 0, 0, 1], "append-only");
        says(&root, "chattr -a f");
        assert_eq!(errors(&all), [0; 6]);
        assert_eq!(fs::read(root.join("f")).unwrap(), b"");
    });
}

#[test]
fn chown_to_nobody_else_changes_the_change_time() {
    with_mount(Setup::default(), |root| {
        says(&root, "touch f; chmod 6755 f; mkdir d; mkfifo p; ln -s f l");
        for name in ["f", "d", "p", "l"] {
            let path = root.join(name);
            let changed = |m: fs::Metadata| (m.ctime(), m.ctime_nsec());
            let before = changed(fs::symlink_metadata(&path).unwrap());
            std::os::unix::fs::lchown(&path, None, None).unwrap();
            assert!(changed(fs::symlink_metadata(&path).unwrap()) > before, "{name}");
        }
        assert_eq!(says(&root, "stat -c %a f"), "755");
    });
}

/// The kernel lets names of up to 1024 bytes through to FUSE, or more, so `longname` decides.
#[test]
fn names_may_have_1023_bytes() {
    let name = |letter: char, len: usize| letter.to_string().repeat(len);
    let too_long = |r: std::io::Result<()>| assert_eq!(r.unwrap_err().raw_os_error(), Some(libc::ENAMETOOLONG));
    for on in [false, true] {
        let props: &[(&str, u64)] = if on { &[("longname", 1)] } else { &[] };
        with_mount(Setup { props, features: &[FeatureId::Longname], ..Setup::default() }, move |root| {
            let longest = if on { 1023 } else { 255 };
            assert_eq!(says(&root, "stat -f -c %l ."), longest.to_string());
            for len in [longest + 1, 1024, 1025, 3000] {
                let at = root.join(name('x', len));
                too_long(fs::write(&at, b""));
                too_long(fs::metadata(&at).map(drop));
                too_long(fs::create_dir(&at));
            }
            let dir = root.join(name('d', longest));
            fs::create_dir(&dir).unwrap();
            let mut want = Vec::new();
            for n in 0..300 {
                let name = format!("{n:04}{}", name('f', longest - 4 - n % 200));
                fs::write(dir.join(&name), &name).unwrap();
                want.push(name);
            }
            let list = |dir: &Path| {
                let mut all: Vec<String> =
                    fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
                all.sort();
                all
            };
            assert_eq!(list(&dir), want);
            assert_eq!(fs::read_to_string(dir.join(&want[299])).unwrap(), want[299]);
            too_long(fs::rename(dir.join(&want[0]), dir.join(name('y', longest + 1))));
            too_long(fs::hard_link(dir.join(&want[0]), dir.join(name('y', longest + 1))));
            let (moved, linked) = (root.join(name('m', longest)), root.join(name('l', longest)));
            fs::rename(dir.join(&want[0]), &moved).unwrap();
            fs::hard_link(&moved, &linked).unwrap();
            std::os::unix::fs::symlink(name('t', 3000), root.join(name('s', longest))).unwrap();
            assert_eq!(fs::read_link(root.join(name('s', longest))).unwrap().as_os_str().len(), 3000);
            assert_eq!(fs::metadata(&linked).unwrap().nlink(), 2);
            assert_eq!(list(&root), [name('d', longest), name('l', longest), name('m', longest), name('s', longest)]);
            fs::remove_file(&moved).unwrap();
            assert!(!moved.exists() && linked.exists());
            fs::remove_dir_all(&dir).unwrap();
            assert!(!dir.exists());
        });
    }
}

/// Copies by `copy_file_range(2)` share blocks where the pool can clone them, and do not where it
/// cannot: the bytes are the same. (`cp` makes that call for files that do not look sparse; one
/// that is not on disk yet does.)
#[test]
fn copies_share_blocks() {
    for features in [&[FeatureId::BlockCloning][..], &[]] {
        let setup = Setup { features, props: &[("compression", 2)], ..Setup::default() };
        let client = |root: std::path::PathBuf| {
            let copy = "import os, sys; a, b = os.open(sys.argv[1], 0), os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)\n\
                        while os.copy_file_range(a, b, 1 << 30): pass\n";
            std::fs::write(root.join("copy.py"), copy).unwrap();
            says(&root, "head -c 20000000 /dev/urandom > a");
            // Opened to be read and written, so that the kernel has pages of the target.
            says(&root, "python3 copy.py a b; cmp a b; python3 copy.py a c");
            says(&root, "printf x | dd of=c bs=1 seek=5000000 conv=notrunc status=none");
            let differs = sh(&root, "cmp a c");
            assert_eq!(differs.status.code(), Some(1), "{differs:?}");
            says(
                &root,
                "cmp -n 5000000 a c; cmp -i 5000001 a c; cmp a b; head -c 3000 a > s; python3 copy.py s t; cmp s t",
            );
            says(
                &root,
                "truncate -s 100M sparse; python3 copy.py sparse full; cmp sparse full; rm a; python3 copy.py b d",
            );
            says(&root, "cmp b d; cp b e; cmp b e");
        };
        with_mount_of(setup, client, |pool| {
            let (used, saved) = pool.cloned();
            let least = if features.is_empty() { 0 } else { 30_000_000 };
            assert!(saved >= least && (saved > 0) == (used > 0) && (saved > 0) == (least > 0), "{used} {saved}");
        });
    }
}
