//! Objects against a model, over many txgs and reopenings, with every committed tree walked.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::common::*;
use base::{ObjectId, Txg};
use bdev::{Buf, Bytes};
use codec::{CompressAlgo, Compression};
use dmu::*;
use ondisk::blkptr::Blkptr;
use ondisk::object_type::ObjectType;
use ondisk::objset::ObjsetType;
use sim::Rng;
use zio::{Prio, WriteDone};

/// The expected state of an object. Data by sectors of 512 bytes; missing ones are zero.
#[derive(Clone, Default)]
struct Model {
    blksz: u32,
    data: BTreeMap<u64, [u8; 512]>,
    bonus: Vec<u8>,
    spill: Option<Vec<u8>>,
}

impl Model {
    fn write(&mut self, off: u64, data: &[u8]) {
        let mut at = 0;
        while at < data.len() {
            let pos = off + at as u64;
            let from = (pos % 512) as usize;
            let n = (512 - from).min(data.len() - at);
            self.data.entry(pos / 512).or_insert([0; 512])[from..from + n].copy_from_slice(&data[at..at + n]);
            at += n;
        }
    }
    fn zero(&mut self, off: u64, end: u64) {
        let sectors: Vec<u64> = self.data.range(off / 512..=end.saturating_sub(1) / 512).map(|(&s, _)| s).collect();
        for s in sectors {
            let d = self.data.get_mut(&s).unwrap();
            for i in 0..512u64 {
                if (off..end).contains(&(s * 512 + i)) {
                    d[i as usize] = 0;
                }
            }
            if d.iter().all(|&b| b == 0) {
                self.data.remove(&s);
            }
        }
    }
    fn read(&self, off: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        for (&s, d) in self.data.range(off / 512..(off + len as u64).div_ceil(512)) {
            for (i, &b) in d.iter().enumerate() {
                if let Some(at) = (s * 512 + i as u64).checked_sub(off).filter(|&at| at < len as u64) {
                    out[at as usize] = b;
                }
            }
        }
        out
    }
    fn end(&self) -> u64 {
        self.data.last_key_value().map_or(0, |(&s, _)| (s + 1) * 512)
    }
}

const SIZES: [u32; 8] = [512, 1024, 4096, 8192, 16384, 65536, 131072, 1 << 20];

fn content(r: &mut Rng, len: usize) -> Vec<u8> {
    let mut v = vec![0; len];
    match r.below(4) {
        0 => v.fill(r.below(256) as u8),
        1 => r.fill(&mut v),
        2 => {
            let n = len.min(64);
            r.fill(&mut v[..n]);
        }
        _ => v.chunks_mut(300).for_each(|c| c.fill(r.below(256) as u8)),
    }
    v
}

/// The start of a range: near one of a few offsets, some of them large.
fn place(r: &mut Rng, blksz: u32, far: bool) -> u64 {
    let bases = [
        0,
        0,
        0,
        1 << 20,
        37 << 20,
        if far { 1 << 33 } else { 0 },
        if far { 5 << 40 } else { 3 },
        if far { 1 << 52 } else { 9 },
    ];
    bases[r.below(8) as usize]
        + r.below(6) * u64::from(blksz)
        + if r.below(2) == 0 { 0 } else { r.below(u64::from(blksz)) }
}

async fn compare(dn: &Dnode, m: &Model, r: &mut Rng, thorough: bool) {
    assert_eq!(&dn.bonus()[..], &m.bonus[..], "bonus of {dn:?}");
    let spill = dn.spill().await.unwrap();
    match (&spill, &m.spill) {
        (None, None) => {}
        (Some(a), Some(b)) => assert_eq!(&a[..b.len()], &b[..], "spill of {dn:?}"),
        _ => panic!("spill of {dn:?}: {:?}, expected {:?}", spill.map(|s| s.len()), m.spill.as_ref().map(Vec::len)),
    }
    assert_eq!(dn.block_size(), m.blksz, "block size of {dn:?}");
    let mut at = 0;
    let mut runs = 0;
    while let Some((&s, _)) = m.data.range(at..).next() {
        let len = 512 * (1 + r.below(40)) as usize;
        let off = (s * 512).saturating_sub(r.below(700));
        let got: Vec<u8> = if r.below(2) == 0 {
            let mut buf = vec![1; len];
            dn.read(off, &mut buf).await.unwrap();
            buf
        } else {
            dn.read_range(off, len as u64).await.unwrap().iter().flat_map(|b| b.iter().copied()).collect()
        };
        let want = m.read(off, len);
        if got != want {
            let i = got.iter().zip(&want).position(|(a, b)| a != b).unwrap();
            panic!("{dn:?} at {}: {} instead of {} (block size {})", off + i as u64, got[i], want[i], m.blksz);
        }
        at = (off + len as u64) / 512;
        runs += 1;
        if !thorough && runs > 3 {
            break;
        }
    }
    // Holes and data are right: all data is at offsets that next_data reports.
    let mut at = 0;
    while let Some(data) = dn.next_data(at).await.unwrap() {
        assert!(m.data.range(at.div_ceil(512)..data / 512).all(|(_, d)| *d == [0; 512]), "{dn:?}: data before {data}");
        let hole = dn.next_hole(data).await.unwrap();
        // A block of zeros counts as data until its sync makes it a hole, which may be between the
        // two questions.
        at = hole.max(data + 512);
    }
    assert!(m.data.range(at.div_ceil(512)..).all(|(_, d)| *d == [0; 512]), "{dn:?}: data after {at}");
}

