//! A pool without labels: one simulated disk, the allocator, block I/O, the cache and the txg
//! pipeline, one object set.
#![allow(dead_code, clippy::unwrap_used)]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Guid, ObjectId, Result, Txg, VdevId};
use dmu::*;
use metaslab::{AllocTunables, Allocator, ClassKind, LoadedMap, MsSummary, RangeTree, SpaceMapStore};
use ondisk::blkptr::Blkptr;
use ondisk::dnode::{DNODE_SIZE, DnodePhys, Slot, slots};
use ondisk::object_type::ObjectType;
use ondisk::objset::{ObjsetPhys, ObjsetType};
use ondisk::vdev_config::{VdevConfig, VdevKind as ConfigKind};
use rt::{LocalBoxFuture, Rt};
use sim::{DiskImage, Model, Sim, SimConfig, SimDisk};
use txg::{TxgPool, TxgTunables};
use vdev::{DirtyGauge, Leaf, QueueTunables, Top, TopSpec, VdevKind, VdevTree};
use zio::{Prio, Zio, ZioOpts};

pub const DISK: u64 = 4 << 30;
const ASHIFT: u8 = 9;

/// The allocated blocks, by calls of born and kill.
pub struct Acct {
    zio: RefCell<Option<Zio>>,
    pub live: RefCell<BTreeMap<(u32, u64), u64>>,
    pub used: Cell<u64>,
}

impl BlockAccounting for Acct {
    fn born(&self, bp: &Blkptr, txg: Txg) {
        assert!(!bp.is_hole() && bp.birth() == txg);
        let mut live = self.live.borrow_mut();
        for d in bp.dvas() {
            let key = (d.vdev().0, d.offset());
            if let Some((&(v, o), &len)) = live.range(..=key).next_back() {
                assert!(v != d.vdev().0 || o + len <= d.offset(), "{bp} overlaps what is allocated");
            }
            if let Some((&(v, o), _)) = live.range(key..).next() {
                assert!(v != d.vdev().0 || o >= d.offset() + d.asize(), "{bp} overlaps what is allocated");
            }
            live.insert(key, d.asize());
            self.used.set(self.used.get() + d.asize());
        }
    }
    fn kill(&self, bp: &Blkptr, txg: Txg) {
        assert!(!bp.is_hole() && bp.birth() <= txg);
        for d in bp.dvas() {
            let len = self.live.borrow_mut().remove(&(d.vdev().0, d.offset()));
            assert_eq!(len, Some(d.asize()), "{bp} was not allocated");
            self.used.set(self.used.get() - d.asize());
        }
        self.zio.borrow().as_ref().unwrap().free(bp, txg).unwrap();
    }
}

pub struct NoMaps;
impl SpaceMapStore for NoMaps {
    fn load<'a>(&'a self, _vdev: VdevId, _ms: u64) -> LocalBoxFuture<'a, Result<LoadedMap>> {
        Box::pin(async { Err(base::Error::corrupt("metaslabs of the test have no maps")) })
    }
}
const _: Option<RangeTree> = None;

/// The parts of a pool.
pub struct Env {
    pub rt: Rt,
    pub ctx: DmuCtx,
    pub zio: Zio,
    pub alloc: Rc<Allocator>,
    pub acct: Rc<Acct>,
    pub disk: SimDisk,
    pub features: DmuFeatures,
    pub props: ObjsetProps,
    pub cache: u64,
    /// The root of the last txg on disk: the state after a power cut.
    pub committed: Rc<Cell<Blkptr>>,
}

pub fn features() -> DmuFeatures {
    DmuFeatures {
        pool_version: ondisk::version::FEATURES,
        hole_birth: true,
        embedded_data: true,
        lz4: true,
        zilsaxattr: true,
        longname: true,
        large_microzap: true,
        physical_rewrite: true,
        userobj_accounting: true,
        project_quota: true,
    }
}

