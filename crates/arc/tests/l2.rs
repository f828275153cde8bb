//! Cache devices over real block I/O: what they give is right or is not given, whatever is on them.
#![allow(clippy::unwrap_used)]

#[path = "../../zio/tests/common/mod.rs"]
mod common;

use std::rc::Rc;

use arc::{Arc, CacheDevice, Held, Keep, L2Tunables};
use base::{Guid, Nanos, Txg};
use bdev::{Bytes, MemDev};
use common::{Lab, noise, text};
use ondisk::blkptr::{Blkptr, Dva};
use ondisk::l2arc::{DevHeader, HEADER_OFFSET, LogBlock, LogEntry, LogPtr, Prop};
use ondisk::label::{DeviceLabel, VERSION_FEATURES};
use ondisk::object_type::ObjectType;
use sim::Rng;
use vdev::Prio;
use vdev::labels::init_labels;
use zio::{ChecksumAlgo, Compression, WriteReq};

/// Bytes of the cache devices here: a ring of 27 MiB, so that it goes round soon.
const SIZE: u64 = 32 << 20;
const CACHE: Guid = Guid(77);

/// Feeds often, and log blocks of one entry on the smallest devices.
fn tunables() -> L2Tunables {
    L2Tunables { feed_interval: Nanos::from_ms(10), rebuild_min_size: 0, ..L2Tunables::default() }
}

fn arc(lab: &Lab, limit: u64) -> Arc {
    let arc = Arc::new(lab.rt.clone(), lab.zio.clone(), limit);
    arc.set_l2_tunables(tunables());
    arc
}

fn device(dev: &Rc<MemDev>) -> CacheDevice {
    CacheDevice { guid: CACHE, dev: dev.clone(), ashift: 12, writable: true }
}

/// Writes a block as a sync does: the cache gets it in both forms.
async fn put(lab: &Lab, arc: &Arc, data: Bytes, req: impl FnOnce(&mut WriteReq)) -> Blkptr {
    let mut r =
        WriteReq { compression: Compression::LZ4, ..WriteReq::new(data.clone(), ObjectType::PLAIN_FILE, 0, Txg(10)) };
    req(&mut r);
    let mut out = lab.zio.write(r).await.unwrap();
    let stored = out.stored.take();
    arc.insert(&out.bp, data, false);
    if let Some(stored) = stored {
        arc.offer_written(&out.bp, stored, false);
    }
    out.done.await.unwrap();
    out.bp
}

/// Forgets what is in memory, and nothing else.
fn empty(arc: &Arc) {
    let limit = arc.limit();
    arc.set_limit(0);
    arc.set_limit(limit);
}

/// Every byte of the ring and the header is another one.
fn spoil(dev: &MemDev) {
    let mut page = vec![0; 1 << 20];
    for at in (HEADER_OFFSET..SIZE - (1 << 20)).step_by(1 << 20) {
        dev.peek(at, &mut page);
        page.iter_mut().for_each(|b| *b ^= 0x5a);
        dev.poke(at, &page);
    }
}

#[test]
fn what_left_memory_is_read_from_the_device() {
    let lab = Lab::new(1, 64 << 20, 12);
    let arc = arc(&lab, 16 << 20);
    let dev = Rc::new(MemDev::new(&lab.rt, SIZE));
    lab.sim.block_on(async {
        arc.add_cache(device(&dev)).unwrap();
        let mut blocks = Vec::new();
        for n in 0..20 {
            let data = if n % 2 == 0 { text(n, 65_536) } else { noise(n, 12_800) };
            blocks.push((put(&lab, &arc, data.clone(), |_| {}).await, data));
        }
        lab.rt.sleep(Nanos::from_secs(1)).await;
        empty(&arc);
        for (bp, data) in &blocks {
            assert_eq!(&arc.read(bp, Prio::SyncRead).await.unwrap(), data);
        }
        assert_eq!((lab.zio.stats().reads, arc.l2_stats().hits), (0, 20));
        // A freed block is not found any more, and nothing is read from a device that is removed.
        empty(&arc);
        arc.forget(&blocks[0].0);
        assert_eq!(arc.read(&blocks[0].0, Prio::SyncRead).await.unwrap(), blocks[0].1);
        assert_eq!(lab.zio.stats().reads, 1);
        let used = arc.l2_stats();
        arc.offline_cache(CACHE).await;
        for (bp, data) in &blocks[1..] {
            assert_eq!(&arc.read(bp, Prio::SyncRead).await.unwrap(), data);
        }
        assert_eq!((lab.zio.stats().reads, arc.l2_stats().hdr_size, arc.caches().len()), (20, 0, 0));
        // It still holds what it held, until it is removed.
        let held = |s: arc::L2Stats| (s.asize, s.held);
        assert!(used.asize > 0 && held(arc.l2_stats()) == held(used));
        arc.remove_cache(CACHE).await;
        assert_eq!(held(arc.l2_stats()), (0, arc::Held::default()));
    });
}