/// Blocks stored before their sync: pointer, write, content.
#[derive(Clone, Default)]
struct Early(Rc<RefCell<Vec<(Blkptr, WriteDone, Bytes)>>>);

impl Early {
    /// A block of a log record can be read until its txg is on disk, with any later state of the
    /// object's block.
    async fn check(&self, env: &Env) {
        let synced = env.ctx.txg().last_synced();
        self.0.borrow_mut().retain(|(bp, _, _)| bp.birth() > synced);
        let all = self.0.borrow().clone();
        for (bp, done, data) in all {
            done.await.unwrap();
            let read = env.zio.read(&bp, Prio::SyncRead).await;
            if bp.birth() > env.ctx.txg().last_synced() {
                assert!(read.unwrap()[..] == data[..], "{bp} has changed before its txg synced");
            }
        }
    }
}

struct Run {
    seed: u64,
    steps: u64,
    props: ObjsetProps,
    features: DmuFeatures,
    cache: u64,
    far: bool,
    os_type: ObjsetType,
    again: bool,
}

fn run(cfg: Run) {
    let sim = world(cfg.seed);
    sim.block_on(async {
        let mut r = Rng::new(cfg.seed);
        let mut env = Env::new(&sim, cfg.cache, cfg.features, cfg.props);
        let mut os = env.create(cfg.os_type);
        let mut models: BTreeMap<u64, Model> = BTreeMap::new();
        let mut task = None;
        let mut again = None;
        let (mut most, mut births, mut embedded) = (0, 0, 0);
        let early = Early::default();
        let mut last = (0, 0);
        for step in 0..cfg.steps {
            if task.is_none() {
                if cfg.again {
                    let spec = ObjSpec::new(ObjectType::OBJECT_ARRAY, 4096).indblkshift(12);
                    let dn = match &again {
                        None => {
                            let tx = TxPlan::new(&os).create(1).assign().await.unwrap();
                            os.alloc_at(ObjectId(77), spec, &tx).await.unwrap()
                        }
                        Some(()) => os.hold(ObjectId(77)).await.unwrap(),
                    };
                    again = Some(());
                    task = Some(env.run(&os, Some(dn)));
                } else {
                    task = Some(env.run(&os, None));
                }
            }
            let pick = |r: &mut Rng, models: &BTreeMap<u64, Model>| {
                let n = r.below(models.len().max(1) as u64) as usize;
                models.keys().nth(n).copied()
            };
            let op = r.below(100);
            let Some(obj) = pick(&mut r, &models).filter(|_| op >= 12) else {
                let blksz = SIZES[r.below(8) as usize];
                let ibs = 12 + r.below(6) as u8;
                let (otype, bonuslen) = (
                    [ObjectType::PLAIN_FILE, ObjectType::OTHER_U64, ObjectType::OBJECT_ARRAY][r.below(3) as usize],
                    r.below(150) as u16,
                );
                let mut spec = ObjSpec::new(otype, blksz)
                    .indblkshift(ibs)
                    .bonus([ObjectType::SA, ObjectType::DSL_DIR][r.below(2) as usize], bonuslen);
                if r.below(5) == 0 {
                    spec = spec.dnodesize(512 * (1 + r.below(4) as u32));
                }
                let tx = TxPlan::new(&os).create(1).assign().await.unwrap();
                let dn = if r.below(6) == 0 {
                    let at = ObjectId(1 + r.below(300));
                    match os.alloc_at(at, spec, &tx).await {
                        Ok(dn) => {
                            assert!(!models.contains_key(&at.0));
                            dn
                        }
                        Err(e) => {
                            assert!(
                                matches!(
                                    e.kind(),
                                    base::ErrorKind::Exists | base::ErrorKind::Busy | base::ErrorKind::Invalid
                                ),
                                "{e}"
                            );
                            continue;
                        }
                    }
                } else {
                    os.alloc(spec, &tx).await.unwrap()
                };
                let old = models
                    .insert(dn.object().0, Model { blksz, bonus: vec![0; usize::from(bonuslen)], ..Model::default() });
                assert!(old.is_none(), "object {} was given out twice", dn.object());
                continue;
            };
            let dn = os.hold(ObjectId(obj)).await.unwrap();
            let m = models.get_mut(&obj).unwrap();
            let size = u64::from(m.blksz);
            match op {
                12..45 => {
                    let off = place(&mut r, m.blksz, cfg.far);
                    let len = if r.below(3) == 0 { size as usize } else { 1 + r.below(3 * size.min(20_000)) as usize };
                    let off = if r.below(3) == 0 { off - off % size } else { off };
                    let data = content(&mut r, len);
                    let tx = TxPlan::new(&os).write(&dn, off, len as u64).assign().await.unwrap();
                    if r.below(2) == 0 {
                        dn.write(off, &data, &tx).await.unwrap();
                    } else {
                        dn.write_bytes(off, Bytes::from(Buf::copy_from(&data)), &tx).await.unwrap();
                    }
                    m.write(off, &data);
                    last = (obj, off);
                }
                45..50 => {
                    let blkid = r.below(5);
                    let tx = TxPlan::new(&os).write(&dn, blkid * size, size).assign().await.unwrap();
                    let seen = m.read(blkid * size, size as usize);
                    dn.update_block(blkid, &tx, |b| {
                        assert_eq!(b, &seen[..]);
                        let n = b.len() / 2;
                        b[..n].fill(77);
                    })
                    .await
                    .unwrap();
                    m.write(blkid * size, &vec![77; size as usize / 2]);
                }
                50..62 => {
                    let off = place(&mut r, m.blksz, cfg.far);
                    let len = match r.below(4) {
                        0 => u64::MAX,
                        1 => 1 + r.below(40 << 20),
                        _ => 1 + r.below(6 * size),
                    };
                    let tx = TxPlan::new(&os).free(&dn).net_free().assign().await.unwrap();
                    dn.free_range(off, len, &tx).await.unwrap();
                    m.zero(off, off.saturating_add(len));
                }
                62..65 => {
                    let tx = TxPlan::new(&os).free(&dn).assign().await.unwrap();
                    dn.free_range(0, u64::MAX, &tx).await.unwrap();
                    m.zero(0, u64::MAX);
                    if r.below(2) == 0 {
                        let blksz =
                            if r.below(3) == 0 { 512 * (1 + r.below(50) as u32) } else { SIZES[r.below(8) as usize] };
                        dn.set_block_size(blksz, &tx).unwrap();
                        let len = 1 + r.below(u64::from(blksz)) as usize;
                        let data = content(&mut r, len);
                        dn.write(0, &data, &tx).await.unwrap();
                        m.write(0, &data);
                        if !blksz.is_power_of_two() {
                            dn.set_block_size(blksz.next_power_of_two(), &tx).unwrap();
                        }
                        m.blksz = dn.block_size();
                    }
                }
                65..69 => {
                    if m.end() <= size && dn.max_blkid() == 0 {
                        let blksz = SIZES[r.below(8) as usize];
                        let tx = TxPlan::new(&os).write(&dn, 0, 1).assign().await.unwrap();
                        dn.set_block_size(blksz, &tx).unwrap();
                        m.blksz = blksz;
                        m.zero(u64::from(blksz), u64::MAX);
                    }
                }
                69..76 => {
                    let cap = dn.bonus_capacity(m.spill.is_some());
                    let len = r.below(cap as u64 + 1) as usize;
                    let bonus = content(&mut r, len);
                    let tx = TxPlan::new(&os).bonus(&dn).assign().await.unwrap();
                    dn.set_bonus(&bonus, &tx).unwrap();
                    assert!(dn.set_bonus(&vec![0; cap + 1], &tx).is_err());
                    m.bonus = bonus;
                }
                76..80 => {
                    let tx = TxPlan::new(&os).spill(&dn).assign().await.unwrap();
                    if r.below(3) == 0 {
                        dn.set_spill(None, &tx).unwrap();
                        m.spill = None;
                    } else if m.bonus.len() <= dn.bonus_capacity(true) && dn.bonus_capacity(false) >= 128 {
                        let len = 1 + r.below(9000) as usize;
                        let mut spill = content(&mut r, len);
                        spill[0] = 1;
                        dn.set_spill(Some(Bytes::from(spill.clone())), &tx).unwrap();
                        m.spill = Some(spill);
                    }
                }
                80..83 => {
                    let tx = TxPlan::new(&os).free(&dn).assign().await.unwrap();
                    os.free(ObjectId(obj), &tx).await.unwrap();
                    assert!(os.hold(ObjectId(obj)).await.is_err());
                    assert!(dn.write(0, b"x", &tx).await.is_err());
                    models.remove(&obj);
                }
                83..90 if !cfg.again => {
                    // An early write for a log, mostly during other operations: of the data just
                    // written, or of other data.
                    let (dn, off) = match os.hold(ObjectId(last.0)).await {
                        Ok(dn) if r.below(4) > 0 => (dn, last.1),
                        _ => (dn, place(&mut r, m.blksz, cfg.far)),
                    };
                    let blkid = off / u64::from(dn.block_size());
                    let data = dn.read_block(blkid).await.unwrap();
                    let (hold, early) = (env.ctx.txg().hold(), early.clone());
                    let task = env.rt.spawn("early", async move {
                        let (bp, done) = dn.store_early(blkid, data.clone(), hold).await.unwrap();
                        if !bp.is_hole() {
                            early.0.borrow_mut().push((bp, done, data));
                        }
                    });
                    if r.below(2) == 0 {
                        task.await;
                    }
                }
                83..92 => compare(&dn, m, &mut r, false).await,
                92..95 => {
                    early.check(&env).await;
                    check_committed(&env).await;
                    env.rt.sleep(base::Nanos::from_ms(r.below(400))).await;
                }
                95..98 => env.ctx.txg().kick(),
                _ => {
                    drop(dn);
                    env.stop(task.take().unwrap()).await;
                    let w = check(&env, &os).await;
                    most = most.max(w.max_level);
                    births += w.holes_with_birth;
                    embedded += w.embedded;
                    if r.below(3) == 0 {
                        os = env.reopen(os).await;
                    } else {
                        // The pipeline has stopped for good.
                        os = env.reopen(os).await;
                    }
                    let mut seen = Vec::new();
                    let mut at = ObjectId(0);
                    while let Some(o) = os.objects(at).await.unwrap() {
                        seen.push(o.0);
                        at = ObjectId(o.0 + 1);
                    }
                    seen.retain(|&o| !cfg.again || o != 77);
                    assert_eq!(seen, models.keys().copied().collect::<Vec<_>>());
                    for (&obj, m) in &models {
                        compare(&os.hold(ObjectId(obj)).await.unwrap(), m, &mut r, step % 3 == 0).await;
                    }
                }
            }
        }
        if let Some(task) = task {
            env.stop(task).await;
        }
        check(&env, &os).await;
        for (&obj, m) in &models {
            compare(&os.hold(ObjectId(obj)).await.unwrap(), m, &mut r, true).await;
        }
        println!(
            "seed {}: {} objects, level {most}, {births} holes with birth, {embedded} embedded",
            cfg.seed,
            models.len()
        );
    });
}

