//! Texts that are made when they are opened, through a mount.

use std::cell::{Cell, RefCell};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::rc::Rc;

use base::{Error, Result};
use fuse::{TextNode, TextSource, mount_texts};
use host::{Engine, EngineConfig, TempDir};
use rt::LocalBoxFuture;

use crate::common::can_mount;

/// `a` counts its texts, `dir/b` is what was written to it last.
#[derive(Default)]
struct Source {
    made: Cell<u64>,
    written: RefCell<Vec<u8>>,
}

const LONG: usize = 300_000;

fn what(path: &str) -> Option<TextNode> {
    let file = |mode| Some(TextNode { is_folder: false, mode });
    match path {
        "" | "dir" => Some(TextNode { is_folder: true, mode: 0o555 }),
        "a" | "broken" => file(0o444),
        "dir/b" => file(0o644),
        _ => None,
    }
}

impl TextSource for Source {
    fn find(&self, path: String) -> LocalBoxFuture<'_, Result<Option<TextNode>>> {
        Box::pin(async move { Ok(what(&path)) })
    }
    fn list(&self, path: String) -> LocalBoxFuture<'_, Result<Vec<(String, TextNode)>>> {
        let names: &[&str] = if path.is_empty() { &["a", "dir", "broken"] } else { &["b"] };
        let at = |n: &str| if path.is_empty() { n.to_string() } else { format!("{path}/{n}") };
        let all = names.iter().map(|n| (n.to_string(), what(&at(n)).unwrap())).collect();
        Box::pin(async move { Ok(all) })
    }
    fn read(&self, path: String) -> LocalBoxFuture<'_, Result<Vec<u8>>> {
        Box::pin(async move {
            match path.as_str() {
                "a" => {
                    self.made.set(self.made.get() + 1);
                    Ok(format!("{:07}\n", self.made.get()).repeat(LONG / 8).into_bytes())
                }
                "dir/b" => Ok(self.written.borrow().clone()),
                _ => Err(Error::new(base::ErrorKind::Busy, "an engine does not answer")),
            }
        })
    }
    fn write(&self, _: String, data: Vec<u8>) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            if data == b"wrong" {
                return Err(Error::invalid("no such value"));
            }
            *self.written.borrow_mut() = data;
            Ok(())
        })
    }
}

fn with_texts(client: impl FnOnce(PathBuf) + Send + 'static) {
    if !can_mount() {
        return;
    }
    let dir = TempDir::new("texts").unwrap();
    let engine = Engine::new(EngineConfig::default()).unwrap();
    let rt = engine.rt();
    engine.block_on(async {
        let path = fs::canonicalize(dir.path()).unwrap();
        let mounted = mount_texts(&rt, "texts", Rc::new(Source::default()), &path).await.unwrap();
        let run = move || std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| client(path)));
        let result = host::blocking(run).await.unwrap();
        let busy = mounted.unmount(false, false).await;
        if let Err(panic) = result {
            let _ = mounted.unmount(true, true).await;
            std::panic::resume_unwind(panic);
        }
        busy.unwrap();
        assert_eq!(mounted.stats().refused, 0);
    });
}

/// The number that every line of a text has.
fn number(text: &[u8]) -> u64 {
    let first = &text[..8];
    assert!(text.chunks(8).all(|line| line == first), "lines of several texts");
    std::str::from_utf8(first).unwrap().trim().parse().unwrap()
}

#[test]
fn an_open_file_is_one_text_however_it_is_read() {
    with_texts(|dir| {
        let path = dir.join("a");
        assert_eq!(fs::metadata(&path).unwrap().size(), 0);
        let mut first = File::open(&path).unwrap();
        let mut second = File::open(&path).unwrap();
        // One byte at a time, then what is left at once.
        let mut text = Vec::new();
        for _ in 0..100 {
            let mut byte = [0];
            first.read_exact(&mut byte).unwrap();
            text.push(byte[0]);
        }
        first.read_to_end(&mut text).unwrap();
        assert_eq!((text.len(), number(&text)), (LONG, 1));
        // From the end to the beginning, in pieces of odd sizes.
        let mut other = vec![0; LONG];
        let mut at = LONG;
        while at > 0 {
            let n = at.min(7_777);
            at -= n;
            second.seek(SeekFrom::Start(at as u64)).unwrap();
            second.read_exact(&mut other[at..at + n]).unwrap();
        }
        assert_eq!(number(&other), 2);
        // Side by side from one descriptor, and from many.
        std::thread::scope(|s| {
            for n in 0..8u64 {
                let (first, text, path) = (&first, &text, &path);
                s.spawn(move || {
                    for round in 0..50 {
                        let mut piece = vec![0; 5_000];
                        let at = (n * 31_000 + round * 997) % (LONG as u64 - 5_000);
                        first.read_exact_at(&mut piece, at).unwrap();
                        assert_eq!(piece, text[at as usize..][..5_000]);
                        number(&fs::read(path).unwrap());
                    }
                });
            }
        });
        // Behind its end there is nothing.
        for at in [LONG as u64, LONG as u64 + 1, 1 << 62] {
            assert_eq!(first.read_at(&mut [0; 10], at).unwrap(), 0);
        }
        assert_eq!(first.read_at(&mut [0; 10], LONG as u64 - 3).unwrap(), 3);
        assert!(first.write_at(b"x", 0).is_err());
    });
}

#[test]
fn files_take_what_is_written_and_nothing_else_changes() {
    with_texts(|dir| {
        let b = dir.join("dir/b");
        fs::write(&b, "one").unwrap();
        assert_eq!(fs::read(&b).unwrap(), b"one");
        let mut file = OpenOptions::new().append(true).open(&b).unwrap();
        file.write_all(b"two\n").unwrap();
        assert_eq!(fs::read(&b).unwrap(), b"two\n");
        assert_eq!(file.write(b"wrong").unwrap_err().raw_os_error(), Some(22));
        assert!(file.write(&[b'x'; 5000]).is_err());
        assert_eq!(fs::read(&b).unwrap(), b"two\n");
        let names = |d: &PathBuf| {
            let mut names: Vec<String> =
                fs::read_dir(d).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        assert_eq!(
            (names(&dir), names(&dir.join("dir"))),
            (vec!["a".into(), "broken".into(), "dir".into()], vec!["b".into()])
        );
        assert_eq!(fs::metadata(&b).unwrap().permissions().mode(), 0o100_644);
        assert_eq!(File::open(dir.join("broken")).unwrap_err().kind(), ErrorKind::ResourceBusy);
        assert_eq!(File::open(dir.join("absent")).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(File::open(dir.join("a/x")).unwrap_err().kind(), ErrorKind::NotADirectory);
        let denied = |r: std::io::Result<()>| assert_eq!(r.unwrap_err().raw_os_error(), Some(1));
        denied(File::create(dir.join("new")).map(drop));
        denied(fs::create_dir(dir.join("new")));
        denied(fs::remove_file(dir.join("a")));
        denied(fs::remove_dir(dir.join("dir")));
        denied(fs::rename(dir.join("a"), dir.join("c")));
        denied(fs::hard_link(dir.join("a"), dir.join("c")));
        denied(std::os::unix::fs::symlink("a", dir.join("c")));
        denied(fs::set_permissions(&b, fs::Permissions::from_mode(0o600)));
    });
}
