//! Each check fires: one value of a good pool is altered behind the checksums, and the check that
//! compares it reports it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::cell::RefCell;
use std::rc::Rc;

use common::{Folder, extents, fixture, write_image};
use ondisk::blkptr::Blkptr;
use ondisk::bytes::{le64, put_le64};
use ondisk::dnode::{DNODE_SIZE, DnodePhys, Slot, slots};
use ondisk::object_type::ObjectType as T;
use zdb::dsl::Dsl;
use zdb::{CheckOpts, PoolReader, check};

struct Pool {
    folder: Folder,
}

impl Pool {
    fn new(name: &str) -> Pool {
        let folder = Folder::new(name);
        let (size, ext) = extents(&fixture("names.pack.zst"));
        write_image(&folder.path().join("d0.img"), size, &ext);
        Pool { folder }
    }
    fn open(&self) -> PoolReader {
        PoolReader::open(&[self.folder.path().join("d0.img")]).unwrap()
    }
    /// The errors of a check in which `alter` changes blocks.
    fn errors(&self, alter: impl Fn(&Blkptr, &mut [u8]) + 'static) -> Vec<String> {
        let p = self.open();
        *p.io.tamper.borrow_mut() = Some(Box::new(alter));
        check(&p, &CheckOpts::default(), &mut |_| {}).errors
    }
    /// Alters the dnode of one object, in whatever block of dnodes of that birth and place it is,
    /// and expects an error with these words.
    fn dnode(&self, dataset: &str, object: u64, change: impl Fn(&mut DnodePhys) + 'static, expect: &str) {
        let p = self.open();
        let dsl = Dsl::load(&p).unwrap();
        let os = match dsl.find(dataset) {
            Some(d) => p.open_dataset(&d.name, d.obj, &d.phys.bp).unwrap(),
            None => p.mos.clone(),
        };
        let bp = os.meta().bp(object / 32).unwrap();
        let slot = (object % 32) as usize;
        let errors = self.errors(move |b, data| {
            if b.0 == bp.0 {
                let mut dn = DnodePhys::parse_slot(data, slot).unwrap().unwrap();
                change(&mut dn);
                dn.write_to(&mut data[slot * DNODE_SIZE..]);
            }
        });
        assert!(errors.iter().any(|e| e.contains(expect)), "{expect}: {errors:?}");
    }
    /// Alters data block 0 of an object.
    fn block0(&self, dataset: &str, object: u64, change: impl Fn(&mut [u8]) + 'static, expect: &str) {
        let p = self.open();
        let dsl = Dsl::load(&p).unwrap();
        let os = match dsl.find(dataset) {
            Some(d) => p.open_dataset(&d.name, d.obj, &d.phys.bp).unwrap(),
            None => p.mos.clone(),
        };
        let bp = os.object(object).unwrap().bp(0).unwrap();
        let errors = self.errors(move |b, data| {
            if b.0 == bp.0 {
                change(data);
            }
        });
        assert!(errors.iter().any(|e| e.contains(expect)), "{expect}: {errors:?}");
    }
}

/// Adds to the word at `at` of a dnode's bonus.
fn word(at: usize) -> impl Fn(&mut DnodePhys) {
    move |dn: &mut DnodePhys| {
        let b = dn.bonus_mut();
        let v = le64(b, 8 * at).wrapping_add(512);
        put_le64(b, 8 * at, v);
    }
}

