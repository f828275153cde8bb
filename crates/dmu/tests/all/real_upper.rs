//! ZAPs, system attributes and block pointer lists that OpenZFS wrote, read by the layers on top of
//! objects. Single-disk pools only.
//!
//! `WEIR_POOL_IMAGES` names the images, separated by colons; without it there is nothing to do.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::common::*;
use base::{Guid, ObjectId, Txg, VdevId};
use dmu::bpobj::{Bpobj, BpobjSpace};
use dmu::sa::{SaAttr, SaHandle, SaTable};
use dmu::zap::{Match, ZapValue};
use dmu::*;
use metaslab::{AllocTunables, Allocator};
use ondisk::blkptr::Blkptr;
use ondisk::object_type::ObjectType;
use ondisk::objset::ObjsetType;
use ondisk::sa::parse_header;
use ondisk::vdev_config::{VdevConfig, VdevKind as ConfigKind};
use ondisk::zap::{Header, Leaf, NORM_TOUPPER, ZapKind};
use ondisk::zpl::{Dirent, S_IFDIR, S_IFLNK, S_IFMT};
use sim::{DiskImage, Model, SimDisk};
use vdev::{DirtyGauge, Leaf as VdevLeaf, QueueTunables, Top, TopSpec, VdevKind, VdevTree};
use zio::{Zio, ZioOpts};

struct Nothing;
impl BlockAccounting for Nothing {
    fn born(&self, _bp: &Blkptr, _txg: Txg) {}
    fn kill(&self, _bp: &Blkptr, _txg: Txg) {}
}

#[derive(Default, Debug)]
struct Seen {
    zaps: u64,
    fat: u64,
    entries: u64,
    files: u64,
    znodes: u64,
    spills: u64,
    links: u64,
    lists: u64,
    pointers: u64,
}

async fn zap_object(dn: &Dnode, seen: &mut Seen) {
    let list = zap::list(dn).await.unwrap();
    assert_eq!(list.len() as u64, zap::count(dn).await.unwrap(), "{dn:?}");
    let names: BTreeSet<_> = list.iter().map(|e| &e.name).collect();
    assert_eq!(names.len(), list.len());
    for e in &list {
        assert_eq!(zap::lookup(dn, &e.name).await.unwrap().as_ref(), Some(&e.value), "{dn:?}");
    }
    let block = dn.read_block(0).await.unwrap();
    seen.zaps += 1;
    seen.entries += list.len() as u64;
    let params = match ondisk::zap::kind(&block).unwrap() {
        ZapKind::Micro => ondisk::zap::MicroZap::open(&block[..]).unwrap().params(),
        ZapKind::Fat => {
            seen.fat += 1;
            let h = Header::parse(&block).unwrap();
            let mut leaves = BTreeSet::new();
            for i in 0..h.table_len() {
                let slot = h.slot(i);
                leaves.insert(h.load(&dn.read_block(slot.blk).await.unwrap(), slot).unwrap());
            }
            assert_eq!(leaves.len() as u64, h.num_leafs);
            for blk in leaves {
                let b = dn.read_block(blk).await.unwrap();
                Leaf::open(&b[..], h.params.key_kind()).unwrap().check().unwrap();
            }
            h.params
        }
    };
    if params.normflags & NORM_TOUPPER != 0 {
        for e in &list {
            // Names that are no text stay as they are; a character whose upper case is longer stays
            // too.
            let Ok(name) = std::str::from_utf8(&e.name) else { continue };
            let upper = |c: char| if c.to_uppercase().count() == 1 { c.to_uppercase().next().unwrap() } else { c };
            let upper: String = name.chars().map(upper).collect();
            let found = zap::lookup_norm(dn, upper.as_bytes(), Match::Folded).await.unwrap();
            assert!(found.is_some(), "{name}");
        }
    }
}

/// Edits a ZAP (in memory) and compares it with a model.
async fn edit_zap(dn: &Dnode, tx: &Tx) {
    let mut model: BTreeMap<Vec<u8>, ZapValue> =
        zap::list(dn).await.unwrap().into_iter().map(|e| (e.name, e.value)).collect();
    let odd: Vec<Vec<u8>> = model.keys().step_by(2).cloned().collect();
    for name in odd {
        zap::remove(dn, &name, tx).await.unwrap();
        model.remove(&name);
    }
    for i in 0..60u64 {
        let (name, value) = (format!("added {i}").into_bytes(), ZapValue::from_u64(i));
        zap::add(dn, &name, &value, tx).await.unwrap();
        model.insert(name, value);
    }
    zap::update_text(dn, b"added 7", "text", tx).await.unwrap();
    model.insert(b"added 7".to_vec(), ZapValue::from_str_nul("text"));
    let got: BTreeMap<_, _> = zap::list(dn).await.unwrap().into_iter().map(|e| (e.name, e.value)).collect();
    assert_eq!(got, model);
}

