//! System attributes: their layout, their values after txgs and reopenings, and against a model.

use std::rc::Rc;

use crate::common::*;
use base::{ErrorKind, ObjectId};
use dmu::sa::{NewZnode, SaAttr, SaHandle, SaTable, ZnodeAttrs};
use dmu::*;
use ondisk::object_type::ObjectType;
use ondisk::objset::ObjsetType;
use ondisk::sa::{AttrTable, parse_header};
use ondisk::zpl::{S_IFLNK, S_IFREG, pflags};
use sim::Rng;

const BASE: [u16; 14] = [5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 16, 19];
const ACES: [u8; 24] = [9; 24];

/// Attributes of varying length.
type Vars = Vec<(SaAttr, Vec<u8>)>;

fn attrs(mode: u64) -> ZnodeAttrs {
    ZnodeAttrs {
        mode,
        size: 5,
        generation: 4,
        uid: 1000,
        gid: 100,
        parent: 34,
        flags: pflags::ARCHIVE,
        atime: [1, 2],
        mtime: [3, 4],
        ctime: [5, 6],
        crtime: [7, 8],
        links: 1,
        dacl_count: 3,
        ..ZnodeAttrs::default()
    }
}

async fn file(os: &Objset, tx: &Tx) -> Dnode {
    let spec = ObjSpec::new(ObjectType::PLAIN_FILE, 512).bonus(ObjectType::SA, 320);
    os.alloc(spec, tx).await.unwrap()
}

/// Layout of the bonus, its length, layout of the spill block.
async fn shape(dn: &Dnode, t: &SaTable) -> (Vec<u16>, usize, Option<Vec<u16>>) {
    let layout = |b: &[u8]| t.layout(parse_header(b).unwrap().unwrap().0).unwrap();
    let spill = dn.spill().await.unwrap().map(|b| layout(&b));
    (layout(&dn.bonus()), dn.bonus().len(), spill)
}

fn base_and(more: &[u16]) -> Vec<u16> {
    [&BASE[..], more].concat()
}