#[test]
fn figures_of_objects() {
    let p = Pool::new("fires-objects");
    let q = p.open();
    let file = Rc::new(RefCell::new(0));
    let dsl = Dsl::load(&q).unwrap();
    let ds = dsl.find("nm/sens").unwrap();
    let os = q.open_dataset(&ds.name, ds.obj, &ds.phys.bp).unwrap();
    let found = file.clone();
    os.for_each_object(&mut |o| {
        let o = o.unwrap();
        if o.dn.otype == T::PLAIN_FILE && !o.is_empty() {
            *found.borrow_mut() = o.num;
        }
    });
    let file = *file.borrow();
    p.dnode("nm/sens", file, |d| d.used += 512, "dn_used");
    p.dnode("nm/sens", file, |d| d.set_datablksz(2 * d.datablksz()), "bytes instead of");
    p.dnode("nm/sens", file, |d| d.blkptr[0].set_fill(7), "fill 7");
    p.dnode("nm/sens", file, |d| d.blkptr[0].set_otype(T::DIRECTORY), "pointer has level");
    p.dnode("nm/sens", file, |d| d.blkptr[0].set_level(1), "pointer has level");
    // The owner is at a fixed place after the header: uid is the fourth attribute.
    p.dnode("nm/sens", file, |d| put_le64(&mut d.bonus_mut()[32..], 0, 12345), "id 12345");
    p.dnode("nm/sens", file, |d| put_le64(&mut d.bonus_mut()[8..], 0, 0o040755), "object type");
    p.dnode("nm/sens", 34, |d| put_le64(&mut d.bonus_mut()[16..], 0, 99), "size 99");
    p.dnode("nm/sens", 34, |d| put_le64(&mut d.bonus_mut()[128..], 0, 77), "77 links");
}

#[test]
fn figures_of_datasets() {
    let p = Pool::new("fires-datasets");
    let q = p.open();
    let dsl = Dsl::load(&q).unwrap();
    let (head, snap) = (dsl.find("nm/sens").unwrap().obj, dsl.find("nm/sens@s").unwrap().obj);
    let dir = dsl.find("nm/sens").unwrap().dir;
    p.dnode("mos", head, word(9), "referenced, compressed, uncompressed");
    p.dnode("mos", head, word(12), "unique");
    p.dnode("mos", snap, word(12), "unique");
    p.dnode("mos", head, word(2), "previous snapshot's txg");
    p.dnode("mos", snap, word(5), "children, there are");
    p.dnode("mos", snap, word(3), "does not follow it");
    p.dnode("mos", dir, word(5), "its breakdown");
    p.dnode("mos", dir, word(13), "used by head");
    p.dnode("mos", dir, word(6), "compressed");
    p.dnode("mos", dir, word(2), "parent is directory");
    let dead = dsl.find("nm/sens").unwrap().phys.deadlist_obj;
    p.dnode("mos", dead, word(0), "deadlist says");
    let free = q.entry("free_bpobj").unwrap();
    p.dnode("mos", free, word(1), "its blocks take");
    p.dnode("mos", q.entry("history").unwrap(), word(3), "history");
}

#[test]
fn space_and_features() {
    let p = Pool::new("fires-space");
    let q = p.open();
    let array = q.config.vdev_tree.children[0].metaslab_array.unwrap().0;
    let map = q.mos.object(array).and_then(|o| o.read(0, 8)).map(|b| le64(&b, 0)).unwrap();
    p.dnode("mos", map, word(2), "bytes are allocated, its entries");
    p.dnode("mos", map, |d| put_le64(&mut d.bonus_mut()[64 + 8 * 9..], 0, 1 << 40), "histogram");
    p.dnode("mos", map, |d| put_le64(&mut d.bonus_mut()[8..], 0, 8), "is not allocated");
    // The first entry takes twice as much: the added space overlaps or leaks.
    p.block0(
        "mos",
        map,
        |b| {
            for at in (0..b.len()).step_by(8) {
                let w = le64(b, at);
                if w >> 63 == 0 && w >> 15 & 1 == 0 && w & 0x7fff > 0 {
                    put_le64(b, at, w - 1);
                    break;
                }
            }
        },
        "space map",
    );
    for f in ["features_for_read", "features_for_write"] {
        p.block0(
            "mos",
            q.entry(f).unwrap(),
            |b| (0..b.len()).step_by(64).skip(1).for_each(|at| b[at] = 200),
            "has count 200",
        );
    }
    // Nothing names it any more: the second half of a name is gone.
    p.block0("mos", q.entry("com.delphix:vdev_zap_map").unwrap(), |b| b[64 + 14] = b'f', "vdev ZAP");
}