/// Seeds from `first` on: one, or DMU_SEEDS of them.
fn seeds(first: u64) -> std::ops::Range<u64> {
    first..first + std::env::var("DMU_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(1)
}

fn base_run(seed: u64) -> Run {
    Run {
        seed,
        steps: std::env::var("DMU_STEPS").ok().and_then(|s| s.parse().ok()).unwrap_or(400),
        props: ObjsetProps { compression: Compression { algo: CompressAlgo::Lz4, level: 0 }, ..ObjsetProps::default() },
        features: features(),
        cache: 64 << 20,
        far: true,
        os_type: ObjsetType::Other,
        again: false,
    }
}

#[test]
fn random_operations_compressed() {
    for seed in seeds(1) {
        run(base_run(seed));
    }
}

#[test]
fn random_operations_prepared_ahead() {
    for seed in seeds(4000) {
        let compression = Compression { algo: CompressAlgo::Zstd, level: 3 };
        run(Run { props: ObjsetProps { compression, ..ObjsetProps::default() }, far: false, ..base_run(seed) });
    }
}

#[test]
fn random_operations_uncompressed_small_cache() {
    for seed in seeds(1000) {
        run(Run { props: ObjsetProps { copies: 2, ..ObjsetProps::default() }, cache: 1 << 20, ..base_run(seed) });
    }
}

#[test]
fn random_operations_without_features() {
    for seed in seeds(2000) {
        run(Run { features: DmuFeatures::default(), ..base_run(seed) });
    }
}

#[test]
fn random_operations_on_a_meta_object_set_in_passes() {
    for seed in seeds(3000) {
        run(Run { props: ObjsetProps::mos(), os_type: ObjsetType::Meta, again: true, far: false, ..base_run(seed) });
    }
}

const _: Txg = Txg(0);
