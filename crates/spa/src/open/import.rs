//! Finding and importing pools (format page 01 section 4).
//!
//! 1. The labels of every device are read; devices with the same pool guid form a candidate. Labels
//!    ahead of the pool's newest uberblock do not count where a device has others.
//! 2. The best intact uberblock of all devices is the state to import; the newest label that is not
//!    newer than it has the vdev tree for step 3.
//! 3. The MOS is opened through that tree; the configuration in the MOS is the trusted one. The
//!    guids must add up to the uberblock's sum.
//! 4. The features are checked: all supported for writing, for reading only, or refused by name
//!    ([`crate::open::unsupported`]).
//!
//! If labels show a newer committed txg than the newest intact uberblock, the pool is imported in
//! the older state, with a notice.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use base::{Error, ErrorKind, Guid, ObjectId, Result, ResultExt, Txg};
use bdev::BlockDev;
use dmu::{Dnode, Objset, ObjsetProps, zap};
use dsl::DslPool;
use dsl::features::Features;
use ondisk::feature::FeatureId;
use ondisk::label::{LabelConfig, MosConfig, PoolState, VERSION_FEATURES};
use ondisk::uberblock::Uberblock;
use ondisk::vdev_config::{VdevConfig, VdevKind as ConfigKind};
use rt::Rt;
use vdev::labels::{LeafLabels, read_labels};
use vdev::{DirtyGauge, VdevTree};
use zio::ZioOpts;

use crate::commit::config::read_packed;
use crate::commit::logs::Logs;
use crate::commit::removed::load_mappings;
use crate::devices::aux::AuxDevices;
use crate::devices::dtl::{load_dtls, note_stale};
use crate::open::assemble::{Assembly, check_complete, update_presence};
use crate::open::claim::{self, LogRule};
use crate::open::create::check_pool_name;
use crate::open::multihost::Activity;
use crate::open::partition::partitions;
use crate::open::rewind::{self, Rewind, States};
use crate::open::unsupported::{Unsupported, check_labels};
use crate::pool::{EngineOpts, Opening, Pool};
use crate::stack::{Layers, Mos, mos_hooks};

/// A device with pool labels.
pub struct FoundDevice {
    /// The device, which may be a partition of the scanned one.
    pub dev: Rc<dyn BlockDev>,
    /// The path of the scanned device.
    pub opened: String,
    /// Its labels and uberblocks.
    pub labels: LeafLabels,
    /// Its newest label that is not ahead of the pool's uberblocks.
    pub config: LabelConfig,
}

impl FoundDevice {
    /// Whether some label of the pool says that this is the device of that guid. The last side of a
    /// mirror takes over the guid of the mirror, and a second power cut, between labels and
    /// uberblock again, may leave no label of the state itself: only older and newer ones.
    pub(crate) fn was_or_will_be(&self, guid: Guid) -> bool {
        let labels = self.labels.configs.iter().filter_map(|(_, c)| LabelConfig::from_nvlist(c.as_ref().ok()?).ok());
        labels.filter(|c| c.pool_guid == self.config.pool_guid).any(|c| c.guid == guid)
    }
}

/// A pool found on some devices.
pub struct PoolCandidate {
    /// Its name.
    pub name: String,
    /// Its guid.
    pub guid: Guid,
    /// State in the newest label.
    pub state: PoolState,
    /// Host id of the last host.
    pub hostid: Option<u64>,
    /// Name of the last host.
    pub hostname: Option<String>,
    /// The newest label.
    pub config: LabelConfig,
    /// Devices found.
    pub devices: Vec<FoundDevice>,
}

/// Most top-level vdevs accepted from labels.
const TOPS_MAX: u64 = 4096;

/// The number of top-level vdevs by the newest of these labels. Labels from before 2010 lack it;
/// then the highest id of all labels counts.
fn count_tops<'a>(newest: &LabelConfig, labels: impl Iterator<Item = &'a LabelConfig>) -> u64 {
    let implied = || labels.map(LabelConfig::top_level_count).max().unwrap_or(0).max(newest.top_level_count());
    newest.vdev_children.unwrap_or_else(implied)
}

impl PoolCandidate {
    /// Number of top-level vdevs of the pool with holes, according to the labels.
    pub fn top_level_count(&self) -> u64 {
        count_tops(&self.config, self.devices.iter().map(|d| &d.config))
    }