#[test]
fn names_and_folders() {
    let p = Pool::new("fires-names");
    let q = p.open();
    let dsl = Dsl::load(&q).unwrap();
    let ds = dsl.find("nm/sens").unwrap();
    let os = q.open_dataset(&ds.name, ds.obj, &ds.phys.bp).unwrap();
    let root = os.object(34).unwrap().block(0).unwrap();
    assert_eq!(le64(&root, 0), ondisk::zap::BLOCK_MICRO);
    // The first entry of the root directory: another type, another object, another name twice.
    let first = (1..root.len() / 64).find(|i| root[i * 64 + 14] != 0).unwrap() * 64;
    p.block0("nm/sens", 34, move |b| b[first + 7] = 0x80, "type 8, mode");
    p.block0("nm/sens", 34, move |b| put_le64(b, first, 4 << 60 | 40_000), "object 40000 is not there");
    p.block0("nm/sens", 34, move |b| b[first..first + 64].fill(0), "is in no folder");
    p.block0(
        "nm/sens",
        34,
        |b| {
            let e: Vec<usize> = (1..b.len() / 64).filter(|i| b[i * 64 + 14] != 0).map(|i| i * 64).collect();
            let name = b[e[0] + 14..e[0] + 64].to_vec();
            b[e[1] + 14..e[1] + 64].copy_from_slice(&name);
        },
        "is there twice",
    );
    // A fat ZAP: the hash of an entry, and the number of entries.
    let mut fat = 0;
    os.for_each_object(&mut |o| {
        let o = o.unwrap();
        if o.dn.otype == T::DIRECTORY && o.dn.maxblkid > 0 {
            fat = o.num;
        }
    });
    assert_ne!(fat, 0);
    p.block0("nm/sens", fat, |b| put_le64(b, 72, 1), "the header says 1");
    let leaf = os.object(fat).unwrap().bp(1).unwrap();
    let errors = p.errors(move |bp, b| {
        if bp.0 == leaf.0 {
            let chunks = 48 + b.len() / 16;
            let at = (chunks..b.len() - 24).step_by(24).find(|&c| b[c] == 252).unwrap();
            b[at + 16 + 4] ^= 1;
        }
    });
    assert!(errors.iter().any(|e| e.contains("has hash")), "{errors:?}");
}

#[test]
fn dnodes_beyond_the_fill_are_seen() {
    let p = Pool::new("fires-fill");
    let q = p.open();
    let bp = q.mos.meta().bp(1).unwrap();
    let errors = p.errors(move |b, data| {
        if b.0 == bp.0 {
            let at = slots(data).unwrap().iter().rposition(|s| matches!(s, Slot::Dnode(_))).unwrap();
            data[at * DNODE_SIZE..(at + 1) * DNODE_SIZE].fill(0);
        }
    });
    assert!(errors.iter().any(|e| e.contains("it has 31 dnodes")), "{errors:?}");
    assert!(errors.iter().any(|e| e.contains("is named, but not there")), "{errors:?}");
}

#[test]
fn a_lost_file_leaks() {
    let p = Pool::new("fires-leak");
    let q = p.open();
    let dsl = Dsl::load(&q).unwrap();
    let ds = dsl.find("nm/sens").unwrap();
    let os = q.open_dataset(&ds.name, ds.obj, &ds.phys.bp).unwrap();
    let mut file = None;
    os.for_each_object(&mut |o| {
        let o = o.unwrap();
        if o.dn.otype == T::PLAIN_FILE && o.dn.blkptr[0].ndvas() > 0 {
            file = Some((o.num, o.dn.blkptr[0].dva(0)));
        }
    });
    let (num, dva) = file.unwrap();
    let bp = os.meta().bp(num / 32).unwrap();
    let errors = p.errors(move |b, data| {
        if b.0 == bp.0 {
            let at = (num % 32) as usize * DNODE_SIZE;
            data[at..at + DNODE_SIZE].fill(0);
        }
    });
    let place = format!("leaked: vdev 0, offset {:#x}", dva.offset());
    assert!(errors.iter().any(|e| e.starts_with(&place)), "{errors:?}");
    assert!(errors.iter().any(|e| e.contains(&format!("object {num} is not there"))), "{errors:?}");
}