/// The examples of format pages 08 section 3 and 16 section 1.
#[test]
fn layouts_of_real_files() {
    let sim = world(1);
    sim.block_on(async {
        let mut env = Env::new(&sim, 32 << 20, features(), ObjsetProps::default());
        let mut os = env.create(ObjsetType::Zfs);
        let mut task = env.run(&os, None);
        let tx = TxPlan::new(&os).create(1).assign().await.unwrap();
        let master = SaTable::create(&os, &tx).await.unwrap();
        let mut t = SaTable::load(&os, master).await.unwrap();
        let dn = file(&os, &tx).await;
        let a = attrs(S_IFREG | 0o644);
        let new = NewZnode { aces: &ACES, ..NewZnode::default() };
        let sa = SaHandle::create_znode(&dn, &t, &a, new, &tx).await.unwrap();
        assert_eq!(shape(&dn, &t).await, (BASE.to_vec(), 168, None));
        assert_eq!(sa.attrs().await.unwrap(), a);

        let with_project = file(&os, &tx).await;
        let p = ZnodeAttrs { projid: 9, flags: a.flags | pflags::PROJID, ..a };
        SaHandle::create_znode(&with_project, &t, &p, NewZnode { projid: true, ..new }, &tx).await.unwrap();
        let project_layout = [&BASE[..12], &[21, 16, 19]].concat();
        assert_eq!(shape(&with_project, &t).await, (project_layout.clone(), 176, None));
        assert_eq!(ondisk::sa::owner_ids(&with_project.bonus()).unwrap().projid, 9);

        let device = file(&os, &tx).await;
        SaHandle::create_znode(&device, &t, &a, NewZnode { rdev: true, ..new }, &tx).await.unwrap();
        assert_eq!(shape(&device, &t).await.0, [&BASE[..12], &[10, 16, 19]].concat());

        let mut links = Vec::new();
        for (len, bonus, bonuslen, spill) in [
            (6, base_and(&[17]), 182, None),
            (100, base_and(&[17]), 276, None),
            (599, BASE.to_vec(), 192, Some(vec![17])),
        ] {
            let link = file(&os, &tx).await;
            let target = vec![b't'; len];
            let a = attrs(S_IFLNK | 0o777);
            let new = NewZnode { symlink: Some(&target), ..new };
            let sa = SaHandle::create_znode(&link, &t, &a, new, &tx).await.unwrap();
            assert_eq!(shape(&link, &t).await, (bonus, bonuslen, spill.clone()));
            assert_eq!(sa.symlink().await.unwrap().unwrap(), target);
            links.push((link.object(), target, spill.is_some()));
        }

        // An xattr list comes, grows out of the bonus, and goes.
        let sa = SaHandle::open(&with_project, Some(&t)).unwrap();
        sa.set(SaAttr::Dxattr, &[1; 40], &tx).await.unwrap();
        assert_eq!(shape(&with_project, &t).await, ([&project_layout[..], &[20]].concat(), 224, None));
        sa.set(SaAttr::Dxattr, &[2; 200], &tx).await.unwrap();
        assert_eq!(shape(&with_project, &t).await, (project_layout.clone(), 192, Some(vec![20])));
        assert_eq!(with_project.spill().await.unwrap().unwrap().len(), 512);
        // In place, and with everything else in the bonus.
        sa.set(SaAttr::Dxattr, &[3; 200], &tx).await.unwrap();
        sa.set_attrs(&ZnodeAttrs { size: 77, ..p }, &tx).await.unwrap();
        // Behind the attributes in the spill block.
        sa.set_attrs(&ZnodeAttrs { size: 77, xattr: 55, ..p }, &tx).await.unwrap();
        assert_eq!(shape(&with_project, &t).await, (project_layout.clone(), 192, Some(vec![20, 9])));
        assert_eq!(sa.attrs().await.unwrap(), ZnodeAttrs { size: 77, xattr: 55, ..p });
        assert_eq!(sa.get(SaAttr::Dxattr).await.unwrap().unwrap(), [3; 200]);
        sa.set_attrs(&ZnodeAttrs { size: 77, xattr: 56, ..p }, &tx).await.unwrap();
        assert_eq!(sa.attrs().await.unwrap().xattr, 56);
        let e = sa.set(SaAttr::Dxattr, &[0; 65536], &tx).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::TooBig);
        sa.set(SaAttr::Dxattr, &[4; 60_000], &tx).await.unwrap();
        drop(tx);

        let objs = (dn.object(), with_project.object());
        drop((dn, with_project, device));
        env.stop(task).await;
        check(&env, &os).await;
        os = env.reopen(os).await;
        t = SaTable::load(&os, master).await.unwrap();
        task = env.run(&os, None);
        let dn = os.hold(objs.1).await.unwrap();
        assert!(dn.committed().spill.is_some());
        let sa = SaHandle::open(&dn, Some(&t)).unwrap();
        assert_eq!(sa.get(SaAttr::Dxattr).await.unwrap().unwrap(), vec![4; 60_000]);
        let tx = TxPlan::new(&os).spill(&dn).assign().await.unwrap();
        sa.remove(SaAttr::Dxattr, &tx).await.unwrap();
        assert_eq!(sa.remove(SaAttr::Dxattr, &tx).await.unwrap_err().kind(), ErrorKind::NoAttr);
        assert_eq!(shape(&dn, &t).await, ([&project_layout[..], &[9]].concat(), 184, None));
        assert_eq!(sa.get(SaAttr::Xattr).await.unwrap().unwrap(), 56u64.to_le_bytes());
        // A project id for a file that has none goes to its fixed place.
        let plain = os.hold(objs.0).await.unwrap();
        let sa = SaHandle::open(&plain, Some(&t)).unwrap();
        assert_eq!(sa.attrs().await.unwrap(), a);
        sa.set_attrs(&ZnodeAttrs { projid: 3, flags: a.flags | pflags::PROJID, ..a }, &tx).await.unwrap();
        assert_eq!(shape(&plain, &t).await, (project_layout, 176, None));
        assert_eq!(ondisk::sa::owner_ids(&plain.bonus()).unwrap().projid, 3);
        for (obj, target, spilled) in links {
            let dn = os.hold(obj).await.unwrap();
            assert_eq!(dn.has_spill(), spilled);
            assert_eq!(SaHandle::open(&dn, Some(&t)).unwrap().symlink().await.unwrap().unwrap(), target);
        }
        drop(tx);
        drop((dn, plain));
        env.stop(task).await;
        check(&env, &os).await;
        let dn = os.hold(objs.1).await.unwrap();
        assert!(dn.committed().spill.is_none());
    });
}

