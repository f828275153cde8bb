//! The order of a rescue; see the crate's comment.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use base::{Error, Result, Txg};
use ondisk::indirect::{MAPPING_ENTRY_SIZE, MappingPhys, parse_mapping};
use ondisk::label::MosConfig;
use ondisk::objset::ObjsetType;
use zdb::device::Labeled;

use crate::blocks::Blocks;
use crate::catalog::{Catalog, Dataset, stack_of};
use crate::copy::{Copier, Progress, Task};
use crate::evidence::Evidence;
use crate::finds::{Finds, adopt, lost_blocks, places};
use crate::fs::Zpl;
use crate::keys::Keys;
use crate::layout::Layout;
use crate::out::{Out, pool_name, safe_name};
use crate::report::{Report, Summary};
use crate::roots::{Root, damaged_slots, roots};
use crate::scan::Event;
use crate::scan_state::ScanState;
use crate::state::{Problem, State};
use crate::tree::{Lookup, Object, Objset};

/// Folder of the record within the target.
pub const RECORD: &str = ".weir-rescue";
/// Object of the MOS directory.
const MOS_DIRECTORY: u64 = 1;
/// Most entries of a removed vdev's mapping.
const MAPPING_MAX: u64 = 1 << 26;
/// Most lost blocks of dnodes of a dataset for which others are looked for.
const LOST_MAX: usize = 1 << 20;
/// Sector sizes that are tried where nothing says them: log2.
const ASHIFTS: [u8; 4] = [12, 9, 13, 14];
/// The smallest sector size: log2.
const ASHIFT_MIN: u8 = 9;

/// When devices are read from end to end for lost roots.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ScanWhen {
    /// If something that is needed is lost.
    #[default]
    Auto,
    /// In any case.
    Always,
    /// Never.
    Never,
}

/// What to do.
#[derive(Clone, Debug, Default)]
pub struct Opts {
    /// Name or guid of the pool, where devices are of several.
    pub pool: Option<String>,
    /// The layout in words, where labels are gone; empty otherwise.
    pub layout: Vec<String>,
    /// log2 of the sector size of a layout in words; tried if not given.
    pub ashift: Option<u8>,
    /// The target folder.
    pub dir: PathBuf,
    /// Snapshots are copied too.
    pub snapshots: bool,
    /// Only these datasets and what is below them; all if empty.
    pub datasets: Vec<String>,
    /// When to search the devices.
    pub scan: ScanWhen,
    /// No state newer than this.
    pub txg: Option<u64>,
    /// Files with keys of encrypted datasets.
    pub key_files: Vec<PathBuf>,
    /// Everything is read, nothing is copied: only the report is written.
    pub dry_run: bool,
}

/// A pool, as far as it can be opened.
struct Opened {
    layout: Layout,
    io: Rc<Blocks>,
    roots: Vec<Root>,
    /// Slots of uberblocks that may have held newer states.
    damaged_slots: u64,
    /// Every MOS that can be opened, the newest first.
    stack: Rc<[Objset]>,
    finds: Finds,
    /// log2 of a sector size that is only tried.
    tried: Option<u8>,
}

/// Opens devices for reading: `open` reads the labels of one.
pub type Opener<'a> = &'a mut dyn FnMut(&Path) -> Result<Labeled>;

