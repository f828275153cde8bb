//! Which blocks each file of a pool needs, read by the independent checker before any damage.

use std::collections::{BTreeMap, BTreeSet};

use base::Result;
use ondisk::blkptr::{BLKPTR_SIZE, Blkptr};
use ondisk::object_type::ObjectType;
use sim::DiskImage;
use spa::GroupKind;
use zdb::dsl::Dsl;
use zdb::objset::{Object, Objset};
use zdb::{OpenOpts, PoolReader};

use super::labeled;
use crate::Check;
use crate::lab::Shape;

/// A block by its first place: vdev and offset.
pub(super) type Id = (u32, u64);

/// A file system.
#[derive(Default)]
pub(super) struct FsMap {
    /// Its object set, and what all its files need.
    pub shared: BTreeSet<Id>,
    /// Blocks of each object: from the meta-dnode down to its data.
    pub objects: BTreeMap<u64, BTreeSet<Id>>,
    /// Its object set.
    pub root: Option<Id>,
    /// Blocks of its meta-dnode.
    pub dnodes: Vec<Id>,
    /// Blocks of its folders.
    pub folders: Vec<Id>,
}

/// Object of the MOS that names the others.
const DIRECTORY: u64 = 1;

/// The blocks of a pool.
#[derive(Default)]
pub(super) struct Map {
    /// Pointers.
    pub table: BTreeMap<Id, Blkptr>,
    /// The newest MOS.
    pub root: Option<Id>,
    /// Blocks of dnodes of the MOS, and what leads to them.
    pub mos: Vec<Id>,
    /// Those of them that have directories and datasets.
    pub dsl: Vec<Id>,
    /// Blocks of the object directory.
    pub directory: Vec<Id>,
    /// Blocks of the configuration object.
    pub config: Vec<Id>,
    /// Blocks with the names of datasets.
    pub names: Vec<Id>,
    /// File systems by name, those that the checker can read: not on dRAID, none that is encrypted.
    pub fs: BTreeMap<String, FsMap>,
}

impl Map {
    /// The map of a pool.
    pub fn of(images: &[DiskImage], shape: &Shape) -> Check<Map> {
        let devices: Vec<_> = images.iter().enumerate().map(|(n, i)| labeled(n, i)).collect();
        let mut map = Map::default();
        if shape.groups.iter().any(|g| matches!(g.0, GroupKind::Draid { .. })) {
            // The checker does not read draids: the root is all that is killed of them.
            let all = devices.iter().flat_map(|d| d.ring.iter()).filter_map(|r| r.ub.clone().ok());
            let ub = ondisk::uberblock::best(all).ok_or("no uberblock")?;
            map.root = map.add(&ub.rootbp);
            return Ok(map);
        }
        let pool = PoolReader::from_devices(devices, &OpenOpts::default()).map_err(|e| format!("checker: {e}"))?;
        map.fill(&pool).map_err(|e| format!("checker: {e}"))?;
        Ok(map)
    }

    fn add(&mut self, bp: &Blkptr) -> Option<Id> {
        if bp.is_hole() || bp.is_embedded() || bp.is_gang() {
            return None;
        }
        let id = (bp.dva(0).vdev().0, bp.dva(0).offset());
        self.table.insert(id, *bp);
        Some(id)
    }