impl Env {
    pub fn new(sim: &Sim, cache: u64, features: DmuFeatures, props: ObjsetProps) -> Env {
        let rt = sim.rt();
        let disk = SimDisk::new(&sim.handle(), DISK, Model::random(), 7);
        let gauge = DirtyGauge::default();
        let leaf = Leaf::new(&rt, Guid(3), "disk".into(), disk.dev(), gauge.clone(), QueueTunables::default());
        let top = Top::new(TopSpec {
            id: VdevId(0),
            ashift: ASHIFT,
            asize: DISK - (8 << 20),
            ms_shift: 28,
            ms_array: ObjectId(0),
            is_log: false,
            kind: VdevKind::Leaf(leaf),
            config: VdevConfig::new(ConfigKind::Disk, 0, Guid(2)),
        });
        let tree = VdevTree::new(Guid(1), vec![top.clone()]);
        let alloc = Allocator::new(Rc::new(NoMaps), AllocTunables::default());
        alloc.add_top(top.clone(), ClassKind::Normal, vec![MsSummary::default(); top.ms_count() as usize]).unwrap();
        let zio = Zio::new(rt.clone(), tree, alloc.clone(), ZioOpts::default());
        let acct = Rc::new(Acct { zio: RefCell::new(Some(zio.clone())), live: RefCell::default(), used: Cell::new(0) });
        let ctx = Env::make_ctx(&rt, &zio, Txg(4), cache, features);
        let committed = Rc::new(Cell::new(Blkptr::hole()));
        Env { rt, ctx, zio, alloc, acct, disk, features, props, cache, committed }
    }
    pub fn make_ctx(rt: &Rt, zio: &Zio, first: Txg, cache: u64, features: DmuFeatures) -> DmuCtx {
        let tunables = TxgTunables::for_memory(1 << 30);
        let txg = TxgPool::new(rt.clone(), first, tunables, DirtyGauge::default());
        DmuCtx::new(rt.clone(), zio.clone(), arc::Arc::new(rt.clone(), zio.clone(), cache), txg, features)
    }
    pub fn hooks(&self) -> ObjsetHooks {
        ObjsetHooks { acct: self.acct.clone(), gate: None, feat: None }
    }
    pub fn create(&self, os_type: ObjsetType) -> Objset {
        Objset::create(self.ctx.clone(), 0, os_type, self.props, self.hooks(), self.ctx.txg().open_txg())
    }
    /// Opens the pool again, with empty caches.
    pub async fn reopen(&mut self, os: Objset) -> Objset {
        let (root, next) = (os.root_bp(), self.ctx.txg().open_txg().next());
        assert!(!os.is_dirty(self.ctx.txg().open_txg()));
        drop(os);
        self.ctx = Env::make_ctx(&self.rt, &self.zio, next, self.cache, self.features);
        Objset::open(self.ctx.clone(), 0, root, self.props, self.hooks(), true).await.unwrap()
    }
    /// Starts the sync loop for `os`. In passes 2 and 3 the object `again` is written too.
    pub fn run(&self, os: &Objset, again: Option<Dnode>) -> rt::JoinHandle<()> {
        let (os, alloc, txgs) = (os.clone(), self.alloc.clone(), self.ctx.txg().clone());
        let committed = self.committed.clone();
        self.rt.spawn("sync", async move {
            let result = txgs
                .clone()
                .run(async |txg: Txg| {
                    sync_all(&os, &alloc, txg, again.as_ref()).await?;
                    committed.set(os.root_bp());
                    Ok(())
                })
                .await;
            result.unwrap();
        })
    }
    pub async fn stop(&self, task: rt::JoinHandle<()>) {
        self.ctx.txg().wait_synced(Txg(0)).await.unwrap();
        self.ctx.txg().stop();
        task.await;
    }
}

/// One txg's sync, in several passes if `again` is given.
pub async fn sync_all(os: &Objset, alloc: &Rc<Allocator>, txg: Txg, again: Option<&Dnode>) -> Result<()> {
    let mut done = Vec::new();
    if let Some(r) = os.sync(txg, 1).await? {
        done.extend(r.done);
    }
    if let Some(dn) = again {
        for pass in 2..5u32 {
            let tx = Tx::syncing(txg);
            let text = format!("txg {txg} pass {pass} ").repeat(20);
            dn.write(txg.0 % 40 * 4096 + 512 * u64::from(pass), text.as_bytes(), &tx).await?;
            let r = os.sync(txg, pass).await?.expect("something is dirty");
            done.extend(r.done);
        }
    }
    assert!(!os.is_dirty(txg));
    for d in done {
        d.await?;
    }
    for (vdev, ms) in alloc.dirty_metaslabs(txg) {
        alloc.take_changes(vdev, ms, txg);
    }
    alloc.sync_done(txg);
    Ok(())
}

/// The result of a walk over all blocks under a root.
#[derive(Default)]
pub struct Walk {
    pub places: BTreeMap<(u32, u64), u64>,
    pub objects: u64,
    pub holes_with_birth: u64,
    pub embedded: u64,
    pub max_level: u8,
}

/// Walks all blocks from the root by block I/O alone, and checks the rules of the format.
pub async fn walk(zio: &Zio, root: &Blkptr, hole_birth: bool) -> Walk {
    let mut w = Walk::default();
    assert!(!root.is_hole());
    w.place(root);
    let block = zio.read(root, Prio::SyncRead).await.unwrap();
    let phys = ObjsetPhys::parse(&block).unwrap();
    let mut todo = Vec::new();
    let meta = w.object(zio, &phys.meta_dnode, root, hole_birth, Some(&mut todo)).await;
    assert_eq!(root.fill(), meta, "fill of the root");
    for p in [&phys.userused, &phys.groupused, &phys.projectused].into_iter().flatten() {
        w.object(zio, p, root, hole_birth, None).await;
    }
    w.objects = todo.len() as u64;
    assert_eq!(meta, w.objects, "number of objects");
    for p in todo {
        assert!(p.flags & 1 != 0 || p.used == 0);
        w.object(zio, &p, root, hole_birth, None).await;
    }
    w
}