#[test]
fn against_a_model() {
    for seed in 1..4 {
        let sim = world(seed);
        sim.block_on(async {
            let mut r = Rng::new(seed);
            let mut env = Env::new(&sim, 32 << 20, features(), ObjsetProps::default());
            let mut os = env.create(ObjsetType::Zfs);
            let mut task = env.run(&os, None);
            let tx = TxPlan::new(&os).create(1).assign().await.unwrap();
            let master = SaTable::create(&os, &tx).await.unwrap();
            let mut t = SaTable::load(&os, master).await.unwrap();
            let mut models: Vec<(ObjectId, ZnodeAttrs, Vars)> = Vec::new();
            for i in 0..8 {
                let spec = ObjSpec::new(ObjectType::PLAIN_FILE, 512).bonus(ObjectType::SA, 320);
                let spec = if i % 2 == 0 { spec } else { spec.dnodesize(1024) };
                let dn = os.alloc(spec, &tx).await.unwrap();
                let a = attrs(S_IFREG);
                SaHandle::create_znode(&dn, &t, &a, NewZnode { aces: &ACES, ..NewZnode::default() }, &tx)
                    .await
                    .unwrap();
                models.push((dn.object(), a, vec![(SaAttr::DaclAces, ACES.to_vec())]));
            }
            drop(tx);
            for step in 0..600 {
                let (obj, a, vars) = &mut models[r.below(8) as usize];
                let dn = os.hold(*obj).await.unwrap();
                let sa = SaHandle::open(&dn, Some(&t)).unwrap();
                let tx = TxPlan::new(&os).spill(&dn).assign().await.unwrap();
                let which = [SaAttr::DaclAces, SaAttr::Symlink, SaAttr::Dxattr][r.below(3) as usize];
                match r.below(10) {
                    0..5 => {
                        a.size = r.below(1 << 40);
                        a.mtime = [r.below(99), r.below(99)];
                        if r.below(6) == 0 {
                            a.xattr = 1 + r.below(100);
                        }
                        if r.below(9) == 0 {
                            a.projid = 1 + r.below(5);
                            a.flags |= pflags::PROJID;
                        }
                        sa.set_attrs(a, &tx).await.unwrap();
                    }
                    5..8 => {
                        let most = [30, 300, 3000, 40_000][r.below(4) as usize];
                        let v = vec![r.below(256) as u8; r.below(most) as usize];
                        a.ctime = [step, 0];
                        match sa.update(Some(a), &[(which, Some(&v))], &tx).await {
                            Ok(()) => match vars.iter_mut().find(|x| x.0 == which) {
                                Some(x) => x.1 = v,
                                None => vars.push((which, v)),
                            },
                            Err(e) => {
                                assert_eq!(e.kind(), ErrorKind::TooBig);
                                *a = sa.attrs().await.unwrap();
                            }
                        }
                    }
                    8 => match vars.iter().position(|x| x.0 == which) {
                        Some(i) => {
                            sa.remove(which, &tx).await.unwrap();
                            vars.remove(i);
                        }
                        None => assert!(sa.remove(which, &tx).await.is_err()),
                    },
                    _ => env.ctx.txg().kick(),
                }
                drop(tx);
                if step % 200 == 199 {
                    drop(dn);
                    env.stop(task).await;
                    check(&env, &os).await;
                    os = env.reopen(os).await;
                    t = SaTable::load(&os, master).await.unwrap();
                    task = env.run(&os, None);
                }
                for (obj, a, vars) in &models {
                    if r.below(4) > 0 && step % 200 != 199 {
                        continue;
                    }
                    let dn = os.hold(*obj).await.unwrap();
                    let sa = SaHandle::open(&dn, Some(&t)).unwrap();
                    assert_eq!(sa.attrs().await.unwrap(), *a);
                    let kinds = [SaAttr::DaclAces, SaAttr::Symlink, SaAttr::Dxattr];
                    for (kind, got) in kinds.iter().zip(sa.get_many(&kinds).await.unwrap()) {
                        assert_eq!(got, vars.iter().find(|x| x.0 == *kind).map(|x| x.1.clone()));
                    }
                    // The division is what the format's rule says.
                    let nums = |b: &[u8]| t.layout(parse_header(b).unwrap().unwrap().0).unwrap();
                    let spill = dn.spill().await.unwrap();
                    let mut all = nums(&dn.bonus());
                    let in_bonus = all.len();
                    all.extend(spill.as_ref().map(|s| nums(s)).unwrap_or_default());
                    let table = AttrTable::standard();
                    let mut sizes = Vec::new();
                    for n in &all {
                        let attr = table.attr(*n).unwrap();
                        let len = sa.get(attr).await.unwrap().unwrap().len();
                        sizes.push((len, table.info(*n).unwrap().len == 0));
                    }
                    let plan = ondisk::sa::plan(&sizes, dn.bonus_capacity(false)).unwrap();
                    assert_eq!((plan.in_bonus, plan.bonuslen), (in_bonus, dn.bonus().len()));
                }
            }
            env.stop(task).await;
        });
    }
}