    /// Ids of top-level vdevs without any device found.
    pub fn missing_tops(&self) -> Vec<u64> {
        let holes = &self.config.hole_array;
        (0..self.top_level_count().min(TOPS_MAX))
            .filter(|id| !holes.contains(id) && !self.devices.iter().any(|d| d.config.vdev_tree.id == *id))
            .collect()
    }
}

/// Options of an import.
#[derive(Clone, Default, Debug)]
pub struct ImportOpts {
    /// New name (`zpool import POOL NEWNAME`).
    pub new_name: Option<String>,
    /// `-t`: the new name is for this import only, the devices keep the old one.
    pub temporary_name: bool,
    /// `-m`: also without a log device; its records are lost.
    pub missing_log: bool,
    /// `-o readonly=on`.
    pub readonly: bool,
    /// `-f`: also a pool that another host may be using.
    pub force: bool,
    /// `-D`: also a destroyed pool.
    pub destroyed: bool,
    /// `-F`, `-T`: another state than the newest.
    pub states: States,
    /// `--rewind-to-checkpoint`: the state of the pool's checkpoint; later changes are lost.
    pub to_checkpoint: bool,
}

/// Whether a [`scan`] may find a pool on a device: it has labels of a pool, or partitions.
pub async fn is_candidate(dev: &Rc<dyn BlockDev>) -> bool {
    read_labels(&**dev).await.is_ok_and(|l| l.any()) || !partitions(dev).await.is_empty()
}

/// Whether a label is that of a device in a pool; those of spares and caches are not.
fn is_usable(label: &LabelConfig) -> bool {
    label.txg.0 != 0 && matches!(label.state, PoolState::Active | PoolState::Exported | PoolState::Destroyed)
}

/// Groups devices into candidates, in order of name and guid. Devices without labels are skipped.
pub async fn scan(devices: Vec<Rc<dyn BlockDev>>) -> Vec<PoolCandidate> {
    let mut pools: BTreeMap<Guid, Vec<FoundDevice>> = BTreeMap::new();
    let mut devices: VecDeque<(Rc<dyn BlockDev>, String)> =
        devices.into_iter().map(|d| (d.clone(), d.info().path.clone())).collect();
    while let Some((dev, opened)) = devices.pop_front() {
        let Ok(labels) = read_labels(&*dev).await else { continue };
        let Some(config) = labels.best_config() else {
            // Not a pool's device as a whole; a partition of it may be one. Partitions have no
            // tables of their own.
            if !labels.any() {
                devices.extend(partitions(&dev).await.into_iter().map(|d| (d, opened.clone())));
            }
            continue;
        };
        if !is_usable(&config) {
            continue;
        }
        pools.entry(config.pool_guid).or_default().push(FoundDevice { dev, opened, labels, config });
    }
    if !planted!(UnbornTaken) {
        pass_over_unborn(&mut pools);
    }
    let mut out = Vec::new();
    for (guid, mut devices) in pools {
        let committed = newest_txg(&devices);
        for device in &mut devices {
            if let Some(config) = device.labels.config_at(guid, committed).filter(is_usable) {
                device.config = config;
            }
        }
        let Some(newest) = devices.iter().map(|d| &d.config).max_by_key(|c| c.txg).cloned() else { continue };
        out.push(PoolCandidate {
            name: newest.name.clone(),
            guid,
            state: newest.state,
            hostid: newest.hostid,
            hostname: newest.hostname.clone(),
            config: newest,
            devices,
        });
    }
    out.sort_by(|a, b| (&a.name, a.guid).cmp(&(&b.name, b.guid)));
    out
}

/// The newest txg that some of these devices have an uberblock of.
fn newest_txg(devices: &[FoundDevice]) -> Txg {
    newest_uberblock(devices).map_or(Txg::default(), |ub| ub.txg)
}

fn newest_uberblock(devices: &[FoundDevice]) -> Option<&Uberblock> {
    devices.iter().flat_map(|d| &d.labels.uberblocks).map(|u| &u.ub).max_by_key(|ub| ub.txg)
}

