//! Direct writes (`O_DIRECT`) beside reads through the page cache. Skipped with a message where
//! there is no FUSE.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::common::{Setup, with_mount};
use bdev::Bytes;
use host::{Direct, Engine, EngineConfig, HostDev, OpenOpts};

/// Bytes of a write.
const LEN: usize = 64 << 10;

/// Writes asynchronously, many at once, while others read the same pages: an answered write is
/// seen.
#[test]
fn an_answered_asynchronous_write_is_seen_through_the_cache() {
    with_mount(Setup::default(), |root| {
        let path = root.join("f");
        fs::write(&path, vec![0; 4 * LEN]).unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let reads = Arc::new(AtomicUsize::new(0));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (file, over, reads) = (File::open(&path).unwrap(), over.clone(), reads.clone());
                std::thread::spawn(move || {
                    let mut buf = vec![0; 4096];
                    while !over.load(Ordering::Relaxed) {
                        for page in 0..4 * LEN / 4096 {
                            file.read_exact_at(&mut buf, page as u64 * 4096).unwrap();
                        }
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let file = File::open(&path).unwrap();
        let engine = Engine::new(EngineConfig::default()).unwrap();
        let rt = engine.rt();
        let stale = engine.block_on(async {
            let opts = OpenOpts { write: true, direct: Direct::On, ..OpenOpts::default() };
            let dev = HostDev::open(&rt, &path, opts).unwrap();
            let mut stale = 0;
            for n in 1..=250u8 {
                let at = |i: usize| ((i + usize::from(n)) % 4 * LEN) as u64;
                let write = |i: usize| bdev::write(&*dev, at(i), Bytes::copy_from(&vec![n; LEN]));
                let writes: Vec<_> = (0..3).map(write).collect();
                for (i, done) in rt::join::join_all(writes).await.into_iter().enumerate() {
                    done.unwrap();
                    let mut buf = vec![0; LEN];
                    file.read_exact_at(&mut buf, at(i)).unwrap();
                    stale += buf.iter().filter(|b| **b != n).count();
                }
            }
            stale
        });
        over.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|r| r.join().unwrap());
        assert!(reads.load(Ordering::Relaxed) > 0);
        assert_eq!(stale, 0, "bytes that were read after their write was answered, and are older");
    });
}