#[test]
fn wrong_bytes_and_errors_cost_only_the_read_from_the_pool() {
    let lab = Lab::new(1, 64 << 20, 12);
    let arc = arc(&lab, 16 << 20);
    let dev = Rc::new(MemDev::new(&lab.rt, SIZE));
    lab.sim.block_on(async {
        arc.add_cache(device(&dev)).unwrap();
        let data = noise(1, 40_960);
        let bp = put(&lab, &arc, data.clone(), |_| {}).await;
        // Without a checksum nothing could tell.
        let bare = put(&lab, &arc, text(3, 8192), |r| r.checksum = ChecksumAlgo::Off).await;
        lab.rt.sleep(Nanos::from_secs(1)).await;
        empty(&arc);
        spoil(&dev);
        assert_eq!(arc.read(&bp, Prio::SyncRead).await.unwrap(), data);
        assert_eq!(arc.read(&bare, Prio::SyncRead).await.unwrap(), text(3, 8192));
        let s = arc.l2_stats();
        assert_eq!((lab.zio.stats().reads, s.hits, s.cksum_bad, s.misses), (2, 0, 1, 2));
        assert_eq!(lab.zio.stats().checksum_errors, 0, "the pool is not blamed");
        // The block was read from the pool, so it is written to the device again.
        lab.rt.sleep(Nanos::from_secs(1)).await;
        empty(&arc);
        assert_eq!(arc.read(&bp, Prio::SyncRead).await.unwrap(), data);
        assert_eq!(arc.l2_stats().hits, 1);
    });
}

/// Random work against what was written: blocks come, are read, rewritten in place and freed while
/// the ring goes round several times and memory is short.
#[test]
fn reads_are_right_while_the_ring_goes_round() {
    let mut hits = 0;
    for seed in 0..6 {
        let lab = Lab::with(sim::SimConfig::seeded(seed), 1, 256 << 20, if seed % 2 == 0 { 9 } else { 12 });
        let arc = arc(&lab, 6 << 20);
        let dev = Rc::new(MemDev::new(&lab.rt, SIZE));
        lab.sim.block_on(async {
            arc.add_cache(device(&dev)).unwrap();
            let mut rng = Rng::new(seed);
            let mut blocks: Vec<(Blkptr, Bytes)> = Vec::new();
            for n in 0..2500u64 {
                match rng.below(10) {
                    0..4 => {
                        let len = (rng.below(128) as usize + 1) << 9;
                        let data = if rng.percent(50) { text(n, len) } else { noise(n, len) };
                        blocks.push((put(&lab, &arc, data.clone(), |_| {}).await, data));
                    }
                    4 if !blocks.is_empty() => {
                        let at = rng.below(blocks.len() as u64) as usize;
                        let (bp, _) = blocks.swap_remove(at);
                        arc.forget(&bp);
                        lab.zio.free(&bp, Txg(10)).unwrap();
                    }
                    5 if !blocks.is_empty() => {
                        let at = rng.below(blocks.len() as u64) as usize;
                        let (old, was) = blocks[at].clone();
                        let data = noise(n, was.len());
                        let new = put(&lab, &arc, data.clone(), |r| (r.pass, r.rewrite) = (2, Some(old))).await;
                        blocks[at] = (new, data);
                    }
                    _ if !blocks.is_empty() => {
                        let at = rng.below(blocks.len() as u64) as usize;
                        let (bp, data) = &blocks[at];
                        let prio = if rng.percent(80) { Prio::SyncRead } else { Prio::AsyncRead };
                        assert_eq!(&arc.read(bp, prio).await.unwrap(), data, "seed {seed}, step {n}");
                    }
                    _ => {}
                }
                if rng.percent(20) {
                    lab.rt.sleep(Nanos(rng.below(20_000_000))).await;
                }
                assert!(arc.size() <= arc.limit());
            }
            let (s, view) = (arc.l2_stats(), arc.caches()[0]);
            assert!(s.write_bytes > SIZE && view.alloc <= view.size, "the ring went round: {s:?} {view:?}");
            assert_eq!((s.cksum_bad, s.io_error, s.writes_error), (0, 0, 0), "{s:?}");
            hits += s.hits;
        });
    }
    assert!(hits > 100, "{hits}");
}