/// The sum of guids that an uberblock of the pool `guid` with these devices has, if all of its
/// top-level vdevs are among them.
fn guid_sum_by_labels(guid: Guid, devices: &[FoundDevice]) -> u64 {
    let tops: BTreeMap<Guid, u64> =
        devices.iter().map(|d| (d.config.vdev_tree.guid, d.config.vdev_tree.guid_sum())).collect();
    tops.values().fold(guid.0, |sum, top| sum.wrapping_add(*top))
}

/// Returns devices to the pool that they are of. A power cut between the labels and the uberblock
/// of a txg that changes the guid of a pool leaves L0 and L2 with a guid that never came to be:
/// with a txg that no device of that guid has an uberblock of. A second power cut, in the first txg
/// of the next import, leaves the same if the guid has come to be: but then the newest uberblock is
/// of that pool, as its sum of guids tells.
fn pass_over_unborn(pools: &mut BTreeMap<Guid, Vec<FoundDevice>>) {
    let sums_of = |devices: &Vec<FoundDevice>| -> BTreeSet<u64> {
        devices.iter().flat_map(|d| &d.labels.uberblocks).map(|u| u.ub.guid_sum).collect()
    };
    let sums: BTreeMap<Guid, BTreeSet<u64>> = pools.iter().map(|(guid, devices)| (*guid, sums_of(devices))).collect();
    let mut moved: Vec<(Guid, FoundDevice)> = Vec::new();
    for (guid, devices) in pools.iter_mut() {
        let committed = newest_txg(devices);
        let (sum, own) = (newest_uberblock(devices).map(|ub| ub.guid_sum), guid_sum_by_labels(*guid, devices));
        let is_born = |before: &LabelConfig| match (sum, sums.get(&before.pool_guid)) {
            (Some(sum), Some(others)) => !others.contains(&sum),
            (Some(sum), None) => sum == own,
            (None, _) => false,
        };
        for device in std::mem::take(devices) {
            let before = device.labels.config_before(*guid, committed).filter(is_usable);
            match before.filter(|before| !is_born(before)) {
                Some(config) => moved.push((config.pool_guid, FoundDevice { config, ..device })),
                None => devices.push(device),
            }
        }
    }
    for (guid, device) in moved {
        pools.entry(guid).or_default().push(device);
    }
    pools.retain(|_, devices| !devices.is_empty());
}

impl Pool {
    /// Imports a candidate.
    pub async fn import(rt: Rt, candidate: PoolCandidate, import: ImportOpts, opts: EngineOpts) -> Result<Rc<Pool>> {
        if let Some(name) = &import.new_name {
            check_pool_name(name)?;
        }
        let name = candidate.name.clone();
        Pool::import_inner(rt, candidate, import, opts).await.map_err(|e| e.at(format!("cannot import '{name}'")))
    }

    /// The rewind that an import of one of these states would do, without doing it: None if it
    /// would open the newest state. An error if none of them can be opened.
    pub async fn rewind_of(
        rt: Rt,
        candidate: &PoolCandidate,
        states: States,
        opts: EngineOpts,
    ) -> Result<Option<Rewind>> {
        let import = ImportOpts { readonly: true, states, ..ImportOpts::default() };
        let opts = opts_for(candidate, &opts);
        let choices = rewind::choices(candidate, states);
        let newest = rewind::choices(candidate, States::Newest)
            .into_iter()
            .next()
            .ok_or_else(|| Error::corrupt("no device has an intact uberblock"))?;
        let mut failed = Error::corrupt("no state was tried");
        for ub in choices {
            match open_state(&rt, candidate, ub, &import, &DirtyGauge::default(), &opts).await {
                Ok((best, ..)) => return Ok((best.txg < newest.txg).then(|| Rewind::new(&newest, &best))),
                Err(e) if e.kind() == ErrorKind::Unsupported => return Err(e),
                Err(e) => failed = e,
            }
        }
        Err(failed)
    }

    /// The ids of the removed vdevs of the newest state, of which no label tells; reads only. An
    /// error if that state cannot be opened.
    pub async fn removed_tops(rt: &Rt, candidate: &PoolCandidate, opts: &EngineOpts) -> Result<Vec<u64>> {
        let import = ImportOpts { readonly: true, ..ImportOpts::default() };
        let newest = rewind::choices(candidate, States::Newest).into_iter().next();
        let newest = newest.ok_or_else(|| Error::corrupt("no device has an intact uberblock"))?;
        let opts = opts_for(candidate, opts);
        let (_, config, _) = open_state(rt, candidate, newest, &import, &DirtyGauge::default(), &opts).await?;
        let removed = config.vdev_tree.children.iter().filter(|c| c.kind == ConfigKind::Indirect);
        Ok(removed.map(|c| c.id).collect())
    }

