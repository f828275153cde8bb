//! Making a pool (format page 10): empty labels first, then everything else as txg 4, whose uberblock brings the pool into being.
//!
//! The first labels carry txg 0, so a creation that is cut short leaves devices that no import takes for a pool.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use base::{Error, ErrorKind, Guid, ObjectId, Result, TXG_INITIAL, Txg};
use bdev::BlockDev;
use dmu::{DmuFeatures, ObjSpec, Objset, ObjsetProps, Tx, zap};
use dsl::features::Features;
use dsl::props::PropValue;
use dsl::{DslPool, Init};
use ondisk::blkptr::Blkptr;
use ondisk::feature::{FeatureId, enable_closure_ids};
use ondisk::label::{MosConfig, PoolState};
use ondisk::object_type::ObjectType;
use ondisk::objset::ObjsetType;
use ondisk::uberblock::Uberblock;
use ondisk::vdev_config::{VdevConfig, VdevKind as ConfigKind, metaslab_shift_for};
use rt::Rt;
use vdev::labels::init_labels;
use vdev::{DirtyGauge, Leaf, Top, TopSpec, VdevKind, VdevTree, leaf_asize};

use crate::config::create_packed;
use crate::pool::{EngineOpts, Pool, Stack, mos_hooks};

/// Smallest device of a pool, in bytes (`SPA_MINDEVSIZE`, format page 01).
pub const DEVICE_SIZE_MIN: u64 = 64 << 20;
/// Version of pools with feature flags.
const SPA_VERSION: u64 = 5000;

/// A device of a pool to be.
#[derive(Clone)]
pub struct DevSpec {
    /// The device.
    pub dev: Rc<dyn BlockDev>,
    /// A disk, or a file if not.
    pub is_disk: bool,
}

/// A pool to be.
pub struct PoolSpec {
    /// Its name.
    pub name: String,
    /// Top-level devices, striped.
    pub devices: Vec<DevSpec>,
    /// log2 of the allocation unit; by default the larger of 4 KiB and the device's physical sector.
    pub ashift: Option<u8>,
    /// Features to enable, dependencies are added.
    pub features: Vec<FeatureId>,
    /// The property `comment`.
    pub comment: Option<String>,
    /// Properties of the root file system.
    pub fs_props: Vec<(String, PropValue)>,
    /// Fills the root file system.
    pub init: Init,
}

/// Checks a pool's name: begins with a letter, no word that means a kind of vdev.
pub fn check_pool_name(name: &str) -> Result<()> {
    dsl::check_name(name)?;
    let bad = |why: &str| Err(Error::invalid(format!("the pool name '{name}' {why}")));
    if name.contains('/') {
        return bad("has a slash");
    }
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return bad("does not begin with a letter");
    }
    let reserved = ["mirror", "raidz", "draid", "spare"].iter().any(|w| name.starts_with(w)) || name == "log";
    if reserved {
        return bad("is reserved");
    }
    Ok(())
}

fn ashift_for(dev: &dyn BlockDev, wanted: Option<u8>) -> Result<u8> {
    let info = dev.info();
    let ashift = wanted.unwrap_or_else(|| info.physical_sector.max(4096).ilog2() as u8);
    if !(9..=16).contains(&ashift) {
        return Err(Error::invalid(format!("ashift {ashift} is out of range: it must be 9 to 16")));
    }
    if u64::from(info.logical_sector) > 1 << ashift {
        let why = format!(
            "device '{}' has sectors of {} bytes, larger than ashift={ashift} allows",
            info.path, info.logical_sector
        );
        return Err(Error::invalid(why));
    }
    Ok(ashift)
}

