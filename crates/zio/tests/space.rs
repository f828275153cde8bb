//! Blocks on another kind of space than metaslabs.
#![allow(clippy::unwrap_used)]

mod common;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Error, ErrorKind, Nanos, Result, Txg, VdevId};
use common::{Lab, noise, text};
use metaslab::ClassKind;
use ondisk::blkptr::{Blkptr, Dva};
use ondisk::object_type::ObjectType;
use rt::LocalBoxFuture;
use rt::Rt;
use vdev::Prio;
use zio::{Space, WriteReq, Zio, ZioOpts};

const UNIT: u64 = 4096;

/// A list of the ranges taken on one vdev; the first gap is given. Every third segment takes a
/// wait.
struct Ledger {
    rt: Rt,
    size: u64,
    taken: RefCell<BTreeMap<u64, u64>>,
    asked: Cell<u64>,
    waits: Cell<u64>,
}

impl Ledger {
    fn new(lab: &Lab, size: u64) -> Rc<Ledger> {
        let (asked, waits) = (Cell::new(0), Cell::new(0));
        Rc::new(Ledger { rt: lab.rt.clone(), size, taken: RefCell::default(), asked, waits })
    }

    fn take(&self, psize: u64) -> Result<Dva> {
        let asize = psize.next_multiple_of(UNIT);
        let mut taken = self.taken.borrow_mut();
        let mut at = 0;
        for (start, len) in &*taken {
            if start - at >= asize {
                break;
            }
            at = start + len;
        }
        if at + asize > self.size {
            return Err(Error::new(ErrorKind::NoSpace, format!("no gap of {asize} bytes")));
        }
        taken.insert(at, asize);
        Ok(Dva::new(VdevId(0), at, asize, false))
    }

    fn give(&self, dva: Dva) -> Result<()> {
        let mut taken = self.taken.borrow_mut();
        if taken.get(&dva.offset()) != Some(&dva.asize()) {
            return Err(Error::corrupt(format!("{dva} is not taken")));
        }
        taken.remove(&dva.offset());
        Ok(())
    }

    fn used(&self) -> u64 {
        self.taken.borrow().values().sum()
    }
}

impl Space for Ledger {
    fn try_alloc(&self, _: ClassKind, psize: u64, _: Txg, _: &[Dva]) -> Result<Option<Dva>> {
        self.asked.set(self.asked.get() + 1);
        if self.asked.get().is_multiple_of(3) { Ok(None) } else { self.take(psize).map(Some) }
    }
    fn alloc<'a>(&'a self, _: ClassKind, psize: u64, _: Txg, _: &'a [Dva]) -> LocalBoxFuture<'a, Result<Dva>> {
        Box::pin(async move {
            self.rt.sleep(Nanos(1000)).await;
            self.waits.set(self.waits.get() + 1);
            self.take(psize)
        })
    }
    fn unalloc(&self, dva: Dva, _: Txg) -> Result<()> {
        self.give(dva)
    }
    fn free(&self, dva: Dva, _: Txg, _: Txg) -> Result<()> {
        self.give(dva)
    }
    fn is_free(&self, dva: Dva) -> LocalBoxFuture<'_, Result<bool>> {
        let free = self.taken.borrow().range(..dva.offset() + dva.asize()).all(|(at, len)| at + len <= dva.offset());
        Box::pin(async move { Ok(free) })
    }
    fn claim(&self, dva: Dva, _: Txg) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            if !self.is_free(dva).await? {
                return Err(Error::corrupt(format!("{dva} is taken")));
            }
            self.taken.borrow_mut().insert(dva.offset(), dva.asize());
            Ok(())
        })
    }
    fn class_of(&self, _: Dva) -> Result<ClassKind> {
        Ok(ClassKind::Normal)
    }
    fn class_use(&self, class: ClassKind) -> (u64, u64) {
        if class == ClassKind::Normal { (self.used(), self.size) } else { (0, 0) }
    }
    fn class_left(&self, _: ClassKind) -> Option<Txg> {
        None
    }
}