    async fn import_inner(rt: Rt, candidate: PoolCandidate, import: ImportOpts, opts: EngineOpts) -> Result<Rc<Pool>> {
        check_owner(&rt, &candidate, &import)?;
        let opts = opts_for(&candidate, &opts);
        let gauge = DirtyGauge::default();
        let choices = rewind::choices(&candidate, import.states);
        let newest = rewind::choices(&candidate, States::Newest).into_iter().next();
        let newest = newest.ok_or_else(|| Error::corrupt("no device has an intact uberblock"))?;
        let tunables = opts.multihost;
        let activity = Activity { rt: &rt, candidate: &candidate, ub: &newest, tunables };
        let is_shared = activity.is_due()?;
        if is_shared {
            activity.watch().await?;
        }
        if is_shared && !import.readonly && import.to_checkpoint {
            // Going back to a checkpoint writes at once.
            let tops = tops_from_labels(&candidate, newest.txg);
            let reflow = newest.raidz_reflow;
            let assembly = Assembly { rt: &rt, devices: &candidate.devices, gauge: &gauge, opts: &opts, reflow };
            activity.claim(&assembly.tree(candidate.guid, &tops)?).await?;
        }
        let mut opened = Err(match import.states {
            States::UpTo(txg) => Error::not_found(format!("no device has a state of txg {txg} or before")),
            _ => Error::corrupt("no state was tried"),
        });
        for ub in choices {
            opened = open_state(&rt, &candidate, ub, &import, &gauge, &opts).await;
            // An unsupported state is not damaged: no rewind behind it.
            if opened.as_ref().err().is_none_or(|e| e.kind() == ErrorKind::Unsupported) {
                break;
            }
        }
        let (best, config, tree) = opened?;
        if is_shared && !import.readonly && !import.to_checkpoint {
            activity.claim(&tree).await?;
        }
        let first_open = rewind::first_open(&candidate, &best);
        let rewound = (best.txg < newest.txg).then(|| Rewind::new(&newest, &best));
        let layers = Layers::new(&rt, tree, first_open, gauge, &opts);
        let pool = Pool::open_mos(&candidate, layers, best, config, &import).await?;
        // From the first txg on: a device that was damaged meanwhile shows in it.
        pool.tune(&opts);
        if let Some(r) = rewound {
            let why = format!(
                "the pool went back to the state of txg {}: about {} seconds of changes are lost",
                r.txg, r.lost_secs
            );
            pool.notices.replace(why);
        }
        pool.check_writable().await?;
        let stack = pool.stack.clone();
        if !stack.readonly {
            let host = stack.rt.host_identity();
            pool.config.update(|c| {
                c.state = PoolState::Active;
                c.hostid = (host.hostid != 0).then_some(host.hostid);
                c.hostname = Some(host.hostname);
            });
            pool.devices().settle_split();
            update_presence(&stack.tree);
            pool.config.mark_dirty();
            stack.tree.committed.set(pool.uberblock().txg);
            let claims = claim::claim_logs(&pool, first_open, LogRule::Claim).await?;
            pool.note_opening("import");
            pool.start();
            let begun = async {
                claims.finish(&pool).await?;
                // What cannot be destroyed now stays hidden, and is no reason to refuse a pool.
                if let Err(e) = pool.stack.dsl().destroy_unfinished().await {
                    pool.notices.push(format!("the rest of an interrupted receive stays: {e}"));
                }
                pool.devices().rebuilds().load().await?;
                pool.scan().resume();
                pool.devices().works().load().await?;
                pool.devices().evacuator().resume();
                pool.devices().condenser().resume().await;
                pool.devices().expander().resume().await
            };
            pool.or_give_up(begun).await?;
            // A hold that cannot be released keeps a snapshot, and nothing else.
            let _ = pool.dsl().release_temporary().await;
        }
        Ok(pool)
    }