/// An xattr list that comes and goes leaves everything as OpenZFS wrote it.
async fn edit_file(dn: &Dnode, t: &Rc<SaTable>, tx: &Tx) {
    let sa = SaHandle::open(dn, Some(t)).unwrap();
    if sa.is_znode() || sa.get(SaAttr::Dxattr).await.unwrap().is_some() {
        return;
    }
    let (bonus, spill, a) = (dn.bonus(), dn.spill().await.unwrap(), sa.attrs().await.unwrap());
    for len in [20, 100, 1000] {
        sa.set(SaAttr::Dxattr, &vec![9; len], tx).await.unwrap();
        assert_eq!(sa.attrs().await.unwrap(), a);
    }
    sa.remove(SaAttr::Dxattr, tx).await.unwrap();
    assert_eq!(dn.bonus(), bonus, "{dn:?}");
    assert_eq!(dn.spill().await.unwrap().as_deref(), spill.as_deref(), "{dn:?}");
    sa.set_attrs(&a, tx).await.unwrap();
    assert_eq!(dn.bonus(), bonus);
}

async fn file(dn: &Dnode, t: &Rc<SaTable>, seen: &mut Seen) {
    let sa = SaHandle::open(dn, Some(t)).unwrap();
    let a = sa.attrs().await.unwrap();
    seen.files += 1;
    if sa.is_znode() {
        seen.znodes += 1;
    } else {
        // The division of attributes agrees with the rule.
        let layout = |b: &[u8]| t.layout(parse_header(b).unwrap().unwrap().0).unwrap();
        let spill = dn.spill().await.unwrap();
        seen.spills += u64::from(spill.is_some());
        let bonus = layout(&dn.bonus());
        let mut all = bonus.clone();
        all.extend(spill.as_ref().map(|s| layout(s)).unwrap_or_default());
        let known: Vec<SaAttr> =
            all.iter().map(|n| SaAttr::ALL.into_iter().find(|&a| t.num(a) == Some(*n)).unwrap()).collect();
        let values = sa.get_many(&known).await.unwrap();
        let sizes: Vec<(usize, bool)> = known
            .iter()
            .zip(&values)
            .map(|(a, v)| (v.as_ref().unwrap().len(), ondisk::sa::STANDARD[*a as usize].1 == 0))
            .collect();
        let plan = ondisk::sa::plan(&sizes, dn.bonus_capacity(false)).unwrap();
        assert_eq!((plan.in_bonus, plan.bonuslen), (bonus.len(), dn.bonus().len()), "{dn:?}");
        let aces = values[known.iter().position(|&a| a == SaAttr::DaclAces).unwrap()].clone().unwrap();
        assert_eq!(ondisk::zpl::parse_aces(&aces).unwrap().len() as u64, a.dacl_count);
    }
    match a.mode & S_IFMT {
        S_IFLNK => {
            seen.links += 1;
            assert_eq!(sa.symlink().await.unwrap().unwrap().len() as u64, a.size);
        }
        S_IFDIR => {
            assert_eq!(zap::count(dn).await.unwrap() + 2, a.size, "{dn:?}");
            for e in zap::list(dn).await.unwrap() {
                let d = Dirent::unpack(e.value.as_u64().unwrap());
                let child = dn.objset().hold(ObjectId(d.object)).await.unwrap();
                let mode = SaHandle::open(&child, Some(t)).unwrap().attrs().await.unwrap().mode;
                assert!(d.dtype == 0 || u64::from(d.dtype) == mode >> 12);
            }
        }
        _ => {}
    }
}