/// A file system of an old version: registry without the newer attributes, no layouts yet; znodes
/// beside attributes.
#[test]
fn old_file_systems() {
    let sim = world(3);
    sim.block_on(async {
        let env = Env::new(&sim, 32 << 20, features(), ObjsetProps::default());
        let os = env.create(ObjsetType::Zfs);
        let tx = TxPlan::new(&os).create(1).assign().await.unwrap();
        let master = zap::create(&os, ObjectType::SA_MASTER_NODE, 0, &tx).await.unwrap();
        let t: Rc<SaTable> = SaTable::load(&os, master.object()).await.unwrap();
        assert_eq!(t.objects(), [master.object()]);
        let dn = file(&os, &tx).await;
        let a = attrs(S_IFREG);
        let sa =
            SaHandle::create_znode(&dn, &t, &a, NewZnode { aces: &ACES, ..NewZnode::default() }, &tx).await.unwrap();
        assert_eq!(sa.attrs().await.unwrap(), a);
        assert_eq!(t.objects().len(), 3);
        let registry = os.hold(t.objects()[1]).await.unwrap();
        zap::remove(&registry, b"ZPL_DXATTR", &tx).await.unwrap();
        zap::remove(&registry, b"ZPL_PROJID", &tx).await.unwrap();
        let t = SaTable::load(&os, master.object()).await.unwrap();
        assert_eq!(t.num(SaAttr::Dxattr), None);
        let sa = SaHandle::open(&dn, Some(&t)).unwrap();
        assert_eq!(sa.attrs().await.unwrap(), a);
        sa.set(SaAttr::Dxattr, b"x", &tx).await.unwrap();
        assert_eq!(zap::lookup_u64(&registry, b"ZPL_DXATTR").await.unwrap(), Some(0x0003_0014));
        assert_eq!(zap::count(&registry).await.unwrap(), 22);

        let spec = ObjSpec::new(ObjectType::PLAIN_FILE, 512).bonus(ObjectType::ZNODE, 270);
        let old = os.alloc(spec, &tx).await.unwrap();
        let sa = SaHandle::open(&old, Some(&t)).unwrap();
        let link = ZnodeAttrs { mode: S_IFLNK | 0o777, size: 6, dacl_count: 0, ..a };
        sa.set_attrs(&link, &tx).await.unwrap();
        assert_eq!(sa.attrs().await.unwrap(), link);
        let mut b = old.bonus().to_vec();
        b[264..].copy_from_slice(b"target");
        old.set_bonus(&b, &tx).unwrap();
        assert_eq!(sa.symlink().await.unwrap().unwrap(), b"target");
        assert_eq!(sa.set(SaAttr::Dxattr, b"x", &tx).await.unwrap_err().kind(), ErrorKind::Unsupported);
        let other = zap::create(&os, ObjectType::OTHER_ZAP, 0, &tx).await.unwrap();
        assert!(SaHandle::open(&other, Some(&t)).is_err());
    });
}