    pub(crate) async fn open_mos(
        candidate: &PoolCandidate,
        layers: Layers,
        ub: Uberblock,
        mut config: MosConfig,
        import: &ImportOpts,
    ) -> Result<Rc<Pool>> {
        let hooks = mos_hooks(&layers.core);
        let mos = Objset::open(layers.ctx.clone(), 0, ub.rootbp, ObjsetProps::mos(), hooks, !import.readonly)
            .await
            .at(|| "MOS")?;
        let directory = mos.hold(ObjectId(1)).await.at(|| "MOS directory")?;
        // Anything else may have been moved when a device was removed.
        load_mappings(&mos, &layers.tree).await?;
        let features = open_features(&mos, &directory, config.version, import.readonly).await?;
        let (aux, aux_errors) = AuxDevices::load(&mos, &directory).await;
        let mut notices: Vec<String> = load_dtls(&mos, &layers.tree).await.iter().map(Error::to_string).collect();
        note_stale(&candidate.devices, &layers.tree, ub.txg);
        notices.extend(aux_errors.iter().map(Error::to_string));
        // A read-only import needs the space maps for the space figures only, so it tolerates
        // damaged ones.
        let logs = match layers.add_tops(Some((&mos, &directory))).await {
            Err(e) if import.readonly => {
                notices.push(format!("how much space the pool has is not known: {e}"));
                Logs::default()
            }
            added => added?,
        };
        let config_object = directory_entry(&directory, "config").await?;
        let sync_bplist = directory_entry(&directory, "sync_bplist").await?;
        notices.extend(older_than_labels(candidate, ub.txg));
        let mut on_disk_name = None;
        if let Some(name) = &import.new_name {
            let old = std::mem::replace(&mut config.name, name.clone());
            on_disk_name = import.temporary_name.then_some(old);
        }
        let name = config.name.clone();
        let opening = Opening {
            config,
            config_dirty: false,
            config_object,
            on_disk_name,
            sync_bplist,
            uberblock: ub,
            aux,
            logs,
            notices,
            multihost: has_multihost(&mos, &directory).await?,
        };
        let mos = Mos { mos, directory, features };
        let pool = Pool::assemble(layers, mos, import.readonly, opening).await?;
        pool.stack.set_dsl(DslPool::open(pool.stack.dsl_setup(), &name).await?);
        let deferred = dmu::bpobj::Bpobj::open(&pool.stack.mos, sync_bplist).await?.space()?.bytes;
        pool.commit.push_space(deferred);
        Ok(pool)
    }

    /// Refuses to import a pool for writing in a state that weir cannot maintain.
    async fn check_writable(&self) -> Result<()> {
        if self.stack.readonly {
            return Ok(());
        }
        let refuse = |why: String| Err(Error::unsupported(format!("{why}: import it with -o readonly=on")));
        let tops = self.stack.tree.tops.borrow().clone();
        if tops.iter().filter(|t| t.config_ref().raidz_expanding).count() > 1 {
            return refuse("two RAID-Z of the pool are being expanded at a time, which cannot be".into());
        }
        Ok(())
    }
}

/// Opens the state of an uberblock far enough to verify it: the MOS, its configuration, and with
/// `-F` and `-T` every directory and dataset. Returns the uberblock, its configuration, and the
/// vdev tree of that.
pub(crate) async fn open_state(
    rt: &Rt,
    candidate: &PoolCandidate,
    mut ub: Uberblock,
    import: &ImportOpts,
    gauge: &DirtyGauge,
    opts: &EngineOpts,
) -> Result<(Uberblock, MosConfig, Rc<VdevTree>)> {
    check_labels(candidate, ub.txg)?;
    // The labels' tree leads to the MOS; from then on the MOS's own tree is used.
    let tops = tops_from_labels(candidate, ub.txg);
    let assembly = Assembly { rt, devices: &candidate.devices, gauge, opts, reflow: ub.raidz_reflow };
    let early = assembly.tree(candidate.guid, &tops)?;
    if import.to_checkpoint {
        ub = rewind::checkpoint_of(rt, &early, &ub, gauge, opts).await?;
    }
    let config = read_trusted(rt, early, &ub, gauge, opts).await?;
    if config.pool_guid != candidate.guid {
        return Err(Error::corrupt("the configuration in the pool has another guid than its labels"));
    }
    let tree = assembly.tree(candidate.guid, &config.vdev_tree.children)?;
    check_complete(&tree, import.readonly || import.missing_log)?;
    if tree.guid_sum() != ub.guid_sum {
        return Err(Error::corrupt(
            "the guids of the devices do not add up to the uberblock's: a device is missing or foreign",
        ));
    }
    if import.to_checkpoint && !import.readonly {
        rewind::make_newest(&tree, &ub).await?;
    }
    if import.states.rewinds() {
        let probe = ImportOpts { readonly: true, ..ImportOpts::default() };
        let layers = Layers::new(rt, tree.clone(), ub.txg.next(), gauge.clone(), opts);
        Pool::open_mos(candidate, layers, ub.clone(), config.clone(), &probe).await?;
    }
    Ok((ub, config, tree))
}

