//! What the objects of a pool share: the layers of the engine, assembled on one vdev tree.
//!
//! [`Layers`] are those below the MOS; the import opens the MOS through them, several times if it
//! has to choose a state. [`Stack`] adds the MOS and what is opened from it. Both have handles
//! only, which stay the same while the pool is imported: state that changes belongs to an object.

use std::cell::OnceCell;
use std::ops::Deref;
use std::rc::Rc;

use arc::Arc;
use base::{Error, Result, Txg};
use dmu::{DmuCtx, DmuFeatures, Dnode, Objset, ObjsetHooks, zap};
use dsl::core::{Core, MosAccounting};
use dsl::features::Features;
use dsl::{DslPool, DslSetup};
use metaslab::{Allocator, ClassKind, MsSummary, RangeTree};
use rt::Rt;
use txg::TxgPool;
use vdev::{DirtyGauge, Top, VdevTree};
use zio::Zio;

use crate::commit::heartbeat::MultihostTunables;
use crate::commit::logs::Logs;
use crate::commit::store::{Geometry, MapStore};
use crate::devices::condense::CondenseTunables;
use crate::devices::evacuate::RemovalTunables;
use crate::devices::leaf_work::WorkTunables;
use crate::devices::rebuild::RebuildTunables;
use crate::devices::reflow::ExpandTunables;
use crate::pool::EngineOpts;
use crate::scan::ScanTunables;

/// Most metaslabs of a top-level vdev (`zfs_vdev_ms_count_limit` of OpenZFS 2.1).
pub(crate) const METASLABS_MAX: u64 = 1 << 17;

/// Entry of a top-level vdev's ZAP: its allocation class.
pub(crate) const BIAS_KEY: &[u8] = b"org.zfsonlinux:allocation_bias";

/// The hooks of the MOS: accounting only, since it is written in syncing context only.
pub(crate) fn mos_hooks(core: &Rc<Core>) -> ObjsetHooks {
    ObjsetHooks { acct: Rc::new(MosAccounting(core.clone())), gate: None, feat: None }
}

/// The layers below the MOS, on one vdev tree.
pub(crate) struct Layers {
    pub rt: Rt,
    pub tree: Rc<VdevTree>,
    pub alloc: Rc<Allocator>,
    pub store: Rc<MapStore>,
    pub arc: Arc,
    pub txg: TxgPool,
    pub ctx: DmuCtx,
    pub core: Rc<Core>,
    pub scan: ScanTunables,
    /// Heartbeats.
    pub multihost: MultihostTunables,
    /// Expansions of RAID-Z.
    pub expand: ExpandTunables,
    /// Removals of devices.
    pub removal: RemovalTunables,
    /// Condensing of the mappings of removed devices.
    pub condense: CondenseTunables,
    /// Trim and initialize.
    pub works: WorkTunables,
    /// Sequential rebuilds.
    pub rebuild: RebuildTunables,
}

impl Layers {
    pub(crate) fn new(rt: &Rt, tree: Rc<VdevTree>, first_open: Txg, gauge: DirtyGauge, opts: &EngineOpts) -> Layers {
        let store = MapStore::new();
        let alloc = Allocator::new(store.clone(), opts.alloc.clone());
        let zio = Zio::new(rt.clone(), tree.clone(), alloc.clone(), opts.zio);
        let arc = Arc::new(rt.clone(), zio.clone(), opts.arc_max);
        arc.set_l2_tunables(opts.l2);
        let txg = TxgPool::new(rt.clone(), first_open, opts.txg, gauge);
        let ctx = DmuCtx::new(rt.clone(), zio.clone(), arc.clone(), txg.clone(), DmuFeatures::default());
        ctx.set_tunables(opts.dmu);
        let core = Core::new(zio, opts.zil);
        core.admin_snapshot.set(opts.admin_snapshot);
        core.freed_per_txg.set(opts.freed_per_txg);
        core.livelist_entries.set(opts.livelist_entries);
        core.livelist_shared.set(opts.livelist_shared);
        let rt = rt.clone();
        Layers {
            rt,
            tree,
            alloc,
            store,
            arc,
            txg,
            ctx,
            core,
            scan: opts.scan,
            multihost: opts.multihost,
            expand: opts.expand,
            removal: opts.removal,
            condense: opts.condense,
            works: opts.works,
            rebuild: opts.rebuild,
        }
    }