fn file(data: bdev::Bytes) -> WriteReq {
    WriteReq::new(data, ObjectType::PLAIN_FILE, 0, Txg(10))
}

async fn put(zio: &Zio, req: WriteReq) -> Result<Blkptr> {
    let out = zio.write(req).await?;
    out.done.await?;
    Ok(out.bp)
}

fn bench(size: u64) -> (Lab, Rc<Ledger>, Zio) {
    let lab = Lab::new(1, 64 << 20, 12);
    let space = Ledger::new(&lab, size);
    let zio = Zio::new(lab.rt.clone(), lab.tree.clone(), space.clone(), ZioOpts::default());
    (lab, space, zio)
}

#[test]
fn blocks_are_written_read_and_freed() {
    let (lab, space, zio) = bench(16 << 20);
    lab.sim.block_on(async {
        let mut blocks = Vec::new();
        for (n, size) in (0..20).flat_map(|n| [4096usize, 16384, 131_072].map(|size| (n, size))) {
            let data = if n % 2 == 0 { text(n, size) } else { noise(n, size) };
            let bp = put(&zio, WriteReq { copies: 1 + (n % 3) as u8, ..file(data.clone()) }).await.unwrap();
            blocks.push((bp, data));
        }
        let asize = |bp: &Blkptr| bp.dvas().map(|d| d.asize()).sum::<u64>();
        assert_eq!(space.used(), blocks.iter().map(|(bp, _)| asize(bp)).sum::<u64>());
        assert!(space.waits.get() > 10, "some had to wait");
        assert_eq!(lab.alloc.class_use(ClassKind::Normal).0, 0, "nothing went elsewhere");
        for (bp, data) in &blocks {
            assert_eq!(zio.read(bp, Prio::SyncRead).await.unwrap()[..], data[..]);
        }
        // A log block that an import claims.
        let (bp, _) = &blocks[0];
        assert_eq!(zio.claim(bp, Txg(11)).await.unwrap_err().kind(), ErrorKind::Corrupt);
        zio.free(bp, Txg(11)).unwrap();
        assert_eq!(zio.free(bp, Txg(11)).unwrap_err().kind(), ErrorKind::Corrupt);
        zio.claim(bp, Txg(11)).await.unwrap();
        for (bp, _) in &blocks {
            zio.free(bp, Txg(11)).unwrap();
        }
        assert_eq!(space.used(), 0);
    });
}

/// Space in crumbs: gang blocks. Without space nothing stays allocated.
#[test]
fn gang_blocks_take_what_there_is() {
    let (lab, space, zio) = bench(1 << 20);
    lab.sim.block_on(async {
        let mut small = Vec::new();
        let full = loop {
            match put(&zio, file(noise(small.len() as u64, 4096))).await {
                Ok(bp) => small.push(bp),
                Err(e) => break e,
            }
        };
        assert_eq!((full.kind(), small.len() as u64, space.used()), (ErrorKind::NoSpace, 256, 1 << 20));
        for bp in small.iter().step_by(2) {
            zio.free(bp, Txg(10)).unwrap();
        }
        let before = space.used();
        let data = noise(1000, 65536);
        let gang = put(&zio, WriteReq { txg: Txg(11), ..file(data.clone()) }).await.unwrap();
        assert!(gang.is_gang() && space.used() > before + 65536);
        assert_eq!(zio.read(&gang, Prio::SyncRead).await.unwrap()[..], data[..]);
        let held = space.used();
        let more = put(&zio, WriteReq { txg: Txg(11), ..file(noise(1001, 1 << 19)) }).await;
        assert_eq!(more.unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(space.used(), held, "a write that fails gives back what it took");
        zio.free_gang(&gang, Txg(12)).await.unwrap();
        assert_eq!(space.used(), before);
    });
}