    fn fill(&mut self, pool: &PoolReader) -> Result<()> {
        self.root = self.add(&pool.ub.rootbp);
        let mut mos = BTreeSet::new();
        self.object(&pool.mos.meta(), &mut mos)?;
        self.mos = mos.iter().copied().collect();
        let mut directory = BTreeSet::new();
        self.object(&pool.mos.object(DIRECTORY)?, &mut directory)?;
        self.directory = directory.into_iter().collect();
        if let Some(obj) = pool.entry_object("config")? {
            let mut ids = BTreeSet::new();
            self.object(&obj, &mut ids)?;
            self.config = ids.into_iter().collect();
        }
        let dsl = Dsl::load(pool)?;
        let mut ids = BTreeSet::new();
        for num in dsl.dirs.keys().chain(dsl.datasets.keys()) {
            ids.extend(self.path(&pool.mos, *num)?);
        }
        self.dsl = ids.into_iter().collect();
        for dir in dsl.dirs.values().filter(|d| d.phys.child_dir_zapobj != 0) {
            let mut ids = BTreeSet::new();
            self.object(&pool.mos.object(dir.phys.child_dir_zapobj)?, &mut ids)?;
            self.names.extend(ids);
        }
        let readable = |bp: &Blkptr| !bp.encrypted();
        for ds in dsl.datasets.values().filter(|d| !d.snapshot && !d.is_internal() && readable(&d.phys.bp)) {
            let os = pool.open_dataset(&ds.name, ds.obj, &ds.phys.bp)?;
            let root = self.add(&ds.phys.bp);
            let mut fs = FsMap { root, shared: root.into_iter().collect(), ..FsMap::default() };
            let mut dnodes = BTreeSet::new();
            self.object(&os.meta(), &mut dnodes)?;
            fs.dnodes = dnodes.into_iter().collect();
            let mut all = Vec::new();
            os.for_each_object(&mut |o| all.push(o));
            for o in all {
                let o = o?;
                let mut ids = self.path(&os, o.num)?;
                self.object(&o, &mut ids)?;
                if o.dn.otype == ObjectType::DIRECTORY {
                    let mut own = BTreeSet::new();
                    self.object(&o, &mut own)?;
                    fs.folders.extend(own);
                }
                if !matches!(o.dn.otype, ObjectType::PLAIN_FILE | ObjectType::DIRECTORY) {
                    fs.shared.extend(ids.iter().copied());
                }
                fs.objects.insert(o.num, ids);
            }
            self.fs.insert(ds.name.clone(), fs);
        }
        Ok(())
    }

    /// The blocks that lead from the object set to a dnode.
    fn path(&mut self, os: &Objset, num: u64) -> Result<BTreeSet<Id>> {
        let meta = os.meta();
        let blkid = num * 512 / u64::from(meta.dn.datablksz());
        let mut out = BTreeSet::new();
        let top = meta.dn.nlevels - 1;
        let index = meta.dn.blkid_at_level(blkid, top) as usize;
        let mut bp = meta.dn.blkptr[index];
        out.extend(self.add(&bp));
        for level in (0..top).rev() {
            let block = meta.indirect(&bp, level + 1)?;
            let within = meta.dn.blkid_at_level(blkid, level) & ((1 << meta.dn.epb_shift()) - 1);
            bp = Blkptr::at(&block, within as usize).unwrap_or(Blkptr::hole());
            out.extend(self.add(&bp));
        }
        Ok(out)
    }

    /// The blocks of an object.
    fn object(&mut self, obj: &Object, out: &mut BTreeSet<Id>) -> Result<()> {
        for bp in obj.dn.bps().iter().chain(&obj.dn.spill) {
            self.tree(obj, bp, out)?;
        }
        Ok(())
    }
    fn tree(&mut self, obj: &Object, bp: &Blkptr, out: &mut BTreeSet<Id>) -> Result<()> {
        out.extend(self.add(bp));
        if bp.level() > 0 && !bp.is_hole() {
            let block = obj.indirect(bp, bp.level())?;
            for i in 0..block.len() / BLKPTR_SIZE {
                self.tree(obj, &Blkptr::at(&block, i).unwrap_or(Blkptr::hole()), out)?;
            }
        }
        Ok(())
    }
}

impl FsMap {
    /// Whether what all files need and these objects are there.
    pub fn is_intact(&self, objects: &[u64], killed: &BTreeSet<Id>) -> bool {
        let there = |ids: &BTreeSet<Id>| ids.is_disjoint(killed);
        there(&self.shared) && objects.iter().all(|o| self.objects.get(o).is_none_or(there))
    }
}