/// Blocks on a device, and the device: `count` of 100 KiB, the last ones are on it.
async fn filled(lab: &Lab, dev: &Rc<MemDev>, count: u64) -> Vec<(Blkptr, Bytes)> {
    let arc = arc(lab, 64 << 20);
    arc.add_cache(device(dev)).unwrap();
    let mut blocks = Vec::new();
    for n in 0..count {
        let data = noise(n, 100 << 10);
        blocks.push((put(lab, &arc, data.clone(), |_| {}).await, data));
        lab.rt.sleep(Nanos::from_ms(15)).await;
    }
    lab.rt.sleep(Nanos::from_secs(1)).await;
    arc.close_caches().await;
    blocks
}

#[test]
fn what_is_on_a_device_is_found_again() {
    // The first sweep, the wrap within a log block, several times round.
    for count in [5, 260, 300, 1000] {
        let lab = Lab::new(1, 256 << 20, 12);
        let dev = Rc::new(MemDev::new(&lab.rt, SIZE));
        lab.sim.block_on(async {
            let blocks = filled(&lab, &dev, count).await;
            let arc = arc(&lab, 64 << 20);
            arc.add_cache(device(&dev)).unwrap();
            lab.rt.sleep(Nanos::from_secs(1)).await;
            let s = arc.l2_stats();
            assert_eq!(s.rebuild_success, 1, "{count}: {s:?}");
            let held = s.held;
            assert_eq!((held.asize + s.log_blk_asize, held.recent + held.frequent), (s.asize, held.asize), "{s:?}");
            assert!(held.lsize >= s.rebuild_bufs * 512 && held.lsize == s.rebuild_size && held.meta == 0, "{s:?}");
            assert!(s.log_blk_count >= s.rebuild_log_blks && s.log_blk_count > 0, "{s:?}");
            let kept = count.min(200) - 1;
            assert!(s.rebuild_bufs >= kept && s.rebuild_bufs <= count, "{count}: {s:?}");
            for (bp, data) in &blocks[(count - kept) as usize..] {
                assert_eq!(&arc.read(bp, Prio::SyncRead).await.unwrap(), data, "{count}");
            }
            let s = arc.l2_stats();
            assert!(s.hits >= kept - 1 && s.cksum_bad == 0, "{count}: {s:?}");
            // With the tunable off the hand goes on, and nothing is found.
            arc.close_caches().await;
            let off = Arc::new(lab.rt.clone(), lab.zio.clone(), 64 << 20);
            off.set_l2_tunables(L2Tunables { rebuild: false, ..tunables() });
            off.add_cache(device(&dev)).unwrap();
            lab.rt.sleep(Nanos::from_secs(1)).await;
            assert_eq!((off.l2_stats().hdr_size, off.l2_stats().rebuild_success), (0, 0));
            assert_eq!(off.l2_stats().held, Held::default());
            off.close_caches().await;
        });
    }
}

/// What zdb of OpenZFS 2.4 says of a device; none if it is not there (`ZFS24_DIR`).
fn zdb(dev: &MemDev) -> Option<String> {
    let zdb = std::path::Path::new(&std::env::var_os("ZFS24_DIR")?).join("bin/zdb24");
    let file = std::env::temp_dir().join(format!("weir-l2arc-{}.img", std::process::id()));
    let mut image = vec![0; SIZE as usize];
    dev.peek(0, &mut image);
    std::fs::write(&file, image).ok()?;
    let out = std::process::Command::new(zdb).arg("-lll").arg(&file).output();
    std::fs::remove_file(&file).ok()?;
    let out = out.ok()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "zdb ends with {}: {text}{}", out.status, String::from_utf8_lossy(&out.stderr));
    Some(text)
}