    /// Adds every top-level vdev with metaslabs to the allocator, absent log devices included:
    /// frees on them must be recorded for their return. `mos` is None for a new pool, else the MOS
    /// and its directory.
    pub(crate) async fn add_tops(&self, mos: Option<(&Objset, &Dnode)>) -> Result<Logs> {
        let mut tops = self.tree.tops.borrow().clone();
        tops.retain(|t| t.is_concrete() && t.ms_shift.get() != 0);
        for top in &tops {
            let geometry = Geometry { ms_shift: top.ms_shift.get(), ashift: top.ashift, unit: top.alloc_unit() };
            let count = top.ms_count();
            if count == 0 || count > METASLABS_MAX {
                return Err(Error::corrupt(format!("vdev {} has {count} metaslabs", top.id)));
            }
            if !RangeTree::can_cover(1 << geometry.ms_shift, geometry.ashift) {
                return Err(Error::corrupt(format!("vdev {} has metaslabs of 2^{} bytes", top.id, geometry.ms_shift)));
            }
            self.store.set_geometry(top.id, geometry);
        }
        let logs = match mos {
            Some((mos, directory)) => Logs::read(mos, directory, &tops, &self.store).await?,
            None => Logs::default(),
        };
        for top in tops {
            let count = top.ms_count();
            let summaries = match mos {
                Some((mos, _)) => self.store.summaries(mos, top.id, top.ms_array.get(), count).await?,
                None => vec![MsSummary::default(); count as usize],
            };
            let class = match mos {
                Some((mos, _)) => class_of(mos, &top).await?,
                None => class_named(top.config_ref().alloc_bias.as_deref(), top.is_log),
            };
            let passive = top.config_ref().non_allocating.then_some(top.id);
            self.alloc.add_top(top, class, summaries)?;
            if let Some(id) = passive {
                self.alloc.set_passive(id, true);
            }
        }
        Ok(logs)
    }
}

/// The parts of the MOS that an open pool needs.
pub(crate) struct Mos {
    /// The object set.
    pub mos: Objset,
    /// Its directory, object 1.
    pub directory: Dnode,
    /// The feature flags.
    pub features: Rc<Features>,
}

/// The layers of a pool, with the MOS.
pub(crate) struct Stack {
    layers: Layers,
    pub mos: Objset,
    pub directory: Dnode,
    pub features: Rc<Features>,
    /// The pool was imported read-only.
    pub readonly: bool,
    dsl: OnceCell<Rc<DslPool>>,
}

/// The layers below the MOS are the stack's own.
impl Deref for Stack {
    type Target = Layers;

    fn deref(&self) -> &Layers {
        &self.layers
    }
}

impl Stack {
    /// The MOS on the layers below it. [`Stack::set_dsl`] completes them.
    pub(crate) fn new(layers: Layers, mos: Mos, readonly: bool) -> Rc<Stack> {
        let Mos { mos, directory, features } = mos;
        Rc::new(Stack { layers, mos, directory, features, readonly, dsl: OnceCell::new() })
    }

    /// The block layer.
    pub(crate) fn zio(&self) -> &Zio {
        &self.core.zio
    }

    /// The datasets.
    pub(crate) fn dsl(&self) -> &Rc<DslPool> {
        self.dsl.get().expect("the DSL is opened before the pool is handed out")
    }

    /// Sets the datasets, once they are created or opened.
    pub(crate) fn set_dsl(&self, dsl: Rc<DslPool>) {
        assert!(self.dsl.set(dsl).is_ok(), "the DSL is opened once");
    }

    /// The parts that the DSL needs.
    pub(crate) fn dsl_setup(&self) -> DslSetup {
        DslSetup {
            ctx: self.ctx.clone(),
            txg: self.txg.clone(),
            core: self.core.clone(),
            mos: self.mos.clone(),
            directory: self.directory.clone(),
            features: self.features.clone(),
            writable: !self.readonly,
        }
    }

    /// Breaks the reference cycles, so that devices are closed and unlocked.
    pub(crate) fn close(&self) {
        self.arc.give_up_caches();
        self.store.close();
        self.core.set_dataset_watch(None);
        self.core.zio.set_free_observer(None);
        self.core.zio.set_dedup(None);
        self.core.zio.set_references(None);
        self.core.zio.set_evacuation(None);
        if let Some(dsl) = self.dsl.get() {
            dsl.close();
        }
    }

    /// Waits until everything written so far is on disk.
    pub(crate) async fn sync(&self) -> Result<()> {
        if self.readonly {
            return Ok(());
        }
        self.txg.wait_synced(Txg(0)).await
    }
}

/// The class of a top-level vdev by the name of its bias.
pub(crate) fn class_named(bias: Option<&str>, is_log: bool) -> ClassKind {
    match bias {
        _ if is_log => ClassKind::Log,
        Some("special") => ClassKind::Special,
        Some("dedup") => ClassKind::Dedup,
        _ => ClassKind::Normal,
    }
}

/// The class of a top-level vdev: its bias is in its ZAP (format page 06 section 1).
async fn class_of(mos: &Objset, top: &Top) -> Result<ClassKind> {
    let zap = top.config_ref().zap_top;
    let bias = match zap.filter(|z| z.0 != 0 && !top.is_log) {
        Some(zap) => zap::lookup(&mos.hold(zap).await?, BIAS_KEY).await?,
        None => None,
    };
    let bias = bias.as_ref().and_then(|v| std::str::from_utf8(v.as_bytes()?).ok()).map(|s| s.trim_end_matches('\0'));
    Ok(class_named(bias, top.is_log))
}
