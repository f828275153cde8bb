//! Pools written by OpenZFS: all blocks are walked, then their object sets are changed (in memory)
//! and walked again. Single-disk pools only.
//!
//! `WEIR_POOL_IMAGES` names the images, separated by colons; without it there is nothing to do.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::common::*;
use base::{Guid, ObjectId, Txg, VdevId};
use dmu::*;
use metaslab::{AllocTunables, Allocator, ClassKind, MsSummary};
use ondisk::blkptr::Blkptr;
use ondisk::object_type::ObjectType;
use ondisk::objset::ObjsetType;
use ondisk::vdev_config::{VdevConfig, VdevKind as ConfigKind};
use sim::{DiskImage, Model, Rng, Sim, SimDisk};
use vdev::{DirtyGauge, Leaf, QueueTunables, Top, TopSpec, VdevKind, VdevTree};
use zio::{Zio, ZioOpts};

/// Keeps the set of DVAs; frees only those on the second, empty device.
struct Ledger {
    live: RefCell<BTreeMap<(u32, u64), u64>>,
    zio: Zio,
}

impl BlockAccounting for Ledger {
    fn born(&self, bp: &Blkptr, _txg: Txg) {
        for d in bp.dvas() {
            assert_eq!(d.vdev().0, 1);
            assert!(self.live.borrow_mut().insert((1, d.offset()), d.asize()).is_none());
        }
    }
    fn kill(&self, bp: &Blkptr, txg: Txg) {
        for d in bp.dvas() {
            assert_eq!(self.live.borrow_mut().remove(&(d.vdev().0, d.offset())), Some(d.asize()), "{bp}");
        }
        if bp.dvas().all(|d| d.vdev().0 == 1) {
            self.zio.free(bp, txg).unwrap();
        }
    }
}

fn top(sim: &Sim, id: u32, disk: &SimDisk, ashift: u8, size: u64) -> Rc<Top> {
    let leaf = Leaf::new(
        &sim.rt(),
        Guid(10 + u64::from(id)),
        "disk".into(),
        disk.dev(),
        DirtyGauge::default(),
        QueueTunables::default(),
    );
    Top::new(TopSpec {
        id: VdevId(id),
        ashift,
        asize: size - (8 << 20),
        ms_shift: 28,
        ms_array: ObjectId(0),
        is_log: false,
        kind: VdevKind::Leaf(leaf),
        config: VdevConfig::new(ConfigKind::Disk, u64::from(id), Guid(20 + u64::from(id))),
    })
}

async fn owners(os: &Objset) -> [BTreeMap<Vec<u8>, u64>; 2] {
    let mut sums = [BTreeMap::new(), BTreeMap::new()];
    let mut at = ObjectId(0);
    while let Some(obj) = os.objects(at).await.unwrap() {
        at = ObjectId(obj.0 + 1);
        let p = os.hold(obj).await.unwrap().committed();
        let b = p.bonus();
        let at = match p.bonustype {
            ObjectType::SA => usize::from(u16::from_le_bytes(b[4..6].try_into().unwrap()) >> 10) * 8 + 24,
            ObjectType::ZNODE => 128,
            _ => continue,
        };
        for (kind, at) in [at, at + 8].into_iter().enumerate() {
            let id = u64::from_le_bytes(b[at..][..8].try_into().unwrap());
            *sums[kind].entry(format!("{id:x}").into_bytes()).or_default() += 512 + p.used_bytes();
        }
    }
    sums
}

async fn accounted(os: &Objset, obj: ObjectId) -> BTreeMap<Vec<u8>, u64> {
    let list = zap::list(&os.accounting(obj).unwrap()).await.unwrap();
    let list = list.into_iter().map(|e| (e.name.to_vec(), e.value.as_u64().unwrap()));
    list.filter(|(n, _)| !n.starts_with(b"obj-")).collect()
}