/// Copies what is left of a pool on these devices (or on those that the layout in words names).
/// Errors: no way to the pool, or a target that cannot be written; what is lost of the pool is no
/// error but in the summary.
pub fn rescue(
    devices: Vec<Labeled>,
    open: Opener<'_>,
    opts: &Opts,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Summary> {
    let keys = Keys::read(&opts.key_files)?;
    let mut candidates = Opened::candidates(devices, open, opts)?;
    let mut pool = candidates.remove(0);
    let record = opts.dir.join(RECORD);
    let out = if opts.dry_run { None } else { Some(Out::open(&opts.dir)?) };
    let mut state = State::open(&record, pool.layout.guid, opts.dry_run)?;
    let mut catalog = Catalog::read(&pool.stack, &pool.finds, &pool.layout.name);
    let wanted = match opts.scan {
        ScanWhen::Always => true,
        ScanWhen::Never => false,
        ScanWhen::Auto => pool.lacks_something(&catalog, opts, &keys),
    };
    if wanted {
        pool.search(&record, progress)?;
        let mut best = pool.evidence();
        while !best.is_sure() && !candidates.is_empty() {
            let mut other = candidates.remove(0);
            other.search(&record, progress)?;
            let evidence = other.evidence();
            if evidence.sum() > best.sum() {
                (pool, best) = (other, evidence);
            }
        }
        catalog = Catalog::read(&pool.stack, &pool.finds, &pool.layout.name);
        pool.share_out(&catalog, &keys);
    }
    catalog.newest_is_lost = pool.is_newest_lost();
    if pool.stack.is_empty() && catalog.datasets.is_empty() && pool.finds.ownerless(&[]).is_empty() {
        let hint = if wanted { "" } else { "; --scan always looks for lost ones" };
        return Err(Error::not_found(format!(
            "pool '{}': none of {} uberblocks leads to its data{hint}",
            pool.layout.name,
            pool.roots.len()
        )));
    }
    let live = if wanted { pool.live(&catalog) } else { BTreeSet::new() };
    let mut copier =
        Copier { out: out.as_ref(), state: &mut state, progress, at: Progress::default(), skipped: Vec::new() };
    let mut notes = pool.layout.notes.clone();
    match pool.damaged_slots {
        0 => {}
        n => notes.push(format!("{n} slots of its uberblocks are damaged: they may have held newer states")),
    }
    pool.flaws(&catalog, opts, &mut copier)?;
    let mut names = Vec::new();
    let chosen: Vec<Dataset> = catalog.datasets.iter().filter(|d| is_chosen(d, opts)).cloned().collect();
    for ds in &chosen {
        names.push(ds.name.clone());
        if copier.state.is_dataset_done(ds.guid) {
            continue;
        }
        if pool.dataset(ds, &catalog, opts, &keys, &live, &mut copier)? {
            copier.state.dataset_done(ds.guid)?;
        }
    }
    if (catalog.is_partial || catalog.newest_is_partial || pool.finds.beyond) && opts.datasets.is_empty() {
        pool.ownerless(&catalog, &keys, &mut copier, &mut names)?;
    }
    let skipped = copier.skipped;
    if pool.io.unverified.get() > 0 {
        notes.push(format!("{} blocks have no checksum and were taken as they are", pool.io.unverified.get()));
    }
    let report = Report {
        pool: &pool.layout.name,
        guid: pool.layout.guid,
        newest_uberblock: pool.roots.first().map(Root::txg),
        newest_state: pool.stack.first().map(|m| m.txg),
        states: pool.stack.len() as u64,
        searched: wanted,
        notes: &notes,
        datasets: &names,
        skipped: &skipped,
    };
    report.write(&record, &state)
}

/// Whether the user wants a dataset.
fn is_chosen(ds: &Dataset, opts: &Opts) -> bool {
    let named = opts
        .datasets
        .iter()
        .any(|n| ds.name == *n || ds.name.strip_prefix(n.as_str()).is_some_and(|rest| rest.starts_with(['/', '@'])));
    (opts.datasets.is_empty() || named) && (!ds.snapshot || opts.snapshots || opts.datasets.contains(&ds.name))
}

impl Opened {
    /// The pool; several where a sector size has to be tried, that with which most can be read
    /// first.
    fn candidates(devices: Vec<Labeled>, open: Opener<'_>, opts: &Opts) -> Result<Vec<Opened>> {
        if opts.layout.is_empty() {
            return Ok(vec![Opened::of(Layout::of_labels(devices, opts.pool.as_deref())?, opts)]);
        }
        let mut all = Vec::new();
        for ashift in opts.ashift.map_or(ASHIFTS.to_vec(), |a| vec![a]) {
            let mut layout = Layout::named(&opts.layout, ashift, open)?;
            if !layout.is_striped() {
                // Any will do for reading, and the smallest one finds everything.
                layout = Layout::named(&opts.layout, opts.ashift.unwrap_or(ASHIFT_MIN), open)?;
                return Ok(vec![Opened::of(layout, opts)]);
            }
            let mut opened = Opened::of(layout, opts);
            opened.tried = opts.ashift.is_none().then_some(ashift);
            all.push(opened);
        }
        all.sort_by_cached_key(|o| std::cmp::Reverse(o.evidence().sum()));
        Ok(all)
    }

    /// What can be read that shows the right sector size.
    fn evidence(&self) -> Evidence {
        let catalog = Catalog::read(&self.stack, &self.finds, &self.layout.name);
        Evidence::of(&self.io, &self.stack, &self.finds, &catalog, self.layout.is_all_striped())
    }

    /// Opens what the uberblocks lead to.
    fn of(mut layout: Layout, opts: &Opts) -> Opened {
        let mut all = roots(&layout.devices);
        all.retain(|r| opts.txg.is_none_or(|limit| r.txg().0 <= limit));
        let io = Rc::new(Blocks::new(layout.build()));
        let damaged_slots = damaged_slots(&layout.devices);
        let (stack, finds) = (Vec::new().into(), Finds::default());
        let mut it = Opened { layout, io, roots: all, damaged_slots, stack, finds, tried: None };
        it.open_stack();
        // The configuration object may know more of the devices, on which then more can be read.
        for _ in 0..3 {
            if !it.learn() {
                break;
            }
            it.io = Rc::new(Blocks::new(it.layout.build()));
            it.open_stack();
        }
        it
    }

    fn open_stack(&mut self) {
        let opened = self.roots.iter().filter_map(|r| Objset::open(&self.io, r.bp()).ok());
        self.stack = stack_of(opened.collect());
        self.find_salt();
        self.load_mappings();
        if self.io.salt.get().is_some() || !self.layout.mappings().is_empty() {
            // More of them may be readable now.
            let opened = self.roots.iter().filter_map(|r| Objset::open(&self.io, r.bp()).ok());
            self.stack = stack_of(opened.collect());
        }
    }

    fn find_salt(&self) {
        for mos in self.stack.iter() {
            if let Lookup::There(dir) = mos.find(MOS_DIRECTORY)
                && let Some(salt) = dir.entries().bytes("org.illumos:checksum_salt")
            {
                self.io.salt.set(Some(salt));
                return;
            }
        }
    }

    /// Reads the configuration object of the newest MOS that has one; true if it says more than is
    /// known.
    fn learn(&mut self) -> bool {
        for mos in self.stack.clone().iter() {
            let Lookup::There(dir) = mos.find(MOS_DIRECTORY) else { continue };
            let Some(Lookup::There(obj)) = dir.entries().u64("config").map(|n| mos.find(n)) else { continue };
            if let Ok(list) = obj.packed_nvlist()
                && let Ok(config) = MosConfig::from_nvlist(&list)
            {
                return self.layout.learn(&config);
            }
        }
        false
    }

    /// Reads the mappings of removed vdevs, which may need each other.
    fn load_mappings(&self) {
        let all = self.layout.mappings();
        for _ in 0..=all.len() {
            let mut progress = false;
            for (id, obj) in &all {
                let top = u32::try_from(*id).ok().and_then(|id| self.io.vdevs.top(id));
                let Some(cell) = top.and_then(|t| t.mapping()).filter(|m| m.get().is_none()) else { continue };
                let found = self.stack.iter().find_map(|mos| {
                    let Lookup::There(o) = mos.find(*obj) else { return None };
                    let phys = MappingPhys::parse(o.dn.bonus()).ok()?;
                    if phys.num_entries > MAPPING_MAX || phys.num_entries * 24 > o.dn.data_len() {
                        return None;
                    }
                    parse_mapping(&o.read(phys.num_entries as usize * MAPPING_ENTRY_SIZE).ok()?).ok()
                });
                if let Some(mapping) = found {
                    progress |= cell.set(mapping).is_ok();
                }
            }
            if !progress {
                return;
            }
        }
    }

    /// Whether the newest uberblock leads to its MOS.
    fn newest_opens(&self) -> bool {
        self.roots.first().is_some_and(|r| Objset::open(&self.io, r.bp()).is_ok())
    }

    /// Whether the newest state of the pool is lost or may be.
    fn is_newest_lost(&self) -> bool {
        !self.newest_opens() || self.damaged_slots > 0
    }

    /// Tells the finds which datasets are clones of each other.
    fn share_out(&mut self, catalog: &Catalog, keys: &Keys) {
        let heads = catalog.datasets.iter().filter(|d| !d.snapshot);
        let known: Vec<(u64, Vec<Objset>)> = heads
            .map(|ds| {
                let key = if ds.bp.encrypted() { keys.of_dir(&self.stack, ds.dir).ok() } else { None };
                (ds.guid, ds.known_views(&self.stack, &self.finds, key.as_ref()).0)
            })
            .collect();
        self.finds.share_out(&known);
    }

    /// Whether anything that is needed is lost, so that a search may help.
    fn lacks_something(&self, catalog: &Catalog, opts: &Opts, keys: &Keys) -> bool {
        if self.is_newest_lost() || catalog.is_partial || catalog.newest_is_partial {
            return true;
        }
        catalog.datasets.iter().filter(|d| is_chosen(d, opts)).any(|ds| {
            let key = if ds.bp.encrypted() { keys.of_dir(&self.stack, ds.dir).ok() } else { None };
            if ds.bp.encrypted() && key.is_none() {
                return false;
            }
            let views = ds.views(&self.stack, &self.finds, key.as_ref());
            views.failed.is_some() || views.all.first().is_none_or(|v| !lost_blocks(v, 1).is_empty())
        })
    }

    /// Records what is lost of the pool as a whole.
    fn flaws(&self, catalog: &Catalog, opts: &Opts, copier: &mut Copier<'_>) -> Result<()> {
        for f in catalog.flaws.iter().filter(|f| opts.snapshots || !f.of_snapshots) {
            copier.report_dataset(&f.dataset, f.problem, f.note.clone())?;
        }
        Ok(())
    }

    /// Searches the devices, and opens what is found.
    fn search(&mut self, record: &Path, progress: &mut dyn FnMut(&Progress)) -> Result<()> {
        let lzjb = self.roots.iter().all(|r| r.bp().compress() != Some(codec::CompressAlgo::Lz4));
        let mut kept = ScanState::open(record, self.layout.guid, self.tried)?;
        let mut at = Progress { what: "searching the devices".into(), ..Progress::default() };
        progress(&at);
        if !kept.is_complete() {
            let from = kept.position();
            crate::scan::scan(&self.io.vdevs, from, lzjb, &mut |e| {
                if let Event::At { done, total, .. } = e {
                    at.scanned = (done, total);
                    progress(&at);
                }
                kept.note(&e)
            })?;
            kept.complete()?;
        }
        // Where uberblocks are lost there may be states that are younger than all that are left.
        let newest = self.roots.first().filter(|_| self.damaged_slots == 0).map_or(Txg(u64::MAX), Root::txg);
        self.finds = Finds::sort(&self.io, kept.hits(), newest);
        self.finds.beyond = self.is_newest_lost();
        let all = self.stack.iter().chain(&self.finds.moses).cloned().collect();
        self.stack = stack_of(all);
        self.find_salt();
        if self.layout.guid.0 == 0 {
            // Only the name matters now: devices stand where the user said.
            self.learn();
        }
        self.load_mappings();
        Ok(())
    }

    /// Places of the blocks of dnodes that datasets have.
    fn live(&self, catalog: &Catalog) -> BTreeSet<(u32, u64)> {
        let mut out = BTreeSet::new();
        for ds in &catalog.datasets {
            if let Ok(os) = Objset::open(&self.io, &ds.bp) {
                places(&os, &mut out);
            }
        }
        out
    }

    /// Copies a dataset; false if it has to be left out.
    fn dataset(
        &self,
        ds: &Dataset,
        catalog: &Catalog,
        opts: &Opts,
        keys: &Keys,
        live: &BTreeSet<(u32, u64)>,
        copier: &mut Copier<'_>,
    ) -> Result<bool> {
        let key = if ds.bp.encrypted() {
            match keys.of_dir(&self.stack, ds.dir) {
                Ok(key) => Some(key),
                Err(e) => {
                    copier.skip_dataset(&ds.name, e.to_string());
                    return Ok(false);
                }
            }
        } else {
            None
        };
        let views = ds.views(&self.stack, &self.finds, key.as_ref());
        let Some(newest) = views.all.first() else {
            let why = views.failed.map_or_else(|| "no state of it is left".to_owned(), |e| e.to_string());
            return copier.report_dataset(&ds.name, Problem::Lost, why).map(|()| true);
        };
        let txg = newest.txg;
        if views.is_first_found {
            let note = format!("an object set as of txg {txg} that was found: that it is of this dataset is likely");
            copier.report_dataset(&ds.name, Problem::Found, note)?;
        } else if let Some(e) = views.failed {
            copier.report_dataset(&ds.name, Problem::Older, format!("as of txg {txg}: newer states are lost: {e}"))?;
        } else if ds.obj == 0 {
            let note = "its record was found: its name is lost, and that it is of this pool is not proved";
            copier.report_dataset(&ds.name, Problem::Found, note)?;
        } else if !ds.snapshot && (catalog.newest_is_lost || !ds.is_newest) {
            let note =
                format!("as of txg {txg}: the newest state of the pool is lost, and what was newer here with it");
            copier.report_dataset(&ds.name, Problem::Older, note)?;
        }
        let mut task = task(ds, catalog, opts);
        self.copy(&mut task, views.all, live, copier).map(|()| true)
    }

    /// Copies a dataset from its states.
    fn copy(
        &self,
        task: &mut Task<'_>,
        views: Vec<Objset>,
        live: &BTreeSet<(u32, u64)>,
        copier: &mut Copier<'_>,
    ) -> Result<()> {
        match views[0].phys.os_type {
            ObjsetType::Zfs => {
                let lost = lost_blocks(&views[0], LOST_MAX);
                task.is_partial = !lost.is_empty();
                let mut zpl = match Zpl::open(views) {
                    Ok(zpl) => zpl,
                    Err(e) => return copier.report_dataset(task.name, Problem::Lost, e.to_string()),
                };
                adopt(&mut zpl, &self.finds, &lost, live);
                copier.file_system(task, &zpl)
            }
            ObjsetType::Zvol => {
                if let Some(last) = task.base.last_mut() {
                    last.extend_from_slice(b".img");
                }
                let data = |v: &Objset, num| if let Lookup::There(o) = v.find(num) { Some(*o) } else { None };
                let states: Vec<Object> = views.iter().filter_map(|v| data(v, 1)).collect();
                let size = views.iter().find_map(|v| data(v, 2)?.entries().u64("size"));
                let size = size.or_else(|| states.first().map(|o| o.dn.data_len())).unwrap_or(0);
                copier.volume(task, &states, size)
            }
            _ => Ok(()),
        }
    }

    /// Copies file systems that were found and that no dataset is known for.
    fn ownerless(
        &self,
        catalog: &Catalog,
        keys: &Keys,
        copier: &mut Copier<'_>,
        names: &mut Vec<String>,
    ) -> Result<()> {
        let mut known = Vec::new();
        for ds in &catalog.datasets {
            let key = if ds.bp.encrypted() { keys.of_dir(&self.stack, ds.dir).ok() } else { None };
            known.extend(ds.views(&self.stack, &self.finds, key.as_ref()).all);
        }
        for os in self.finds.ownerless(&known) {
            // Several can have the same master node, but no two the same blocks of dnodes.
            let guid = os.phys.meta_dnode.blkptr.iter().flat_map(|bp| bp.0).fold(0u64, |n, w| n.rotate_left(7) ^ w);
            let name = format!("found-txg-{}-{guid:x}", os.txg);
            names.push(name.clone());
            if copier.state.is_dataset_done(guid) {
                continue;
            }
            let note = "an object set that was found; which dataset it is of is lost";
            copier.report_dataset(&name, Problem::Found, note)?;
            let mut task = Task {
                name: &name,
                guid,
                base: vec![name.clone().into_bytes()],
                reserved: BTreeSet::new(),
                is_partial: false,
            };
            self.copy(&mut task, vec![os], &BTreeSet::new(), copier)?;
            copier.state.dataset_done(guid)?;
        }
        Ok(())
    }
}

/// Where a dataset goes, and what in it belongs to others.
fn task<'a>(ds: &'a Dataset, catalog: &Catalog, opts: &Opts) -> Task<'a> {
    let (fs, snap) = ds.name.split_once('@').map_or((ds.name.as_str(), None), |(f, s)| (f, Some(s)));
    let mut base: Vec<Vec<u8>> = fs.split('/').map(|p| safe_name(p.as_bytes())).collect();
    if let Some(pool) = base.first_mut() {
        *pool = pool_name(pool, RECORD);
    }
    if let Some(snap) = snap {
        base.push(safe_name(format!("@{snap}").as_bytes()));
    }
    let mut reserved = BTreeSet::new();
    if snap.is_none() {
        for other in catalog.datasets.iter().filter(|d| is_chosen(d, opts)) {
            let Some(rest) = other.name.strip_prefix(fs) else { continue };
            if let Some(snap) = rest.strip_prefix('@') {
                reserved.insert(safe_name(format!("@{snap}").as_bytes()));
            } else if let Some(child) = rest.strip_prefix('/').map(|r| r.split(['/', '@']).next().unwrap_or("")) {
                let name = safe_name(child.as_bytes());
                reserved.insert([&name[..], b".img"].concat());
                reserved.insert(name);
            }
        }
    }
    Task { name: &ds.name, guid: ds.guid, base, reserved, is_partial: false }
}