async fn object_set(os: &Objset, zio: &Zio, seen: &mut Seen) {
    let table = match os.os_type() {
        ObjsetType::Zfs => {
            let master = os.hold(ObjectId(1)).await.unwrap();
            let obj = match zap::lookup_u64(&master, b"SA_ATTRS").await.unwrap() {
                Some(obj) => ObjectId(obj),
                // Before version 5 nothing is an attribute; any ZAP without the keys will do.
                None => ObjectId(1),
            };
            Some(SaTable::load(os, obj).await.unwrap())
        }
        _ => None,
    };
    let mut kinds: BTreeMap<ObjectType, u64> = BTreeMap::new();
    let mut at = ObjectId(0);
    while let Some(obj) = os.objects(at).await.unwrap() {
        at = ObjectId(obj.0 + 1);
        let dn = os.hold(obj).await.unwrap();
        *kinds.entry(dn.otype()).or_default() += 1;
        if dn.otype().is_zap() && dn.committed().bps().iter().any(|b| !b.is_hole()) {
            zap_object(&dn, seen).await;
        }
        if let Some(t) = &table
            && matches!(dn.bonus_type(), ObjectType::SA | ObjectType::ZNODE)
        {
            file(&dn, t, seen).await;
        }
        if dn.otype() == ObjectType::BPOBJ {
            let list = Bpobj::open(os, obj).await.unwrap();
            let h = list.header().unwrap();
            let mut n = 0;
            list.iterate(&mut |_| {
                n += 1;
                Ok(())
            })
            .await
            .unwrap();
            let sum = list.space_born(Txg(0), Txg(u64::MAX), &|bp| zio.dsize(bp)).await.unwrap();
            if h.num_freed == 0 {
                assert_eq!(sum, list.space().unwrap(), "{dn:?}");
            } else {
                assert_ne!(sum, BpobjSpace::default());
            }
            seen.lists += 1;
            seen.pointers += n;
        }
    }
}

/// Changes all ZAPs and files, only in memory.
async fn edit(os: &Objset, tx: &Tx) {
    if os.os_type() != ObjsetType::Zfs {
        return;
    }
    let table = match zap::lookup_u64(&os.hold(ObjectId(1)).await.unwrap(), b"SA_ATTRS").await.unwrap() {
        Some(obj) => Some(SaTable::load(os, ObjectId(obj)).await.unwrap()),
        None => None,
    };
    let mut at = ObjectId(0);
    while let Some(obj) = os.objects(at).await.unwrap() {
        at = ObjectId(obj.0 + 1);
        let dn = os.hold(obj).await.unwrap();
        if let Some(t) = &table
            && dn.bonus_type() == ObjectType::SA
        {
            edit_file(&dn, t, tx).await;
        }
        if dn.otype() == ObjectType::DIRECTORY {
            edit_zap(&dn, tx).await;
        }
    }
}

fn try_pool(path: &str) {
    let sim = world(1);
    let image = DiskImage::load(path).unwrap();
    let size = image.size();
    let disk = SimDisk::from_image(&sim.handle(), image, Model::random(), 3);
    sim.block_on(async {
        let rt = sim.rt();
        let labels = vdev::labels::read_labels(&*disk.dev()).await.unwrap();
        let ub = labels.uberblocks.iter().max_by_key(|u| (u.ub.txg, u.ub.timestamp)).unwrap().ub.clone();
        let leaf =
            VdevLeaf::new(&rt, Guid(10), "disk".into(), disk.dev(), DirtyGauge::default(), QueueTunables::default());
        let top = Top::new(TopSpec {
            id: VdevId(0),
            ashift: 9,
            asize: size - (8 << 20),
            ms_shift: 28,
            ms_array: ObjectId(0),
            is_log: false,
            kind: VdevKind::Leaf(leaf),
            config: VdevConfig::new(ConfigKind::Disk, 0, Guid(20)),
        });
        let tree = VdevTree::new(Guid(1), vec![top]);
        let alloc = Allocator::new(Rc::new(NoMaps), AllocTunables::default());
        let zio = Zio::new(rt.clone(), tree, alloc, ZioOpts::default());
        let hooks = || ObjsetHooks { acct: Rc::new(Nothing), gate: None, feat: None };
        let ctx = Env::make_ctx(&rt, &zio, ub.txg.next(), 32 << 20, features());
        let mos = Objset::open(ctx.clone(), 0, ub.rootbp, ObjsetProps::mos(), hooks(), false).await.unwrap();
        let mut seen = Seen::default();
        object_set(&mos, &zio, &mut seen).await;
        let mut at = ObjectId(0);
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
            let os = Objset::open(ctx.clone(), obj.0, root, ObjsetProps::default(), hooks(), true).await.unwrap();
            object_set(&os, &zio, &mut seen).await;
            edit(&os, &Tx::syncing(ub.txg.next())).await;
        }
        println!("{path}: {seen:?}");
    });
}

#[test]
fn pools_of_openzfs() {
    let images = std::env::var("WEIR_POOL_IMAGES").unwrap_or_default();
    for image in images.split(':').filter(|i| !i.is_empty()) {
        try_pool(image);
    }
}