/// The limits of the pool with what its labels tell of the format: the MOS itself may be in gang
/// blocks with large headers.
pub(crate) fn opts_for(candidate: &PoolCandidate, opts: &EngineOpts) -> EngineOpts {
    let guid = FeatureId::DynamicGangHeader.get().guid;
    let mut opts = opts.clone();
    opts.zio.large_gang_headers =
        candidate.devices.iter().any(|d| d.config.features_for_read.iter().any(|f| f == guid));
    opts
}

/// Loads the features of the MOS and sets those of the DMU. An error if weir does not support the
/// active ones.
async fn open_features(mos: &Objset, directory: &Dnode, version: u64, readonly: bool) -> Result<Rc<Features>> {
    let features = Rc::new(match version {
        VERSION_FEATURES => Features::load(mos, directory).await?,
        _ => Features::none(mos, version),
    });
    Unsupported::in_mos(&features).await?.check(readonly)?;
    mos.ctx().set_features(features.for_dmu());
    let zio = mos.ctx().zio();
    let large_gang_headers = features.is_active(FeatureId::DynamicGangHeader);
    zio.set_opts(ZioOpts { large_gang_headers, ..zio.opts() });
    zio.tree().set_undeflated(zap::lookup_u64(directory, b"deflate").await?.is_none());
    Ok(features)
}

/// Whether the pool has the property `multihost` on.
async fn has_multihost(mos: &Objset, directory: &Dnode) -> Result<bool> {
    match zap::lookup_u64(directory, b"pool_props").await?.filter(|o| *o != 0) {
        Some(object) => Ok(zap::lookup_u64(&mos.hold(ObjectId(object)).await?, b"multihost").await? == Some(1)),
        None => Ok(false),
    }
}

/// The object of an entry of the MOS directory.
async fn directory_entry(directory: &Dnode, name: &str) -> Result<ObjectId> {
    let object = zap::lookup_u64(directory, name.as_bytes()).await?;
    Ok(ObjectId(object.ok_or_else(|| Error::corrupt(format!("the MOS directory has no entry {name}")))?))
}

/// The notice for a state that is older than the newest label.
fn older_than_labels(candidate: &PoolCandidate, txg: Txg) -> Option<String> {
    let newest_label = candidate.devices.iter().filter_map(|d| d.labels.committed_txg()).max().unwrap_or_default();
    (newest_label > txg).then(|| {
        format!(
            "the state of txg {txg} is imported, which is older than the newest label (txg {newest_label}): the uberblocks in between are damaged"
        )
    })
}

fn check_owner(rt: &Rt, candidate: &PoolCandidate, import: &ImportOpts) -> Result<()> {
    match candidate.state {
        PoolState::Destroyed if !import.destroyed => {
            return Err(Error::not_found("the pool was destroyed: use -D and -f to import it all the same"));
        }
        PoolState::Destroyed if !import.force => {
            return Err(Error::new(ErrorKind::Busy, "the pool was destroyed: -f is needed as well as -D"));
        }
        PoolState::Active if !import.force && !import.readonly => {
            let ours = rt.host_identity().hostid;
            if let Some(hostid) = candidate.hostid.filter(|h| *h != ours) {
                let host = candidate.hostname.clone().unwrap_or_default();
                let why = format!(
                    "the pool was last used by host '{host}' (hostid {hostid:x}) and was not exported: use -f if that host is gone"
                );
                return Err(Error::new(ErrorKind::Busy, why));
            }
        }
        _ => {}
    }
    Ok(())
}