fn make_top(rt: &Rt, id: u32, spec: &DevSpec, ashift: u8, gauge: &DirtyGauge, opts: &EngineOpts) -> Result<Rc<Top>> {
    let info = spec.dev.info();
    if info.size_bytes < DEVICE_SIZE_MIN {
        let why = format!("device '{}' is too small: a pool needs at least 64M on each device", info.path);
        return Err(Error::new(ErrorKind::Range, why));
    }
    let asize = leaf_asize(info.size_bytes);
    let ms_shift = metaslab_shift_for(asize) as u8;
    let guid = rt.new_guid();
    let kind = if spec.is_disk { ConfigKind::Disk } else { ConfigKind::File };
    let mut config = VdevConfig::new(kind, u64::from(id), guid);
    config.path = Some(info.path.clone());
    config.whole_disk = spec.is_disk.then_some(0);
    config.ashift = Some(u64::from(ashift));
    config.asize = Some(asize);
    config.is_log = Some(0);
    config.metaslab_shift = Some(u64::from(ms_shift));
    config.metaslab_array = Some(ObjectId(0));
    config.create_txg = Some(TXG_INITIAL);
    let leaf = Leaf::new(rt, guid, info.path.clone(), spec.dev.clone(), gauge.clone(), opts.queue.clone());
    Ok(Top::new(TopSpec {
        id: base::VdevId(id),
        ashift,
        asize,
        ms_shift,
        ms_array: ObjectId(0),
        is_log: false,
        kind: VdevKind::Leaf(leaf),
        config,
    }))
}

impl Pool {
    /// Creates a pool and leaves it imported. Nothing is written before everything that can be checked has been.
    pub async fn create(rt: Rt, spec: PoolSpec, opts: EngineOpts) -> Result<Rc<Pool>> {
        check_pool_name(&spec.name)?;
        if spec.devices.is_empty() {
            return Err(Error::invalid("a pool needs at least one device"));
        }
        let features = enable_closure_ids(&spec.features);
        for (prop, value) in &spec.fs_props {
            dsl::props::check_feature(prop, value, |id| features.contains(&id))?;
        }
        let gauge = DirtyGauge::default();
        let mut tops = Vec::new();
        for (id, dev) in spec.devices.iter().enumerate() {
            let ashift = ashift_for(&*dev.dev, spec.ashift)?;
            tops.push(make_top(&rt, id as u32, dev, ashift, &gauge, &opts)?);
        }
        let guid = rt.new_guid();
        let host = rt.host_identity();
        let config = MosConfig {
            version: SPA_VERSION,
            name: spec.name.clone(),
            state: PoolState::Active,
            txg: TXG_INITIAL,
            pool_guid: guid,
            errata: Some(0),
            comment: spec.comment.clone(),
            compatibility: None,
            hostid: (host.hostid != 0).then_some(host.hostid),
            hostname: Some(host.hostname.clone()),
            has_per_vdev_zaps: true,
            vdev_children: Some(tops.len() as u64),
            vdev_tree: VdevConfig::new(ConfigKind::Root, 0, guid),
            features_for_read: Vec::new(),
            unknown: Vec::new(),
        };
        let tree = VdevTree::new(guid, tops);
        clear_for_creation(&tree, &config).await?;
        let stack = Stack::new(&rt, tree, TXG_INITIAL, gauge, &opts);
        stack.add_tops(None).await?;
        Pool::first_txg(rt, guid, stack, config, features, spec).await
    }

