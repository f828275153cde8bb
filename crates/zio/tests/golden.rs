//! Every block of pools that the OpenZFS kernel module wrote, reached from the uberblock: it can be
//! read, and the sums are those that `zdb -bcc` printed.
//!
//! Needs `../shared/pools` beside the project and the programs tar and zstd; says so and passes
//! where they are missing.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use bdev::{BlockDev, Completion, DevInfo, Done, Op};
use common::Lab;
use ondisk::blkptr::Blkptr;
use ondisk::dnode::{self, DnodePhys, Slot};
use ondisk::dsl::DslDatasetPhys;
use ondisk::object_type::ObjectType;
use ondisk::objset::ObjsetPhys;
use rt::Rt;
use sim::SimConfig;
use vdev::Prio;

/// A file that is only read.
struct ImageDev {
    rt: Rt,
    file: Rc<File>,
    info: DevInfo,
}

impl BlockDev for ImageDev {
    fn info(&self) -> &DevInfo {
        &self.info
    }
    fn submit(&self, op: Op, done: Completion) {
        let file = self.file.clone();
        drop(self.rt.spawn("image", async move {
            let Op::Read { mut offset, mut bufs } = op else { panic!("images are only read") };
            for b in &mut bufs {
                file.read_exact_at(b, offset).unwrap();
                offset += b.len() as u64;
            }
            done(Ok(Done { bufs }));
        }));
    }
    fn size(&self) -> u64 {
        self.info.size_bytes
    }
    fn refresh_size(&self) -> base::Result<u64> {
        Ok(self.size())
    }
}

/// Unpacks a pool of one disk; `None`, with a message, if that is impossible here.
fn unpack(name: &str) -> Option<PathBuf> {
    let pools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/pools");
    let tar = pools.join(format!("{name}.tar.zst"));
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join("zio-golden");
    if !tar.exists() {
        eprintln!("NOT RUN: {} is not there", tar.display());
        return None;
    }
    std::fs::create_dir_all(&to).unwrap();
    let ok =
        Command::new("tar").arg("--zstd").arg("-xf").arg(&tar).arg("-C").arg(&to).status().is_ok_and(|s| s.success());
    if !ok {
        eprintln!("NOT RUN: tar --zstd does not work here");
        return None;
    }
    Some(to.join(name))
}

#[derive(Default, Debug, PartialEq, Eq)]
struct Sums {
    blocks: u64,
    gangs: u64,
    logical: u64,
    physical: u64,
    allocated: u64,
}

/// The figures of `zdb-bcc.txt`.
fn printed(dir: &Path) -> Sums {
    let text = std::fs::read_to_string(dir.join("zdb-bcc.txt")).unwrap();
    let figure = |name: &str| -> u64 {
        let line = text.lines().find(|l| l.trim_start().starts_with(name)).unwrap();
        line.split(':').nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap()
    };
    Sums {
        blocks: figure("bp count:"),
        gangs: figure("ganged count:"),
        logical: figure("bp logical:"),
        physical: figure("bp physical:"),
        allocated: figure("bp allocated:"),
    }
}

fn of_dnode(d: &DnodePhys, todo: &mut Vec<Blkptr>) {
    todo.extend_from_slice(d.bps());
    todo.extend(d.spill);
    if d.bonustype == ObjectType::DSL_DATASET {
        todo.push(DslDatasetPhys::parse(d.bonus()).unwrap().bp);
    }
}

/// Which of zdb's figures are compared.
enum Exact {
    All,
    Stored,
    Almost,
}

fn walk(name: &str, exact: Exact) {
    let Some(dir) = unpack(name) else { return };
    let path = dir.join("d0.img");
    let file = Rc::new(File::open(&path).unwrap());
    let size = file.metadata().unwrap().len();
    let asize = vdev::leaf_asize(size);
    let lab = Lab::over(SimConfig::seeded(1), 1, asize, 9, |sim, _| {
        let info = DevInfo {
            path: path.display().to_string(),
            size_bytes: size,
            logical_sector: 512,
            physical_sector: 512,
            rotational: false,
            writable: false,
            supports_discard: false,
            writes_durably: true,
        };
        Rc::new(ImageDev { rt: sim.rt(), file: file.clone(), info })
    });
    let sums = lab.sim.block_on(async {
        let leaf = lab.tree.leaves().remove(0);
        let labels = vdev::labels::read_labels(&*leaf.dev).await.unwrap();
        let ub = ondisk::uberblock::best(labels.uberblocks.into_iter().map(|u| u.ub)).unwrap();
        let mut todo = vec![ub.rootbp];
        let mut seen = BTreeSet::new();
        let mut sums = Sums::default();
        while let Some(bp) = todo.pop() {
            if bp.is_hole() || !bp.is_embedded() && !bp.dedup() && !seen.insert((bp.dva(0), bp.birth())) {
                continue;
            }
            let data = lab.zio.read(&bp, Prio::Scrub).await.unwrap();
            assert_eq!(data.len() as u64, bp.lsize());
            sums.blocks += 1;
            if bp.is_embedded() {
                sums.logical += bp.lsize();
            } else {
                sums.gangs += bp.dvas().filter(|d| d.gang()).count() as u64;
                sums.logical += bp.lsize();
                sums.physical += bp.psize();
                sums.allocated += bp.dvas().map(|d| d.asize()).sum::<u64>();
            }
            if bp.level() > 0 {
                todo.extend(Blkptr::iter_block(&data));
            } else if bp.otype() == ObjectType::OBJSET {
                let os = ObjsetPhys::parse(&data).unwrap();
                of_dnode(&os.meta_dnode, &mut todo);
                [&os.userused, &os.groupused, &os.projectused]
                    .into_iter()
                    .flatten()
                    .for_each(|d| of_dnode(d, &mut todo));
            } else if bp.otype() == ObjectType::DNODE {
                for (i, slot) in dnode::slots(&data).unwrap().into_iter().enumerate() {
                    if matches!(slot, Slot::Dnode(_)) {
                        of_dnode(&DnodePhys::parse_slot(&data, i).unwrap().unwrap(), &mut todo);
                    }
                }
            }
        }
        sums
    });
    let s = lab.zio.stats();
    assert_eq!((s.checksum_errors, s.read_errors, s.unreadable), (0, 0, 0));
    let want = printed(&dir);
    match exact {
        Exact::All => assert_eq!(sums, want, "{name}"),
        // Embedded blocks shared by snapshots are counted several times here.
        Exact::Stored => {
            let stored = |s: &Sums| (s.gangs, s.physical, s.allocated);
            assert_eq!(stored(&sums), stored(&want), "{name}");
        }
        // Blocks on deferred free lists and entries of dedup tables are counted by zdb and not
        // reached here.
        Exact::Almost => {
            let off = want.allocated.abs_diff(sums.allocated);
            assert!(off * 100 < want.allocated && sums.gangs == want.gangs, "{name}: {sums:?}, zdb says {want:?}");
        }
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn single() {
    walk("single", Exact::Almost);
}

#[test]
fn gang() {
    walk("gang", Exact::Stored);
}

#[test]
fn names() {
    walk("names", Exact::All);
}

#[test]
fn legacy28() {
    walk("legacy28", Exact::Almost);
}