/// zdb walks the chains and finds every log block that the header counts, with its checksum, in the
/// first sweep and when the ring went round.
#[test]
fn zdb_reads_header_and_log_blocks() {
    for count in [5, 1000] {
        let lab = Lab::new(1, 256 << 20, 12);
        let dev = Rc::new(MemDev::new(&lab.rt, SIZE));
        lab.sim.block_on(async {
            let label = DeviceLabel::Cache { version: VERSION_FEATURES, guid: CACHE };
            init_labels(&*dev, &label.to_nvlist()).await.unwrap();
            filled(&lab, &dev, count).await;
        });
        let mut header = vec![0; 4096];
        dev.peek(HEADER_OFFSET, &mut header);
        let header = DevHeader::parse(&header).unwrap();
        assert_eq!(header.first, count == 5);
        let Some(text) = zdb(&dev) else {
            eprintln!("NOT JUDGED: zdb of OpenZFS 2.4 is missing");
            return;
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        let has = |want: &str| words.windows(5).any(|w| w.join(" ").starts_with(want));
        assert!(has("L2ARC device header") && has("pool_guid: 1 "), "{text}");
        let at = words.iter().position(|w| *w == "log_blk_count:").unwrap();
        // It may find one that the ring is about to come to.
        assert!(words[at + 1].parse::<u64>().unwrap() >= header.log_count, "{header:?} {text}");
        assert!(header.log_count >= if count == 5 { 5 } else { 200 }, "{header:?}");
        assert!(has("0 with invalid cksum"), "{text}");
    }
}

/// A device of another pool, or another device of this, begins empty; one that is only read is not
/// written.
#[test]
fn foreign_devices_begin_empty() {
    let lab = Lab::new(1, 64 << 20, 12);
    let dev = Rc::new(MemDev::new(&lab.rt, SIZE));
    lab.sim.block_on(async {
        let blocks = filled(&lab, &dev, 20).await;
        let mut before = vec![0; SIZE as usize];
        dev.peek(0, &mut before);
        let reader = arc(&lab, 64 << 20);
        reader.add_cache(CacheDevice { writable: false, ..device(&dev) }).unwrap();
        lab.rt.sleep(Nanos::from_secs(1)).await;
        for (bp, data) in &blocks {
            assert_eq!(&reader.read(bp, Prio::SyncRead).await.unwrap(), data);
        }
        lab.rt.sleep(Nanos::from_secs(1)).await;
        let mut after = vec![0; SIZE as usize];
        dev.peek(0, &mut after);
        assert!(reader.l2_stats().hits > 15 && before == after, "{:?}", reader.l2_stats());
        reader.close_caches().await;
        let other = arc(&lab, 64 << 20);
        other.add_cache(CacheDevice { guid: Guid(78), ..device(&dev) }).unwrap();
        lab.rt.sleep(Nanos::from_secs(1)).await;
        let s = other.l2_stats();
        assert_eq!((s.rebuild_unsupported, s.rebuild_bufs, s.hdr_size), (1, 0, 0));
        other.close_caches().await;
        let mut header = vec![0; 4096];
        dev.peek(HEADER_OFFSET, &mut header);
        assert_eq!(DevHeader::parse(&header).unwrap().vdev, Guid(78), "it has a header of its own");
    });
}

/// What the program writes after it was interrupted in the middle of a chain: random damage, and
/// chains that are sealed correctly and tell lies. Nothing panics, hangs, or gives wrong data.
#[test]
fn hostile_devices_are_caches_at_worst() {
    let mut found = 0;
    for seed in 0..40 {
        let lab = Lab::with(sim::SimConfig::seeded(seed), 1, 256 << 20, 12);
        let dev = Rc::new(MemDev::new(&lab.rt, SIZE));
        lab.sim.block_on(async {
            let mut rng = Rng::new(seed);
            let blocks = filled(&lab, &dev, 30 + rng.below(280)).await;
            if seed % 2 == 0 {
                for _ in 0..rng.below(60) {
                    let at = HEADER_OFFSET + 4096 + rng.below(SIZE - HEADER_OFFSET - (1 << 20));
                    dev.poke(at, &[rng.below(256) as u8]);
                }
            } else {
                lie(&dev, &mut rng, &blocks);
            }
            let arc = arc(&lab, 8 << 20);
            arc.add_cache(device(&dev)).unwrap();
            lab.rt.sleep(Nanos::from_secs(1)).await;
            found += arc.l2_stats().rebuild_bufs;
            for _ in 0..3 {
                for (bp, data) in &blocks {
                    assert_eq!(&arc.read(bp, Prio::SyncRead).await.unwrap(), data, "seed {seed}");
                }
                lab.rt.sleep(Nanos::from_ms(200)).await;
            }
            arc.close_caches().await;
        });
    }
    assert!(found > 500, "{found}");
}

/// Writes a chain of log blocks with right checksums and wild content, which may be a circle.
fn lie(dev: &MemDev, rng: &mut Rng, blocks: &[(Blkptr, Bytes)]) {
    let mut block = vec![0; 4096];
    dev.peek(HEADER_OFFSET, &mut block);
    let mut header = DevHeader::parse(&block).unwrap();
    let (start, end) = (header.start, header.end);
    let wild = |rng: &mut Rng| match rng.below(12) {
        0 => u64::MAX - rng.below(1 << 14),
        1 => rng.below(start),
        2 => end - rng.below(1 << 14),
        _ => start + rng.below((end - start) >> 12 << 12) / 4096 * 4096,
    };
    header.first = rng.percent(40);
    header.evict = start + rng.below((end - start) / 4096) * 4096;
    let mut prev = [LogPtr::default(); 2];
    for _ in 0..4 + rng.below(20) {
        let entry = |rng: &mut Rng| {
            let (bp, _) = &blocks[rng.below(blocks.len() as u64) as usize];
            let dva = if rng.percent(80) { bp.dva(0) } else { Dva { w0: rng.next_u64(), w1: rng.next_u64() } };
            let psize = if rng.percent(60) { bp.psize() } else { (1 + rng.below(1 << 16)) << 9 };
            LogEntry { dva, birth: bp.phys_birth(), prop: Prop::new(512, psize, 2), addr: wild(rng), level: 0 }
        };
        let entries = (0..1 + rng.below(3)).map(|_| entry(rng)).collect();
        let (stored, prop, checksum) = LogBlock { prev: prev[1], entries }.pack(4096);
        let addr = start + rng.below((end - start) / 4096 - 20) * 4096;
        dev.poke(addr, &stored);
        let from = if rng.percent(60) { start + rng.below((addr - start).max(1) / 4096 + 1) * 4096 } else { wild(rng) };
        prev = [LogPtr { addr, payload_asize: rng.next_u64(), payload_start: from, prop, checksum }, prev[0]];
    }
    header.log = prev;
    header.write_to(&mut block);
    dev.poke(HEADER_OFFSET, &block);
}

#[test]
fn eligibility_follows_the_block_and_its_readers() {
    let lab = Lab::new(1, 64 << 20, 12);
    let arc = arc(&lab, 16 << 20);
    let dev = Rc::new(MemDev::new(&lab.rt, SIZE));
    lab.sim.block_on(async {
        let bare = Arc::new(lab.rt.clone(), lab.zio.clone(), 1 << 20);
        let mut blocks = Vec::new();
        for n in 0..4 {
            blocks.push(put(&lab, &bare, noise(n, 8192), |_| {}).await);
        }
        arc.add_cache(device(&dev)).unwrap();
        arc.read_with(&blocks[0], None, Prio::SyncRead, Keep::Uncached).await.unwrap();
        arc.read_with(&blocks[1], None, Prio::SyncRead, Keep::MemoryOnly).await.unwrap();
        arc.read(&blocks[2], Prio::AsyncRead).await.unwrap();
        lab.rt.sleep(Nanos::from_secs(1)).await;
        assert_eq!(arc.caches()[0].alloc, 0, "not kept, not wanted there, only read ahead");
        // Somebody wants what was read ahead; it is written with the next offer.
        arc.read(&blocks[2], Prio::SyncRead).await.unwrap();
        arc.read(&blocks[3], Prio::SyncRead).await.unwrap();
        lab.rt.sleep(Nanos::from_secs(1)).await;
        empty(&arc);
        for bp in &blocks {
            arc.read(bp, Prio::SyncRead).await.unwrap();
        }
        assert_eq!(arc.l2_stats().hits, 2);
    });
}