/// The top-level vdevs according to the labels: each from the newest label that is not newer than
/// the uberblock.
fn tops_from_labels(candidate: &PoolCandidate, txg: Txg) -> Vec<VdevConfig> {
    let mut tops = Vec::new();
    // After a power cut during a change the labels of one device may be from before and after it.
    let labels = candidate.devices.iter().flat_map(|d| d.labels.configs.iter().filter_map(|(_, c)| c.as_ref().ok()));
    let labels: Vec<LabelConfig> = labels.filter_map(|l| LabelConfig::from_nvlist(l).ok()).collect();
    let labels: Vec<LabelConfig> = labels.into_iter().filter(|l| l.pool_guid == candidate.guid).collect();
    let newest = labels.iter().max_by_key(|c| (c.txg <= txg, c.txg)).unwrap_or(&candidate.config);
    for id in 0..count_tops(newest, labels.iter()).min(TOPS_MAX) {
        if newest.hole_array.contains(&id) {
            tops.push(VdevConfig::hole(id));
            continue;
        }
        let labels = labels.iter().filter(|c| c.vdev_tree.id == id);
        let best = labels.max_by_key(|c| (c.txg <= txg, c.txg));
        // A vdev without a label is removed or missing: the MOS's own configuration, which has
        // copies elsewhere, decides.
        let Some(best) = best else {
            tops.push(VdevConfig::new(ConfigKind::Missing, id, Guid(0)));
            continue;
        };
        // A label is only a hint; an invalid one counts as missing.
        tops.push(match best.vdev_tree.validate() {
            Ok(()) => best.vdev_tree.clone(),
            Err(_) => VdevConfig::new(ConfigKind::Missing, id, Guid(0)),
        });
    }
    tops
}

/// Opens the MOS to read the configuration in it.
async fn read_trusted(
    rt: &Rt,
    tree: Rc<VdevTree>,
    ub: &Uberblock,
    gauge: &DirtyGauge,
    opts: &EngineOpts,
) -> Result<MosConfig> {
    let layers = Layers::new(rt, tree, ub.txg.next(), gauge.clone(), opts);
    let hooks = mos_hooks(&layers.core);
    let mos = Objset::open(layers.ctx.clone(), 0, ub.rootbp, ObjsetProps::mos(), hooks, false).await.at(|| "MOS")?;
    let directory = mos.hold(ObjectId(1)).await.at(|| "MOS directory")?;
    let object = zap::lookup_u64(&directory, b"config").await?;
    let object = object.ok_or_else(|| Error::corrupt("the MOS directory has no entry config"))?;
    let config =
        MosConfig::from_nvlist(&read_packed(&mos, ObjectId(object)).await?).at(|| "configuration in the MOS")?;
    config.vdev_tree.validate().at(|| "configuration in the MOS")?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use ondisk::label::ConfigHead;

    use super::*;

    fn label(id: u64, vdev_children: Option<u64>) -> LabelConfig {
        let top = VdevConfig::new(ConfigKind::File, id, Guid(id + 1));
        LabelConfig {
            head: ConfigHead {
                version: 1,
                name: "old".into(),
                state: PoolState::Exported,
                txg: Txg(46),
                pool_guid: Guid(7),
                errata: None,
                comment: None,
                compatibility: None,
                hostid: None,
                hostname: None,
            },
            top_guid: top.guid,
            guid: top.guid,
            is_spare: false,
            is_log: false,
            hole_array: Vec::new(),
            vdev_children,
            split_guid: None,
            vdev_tree: top,
            features_for_read: Vec::new(),
            create_txg: None,
            unknown: Vec::new(),
        }
    }

    #[test]
    fn labels_without_a_count_are_counted_together() {
        let old: Vec<LabelConfig> = (0..3).map(|id| label(id, None)).collect();
        assert_eq!(count_tops(&old[0], old.iter()), 3);
        let new: Vec<LabelConfig> = (0..2).map(|id| label(id, Some(2))).collect();
        assert_eq!(count_tops(&new[0], old.iter()), 2);
        assert_eq!(count_tops(&old[0], [].iter()), 1);
    }
}