    async fn first_txg(
        rt: Rt,
        guid: Guid,
        stack: Stack,
        mut config: MosConfig,
        features: Vec<FeatureId>,
        spec: PoolSpec,
    ) -> Result<Rc<Pool>> {
        let tx = Rc::new(Tx::syncing(TXG_INITIAL));
        let ctx = stack.ctx.clone();
        ctx.set_features(DmuFeatures {
            hole_birth: features.contains(&FeatureId::HoleBirth),
            embedded_data: features.contains(&FeatureId::EmbeddedData),
            lz4: features.contains(&FeatureId::Lz4Compress),
        });
        let mos =
            Objset::create(ctx.clone(), 0, ObjsetType::Meta, ObjsetProps::mos(), mos_hooks(&stack.core), TXG_INITIAL);
        let directory = mos.alloc_at(ObjectId(1), ObjSpec::new(ObjectType::OBJECT_DIRECTORY, 512), &tx).await?;
        zap::init(&directory, 0, &tx).await?;
        let flags = Rc::new(Features::create(&mos, &directory, &tx).await?);
        for id in &features {
            flags.enable(*id, &directory, &tx).await?;
        }
        zap::add_u64(&directory, b"creation_version", SPA_VERSION, &tx).await?;
        zap::add_u64(&directory, b"deflate", 1, &tx).await?;
        let config_object = create_packed(&mos, &tx).await?;
        zap::add_u64(&directory, b"config", config_object.0, &tx).await?;
        let sync_bplist = create_sync_bplist(&mos, &tx).await?;
        zap::add_u64(&directory, b"sync_bplist", sync_bplist.0, &tx).await?;
        create_vdev_objects(&mos, &directory, &stack.tree, &tx).await?;
        config.features_for_read = flags.for_labels();
        let pool = Rc::new(Pool {
            rt,
            guid,
            tree: stack.tree,
            alloc: stack.alloc,
            arc: stack.arc,
            txg: stack.txg,
            ctx,
            mos,
            directory,
            features: flags,
            core: stack.core,
            store: stack.store,
            dsl: OnceCell::new(),
            config_object: Cell::new(config_object),
            sync_bplist: Cell::new(sync_bplist),
            config: RefCell::new(config),
            config_dirty: Cell::new(true),
            uberblock: RefCell::new(Uberblock::new(Txg(0), 0, 0, Blkptr::hole())),
            readonly: false,
            notices: RefCell::default(),
            sync_task: RefCell::default(),
        });
        let dsl = DslPool::create(pool.dsl_setup(), &spec.name, spec.fs_props, spec.init, tx.clone()).await?;
        pool.store.set_mos(pool.mos.clone());
        assert!(pool.dsl.set(dsl).is_ok(), "the DSL is made once");
        pool.push_space(0);
        // The open txg holds all of this; the loop makes it the first one on disk.
        pool.start();
        pool.txg.wait_synced(TXG_INITIAL).await?;
        Ok(pool)
    }
}

/// Labels with txg 0 and empty uberblock rings on every device.
async fn clear_for_creation(tree: &Rc<VdevTree>, config: &MosConfig) -> Result<()> {
    let mut config = config.clone();
    config.txg = Txg(0);
    config.vdev_tree.children = tree.tops.borrow().iter().map(|t| t.config()).collect();
    let tops = tree.tops.borrow().clone();
    for (index, top) in tops.iter().enumerate() {
        for leaf in top.leaves() {
            let label = config.label_for(index, leaf.guid).expect("the configuration was made from this tree");
            init_labels(&*leaf.dev, &label.to_nvlist()).await?;
        }
    }
    Ok(())
}

/// The deferred-free list is not compressed, so that its size does not depend on its content (format page 03 section 1).
async fn create_sync_bplist(mos: &Objset, tx: &Tx) -> Result<ObjectId> {
    let header = ondisk::bpobj::BPOBJ_SIZE_V2;
    let mut spec =
        ObjSpec::new(ObjectType::BPOBJ, ondisk::bpobj::SYNC_BPLIST_BLKSZ).bonus(ObjectType::BPOBJ_HDR, header as u16);
    spec.compress = codec::CompressAlgo::Off as u8;
    let dn = mos.alloc(spec, tx).await?;
    dn.set_bonus(&vec![0; header], tx)?;
    Ok(dn.object())
}

/// The metaslab array of every top-level vdev, and a ZAP for every vdev with the list of them (format page 06 section 1).
async fn create_vdev_objects(mos: &Objset, directory: &dmu::Dnode, tree: &Rc<VdevTree>, tx: &Tx) -> Result<()> {
    let map = zap::create(mos, ObjectType::OTN_ZAP_METADATA, 0, tx).await?;
    zap::add_u64(directory, b"com.delphix:vdev_zap_map", map.object().0, tx).await?;
    let tops = tree.tops.borrow().clone();
    for top in tops {
        let array = mos.alloc(ObjSpec::new(ObjectType::OBJECT_ARRAY, 512), tx).await?.object();
        let mut zaps = Vec::new();
        for _ in 0..2 {
            let object = zap::create(mos, ObjectType::OTN_ZAP_METADATA, 0, tx).await?.object();
            zap::add_int(&map, object.0, object.0, tx).await?;
            zaps.push(object);
        }
        top.ms_array.set(array);
        top.update_config(|c| {
            c.metaslab_array = Some(array);
            c.zap_leaf = Some(zaps[0]);
            c.zap_top = Some(zaps[1]);
        });
    }
    Ok(())
}