fn try_pool(path: &str) {
    let sim = world(1);
    let image = DiskImage::load(path).unwrap();
    let size = image.size();
    let disk = SimDisk::from_image(&sim.handle(), image, Model::random(), 3);
    let spare = SimDisk::new(&sim.handle(), 2 << 30, Model::random(), 4);
    sim.block_on(async {
        let rt = sim.rt();
        let labels = vdev::labels::read_labels(&*disk.dev()).await.unwrap();
        let ub = labels.uberblocks.iter().max_by_key(|u| (u.ub.txg, u.ub.timestamp)).unwrap().ub.clone();
        let (old, new) = (top(&sim, 0, &disk, 9, size), top(&sim, 1, &spare, 9, 2 << 30));
        let tree = VdevTree::new(Guid(1), vec![old, new.clone()]);
        let alloc = Allocator::new(Rc::new(NoMaps), AllocTunables::default());
        alloc.add_top(new.clone(), ClassKind::Normal, vec![MsSummary::default(); new.ms_count() as usize]).unwrap();
        let zio = Zio::new(rt.clone(), tree, alloc.clone(), ZioOpts::default());
        let ledger = Rc::new(Ledger { live: RefCell::default(), zio: zio.clone() });
        let hooks = || ObjsetHooks { acct: ledger.clone(), gate: None, feat: None };
        let ctx = Env::make_ctx(&rt, &zio, ub.txg.next(), 32 << 20, features());
        let mos = Objset::open(ctx.clone(), 0, ub.rootbp, ObjsetProps::mos(), hooks(), false).await.unwrap();
        let w = walk(&zio, &ub.rootbp, true).await;
        println!("{path}: MOS of {} objects, level {}", w.objects, w.max_level);
        let mut at = ObjectId(0);
        let mut sets = 0;
        let mut first = ub.txg.next();
        while let Some(obj) = mos.objects(at).await.unwrap() {
            at = ObjectId(obj.0 + 1);
            let dn = mos.hold(obj).await.unwrap();
            if dn.bonus_type() != ObjectType::DSL_DATASET {
                continue;
            }
            let root = Blkptr::parse(&dn.bonus()[128..]).unwrap();
            if root.is_hole() || root.encrypted() {
                continue;
            }
            sets += 1;
            let before = walk(&zio, &root, true).await;
            *ledger.live.borrow_mut() = before.places;
            let ctx = Env::make_ctx(&rt, &zio, first, 32 << 20, features());
            let props = ObjsetProps {
                compression: codec::Compression { algo: codec::CompressAlgo::Lz4, level: 0 },
                ..ObjsetProps::default()
            };
            let os = Objset::open(ctx.clone(), obj.0, root, props, hooks(), true).await.unwrap();
            let accounts = os.os_type() == ObjsetType::Zfs && os.flags() & 1 != 0;
            if accounts {
                let sums = owners(&os).await;
                assert_eq!(sums[0], accounted(&os, ObjectId::USERUSED).await);
                assert_eq!(sums[1], accounted(&os, ObjectId::GROUPUSED).await);
            }
            // Change a good part of it.
            let mut r = Rng::new(obj.0);
            let mut model: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
            let (os2, alloc2, txgs) = (os.clone(), alloc.clone(), ctx.txg().clone());
            let task = rt.spawn("sync", async move {
                txgs.clone().run(async |txg: Txg| sync_all(&os2, &alloc2, txg, None).await).await.unwrap();
            });
            let mut from = ObjectId(0);
            while let Some(o) = os.objects(from).await.unwrap() {
                from = ObjectId(o.0 + 1);
                let dn = os.hold(o).await.unwrap();
                if !matches!(dn.otype(), ObjectType::PLAIN_FILE | ObjectType::ZVOL) || r.below(3) == 0 {
                    continue;
                }
                let len = (dn.max_blkid() + 1).saturating_mul(u64::from(dn.block_size())).min(3 << 20);
                let mut want: Vec<u8> = dn.read_range(0, len).await.unwrap().iter().flat_map(|b| b.to_vec()).collect();
                for _ in 0..3 {
                    let off = r.below(len);
                    let n = (1 + r.below(len - off)).min(200_000) as usize;
                    let tx = TxPlan::new(&os).write(&dn, off, n as u64).assign().await.unwrap();
                    if r.below(3) == 0 {
                        dn.free_range(off, n as u64, &tx).await.unwrap();
                        want[off as usize..][..n].fill(0);
                    } else {
                        let mut data = vec![0; n];
                        r.fill(&mut data);
                        dn.write(off, &data, &tx).await.unwrap();
                        want[off as usize..][..n].copy_from_slice(&data);
                    }
                }
                match r.below(8) {
                    0 => {
                        let tx = TxPlan::new(&os).free(&dn).assign().await.unwrap();
                        os.free(o, &tx).await.unwrap();
                    }
                    1 => {
                        let tx = TxPlan::new(&os).free(&dn).assign().await.unwrap();
                        dn.free_range(0, u64::MAX, &tx).await.unwrap();
                        model.insert(o.0, vec![0; len as usize]);
                    }
                    _ => {
                        model.insert(o.0, want);
                    }
                }
                if r.below(20) == 0 {
                    ctx.txg().kick();
                }
            }
            ctx.txg().wait_synced(Txg(0)).await.unwrap();
            ctx.txg().stop();
            task.await;
            first = ctx.txg().open_txg().next();
            let after = walk(&zio, &os.root_bp(), true).await;
            assert_eq!(after.places, *ledger.live.borrow());
            let root = os.root_bp();
            drop(os);
            let ctx = Env::make_ctx(&rt, &zio, first, 32 << 20, features());
            let os = Objset::open(ctx, obj.0, root, props, hooks(), false).await.unwrap();
            for (o, want) in &model {
                let dn = os.hold(ObjectId(*o)).await.unwrap();
                let got: Vec<u8> =
                    dn.read_range(0, want.len() as u64).await.unwrap().iter().flat_map(|b| b.to_vec()).collect();
                assert!(got == *want, "object {o} of {obj}");
            }
            if accounts {
                let sums = owners(&os).await;
                assert_eq!(sums[0], accounted(&os, ObjectId::USERUSED).await);
                assert_eq!(sums[1], accounted(&os, ObjectId::GROUPUSED).await);
            }
            println!(
                "  object set {obj}: {} objects, {} changed, level {}",
                before.objects,
                model.len(),
                after.max_level
            );
        }
        println!("  {sets} object sets");
    });
}

#[test]
fn pools_of_openzfs() {
    let images = std::env::var("WEIR_POOL_IMAGES").unwrap_or_default();
    for image in images.split(':').filter(|i| !i.is_empty()) {
        try_pool(image);
    }
}