impl Walk {
    fn place(&mut self, bp: &Blkptr) {
        for d in bp.dvas() {
            let old = self.places.insert((d.vdev().0, d.offset()), d.asize());
            assert!(old.is_none(), "{bp} is referred to twice");
        }
    }
    /// Checks an object; returns its fill.
    async fn object(
        &mut self,
        zio: &Zio,
        p: &DnodePhys,
        root: &Blkptr,
        hole_birth: bool,
        mut dnodes: Option<&mut Vec<DnodePhys>>,
    ) -> u64 {
        let (mut used, mut fill, mut highest) = (0u64, 0u64, None);
        let mut stack: Vec<(Blkptr, u8, u64)> = Vec::new();
        for (i, bp) in p.bps().iter().enumerate() {
            stack.push((*bp, p.nlevels - 1, i as u64));
            fill += bp.fill();
            assert!(bp.birth() <= root.birth());
        }
        while let Some((bp, level, id)) = stack.pop() {
            if bp.is_hole() {
                if bp.birth().0 != 0 {
                    assert!(hole_birth);
                    self.holes_with_birth += 1;
                    assert_eq!((bp.level(), bp.otype()), (level, p.otype), "{bp:?}");
                } else {
                    assert_eq!(bp, Blkptr::hole());
                }
                continue;
            }
            self.max_level = self.max_level.max(level);
            self.embedded += u64::from(bp.is_embedded());
            self.place(&bp);
            used += zio.dsize(&bp);
            let size = if level == 0 { p.datablksz() } else { p.indblksz() };
            assert_eq!((bp.level(), bp.lsize(), bp.otype()), (level, u64::from(size), p.otype), "{bp:?}");
            let block = zio.read(&bp, Prio::SyncRead).await.unwrap();
            assert_eq!(block.len(), size as usize);
            if level > 0 {
                let (mut sum, mut holes) = (0, true);
                for (i, kid) in Blkptr::iter_block(&block).enumerate() {
                    assert!(kid.birth() <= bp.birth(), "{kid:?} is younger than {bp:?}");
                    sum += kid.fill();
                    holes &= kid.is_hole();
                    stack.push((kid, level - 1, (id << p.epb_shift()) + i as u64));
                }
                assert_eq!(bp.fill(), sum, "{bp:?}");
                assert!(!holes, "{bp:?} has only holes");
            } else {
                highest = highest.max(Some(id));
                if p.otype == ObjectType::DNODE {
                    let kinds = slots(&block).unwrap();
                    let n = kinds.iter().filter(|s| matches!(s, Slot::Dnode(_))).count() as u64;
                    assert_eq!(bp.fill(), n);
                    assert!(n > 0, "a block without dnodes is a hole");
                    for (i, k) in kinds.iter().enumerate() {
                        match k {
                            Slot::Dnode(_) => {
                                let d = DnodePhys::parse(&block[i * DNODE_SIZE..]).unwrap().unwrap();
                                dnodes.as_mut().unwrap().push(d);
                            }
                            Slot::Free => assert!(block[i * DNODE_SIZE..][..DNODE_SIZE].iter().all(|&b| b == 0)),
                            Slot::Interior => {}
                        }
                    }
                } else {
                    assert_eq!(bp.fill(), 1);
                }
            }
        }
        if let Some(bp) = p.spill.filter(|bp| !bp.is_hole()) {
            self.place(&bp);
            used += zio.dsize(&bp);
            assert_eq!((bp.level(), bp.otype(), bp.fill()), (0, p.bonustype, 1));
        }
        assert_eq!(p.used_bytes(), used, "used of {p:?}");
        assert!(highest.unwrap_or(0) <= p.maxblkid);
        fill
    }
}

/// Walks the object set and compares its blocks with the allocated ones.
pub async fn check(env: &Env, os: &Objset) -> Walk {
    let w = walk(&env.zio, &os.root_bp(), env.features.hole_birth).await;
    assert_eq!(w.places, *env.acct.live.borrow(), "allocated and referred to");
    let space = env.alloc.space(ClassKind::Normal);
    assert_eq!(space.alloc_raw - space.deferred_raw, env.acct.used.get(), "allocated by the maps, and accounted for");
    w
}

/// Reads the state that a power cut now would leave: the tree of the last txg on disk must be
/// whole, with any later writes.
pub async fn check_committed(env: &Env) {
    // At most one more txg gets to the disk meanwhile, and its frees are not allocated again.
    let _hold = env.ctx.txg().hold();
    let root = env.committed.get();
    if !root.is_hole() {
        walk(&env.zio, &root, env.features.hole_birth).await;
    }
}

/// A seeded world that limits the cost of a task's poll.
pub fn world(seed: u64) -> Sim {
    Sim::new(SimConfig::seeded(seed))
}

const _: fn(u64) -> DiskImage = DiskImage::zeroed;
