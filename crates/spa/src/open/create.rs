//! Creation of a pool (format page 10): empty labels first, then everything else as txg 4, whose
//! uberblock makes the pool valid.
//!
//! The first labels have txg 0, so after an interrupted creation no import takes the devices for a
//! pool.

use std::rc::Rc;

use base::{Error, ObjectId, Result, TXG_INITIAL, Txg};
use dmu::{DmuFeatures, ObjSpec, Objset, ObjsetProps, Tx, zap};
use dsl::crypto::NewCrypt;
use dsl::features::Features;
use dsl::props::PropValue;
use dsl::{DslPool, Init};
use ondisk::blkptr::Blkptr;
use ondisk::feature::{FeatureId, enable_closure_ids};
use ondisk::label::{ConfigHead, MosConfig, PoolState, version_supported};
use ondisk::object_type::ObjectType;
use ondisk::objset::ObjsetType;
use ondisk::uberblock::Uberblock;
use ondisk::vdev_config::{VdevConfig, VdevKind as ConfigKind};
use ondisk::version;
use rt::Rt;
use vdev::labels::init_labels;
use vdev::{DirtyGauge, VdevTree};

use crate::commit::config::create_packed;
use crate::commit::logs::Logs;
use crate::devices::aux::AuxDevices;
use crate::devices::layout::{Layout, LeafMaker, make_top};
use crate::devices::objects::{ZAP_MAP, create_top_objects};
use crate::pool::{EngineOpts, Opening, Pool};
use crate::stack::{Layers, Mos, mos_hooks};

/// The specification of a new pool.
pub struct PoolSpec {
    /// Its name.
    pub name: String,
    /// A version from before feature flags, 1 to 28 (`ondisk::version`).
    pub version: Option<u64>,
    /// Its devices; a plain list of them is striped.
    pub devices: Layout,
    /// log2 of the allocation unit; by default the larger of 4 KiB and the device's physical
    /// sector.
    pub ashift: Option<u8>,
    /// Features to enable; their dependencies are added.
    pub features: Vec<FeatureId>,
    /// The property `comment`.
    pub comment: Option<String>,
    /// Properties of the root file system.
    pub fs_props: Vec<(String, PropValue)>,
    /// Fills the root file system.
    pub init: Init,
}

impl PoolSpec {
    fn version(&self) -> u64 {
        self.version.unwrap_or(version::FEATURES)
    }
}

/// Checks a pool's name: it begins with a letter and is not a reserved word for a kind of vdev.
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

impl Pool {
    /// Creates a pool and leaves it imported. Nothing is written before everything that can be
    /// checked has been.
    pub async fn create(rt: Rt, spec: PoolSpec, opts: EngineOpts) -> Result<Rc<Pool>> {
        Pool::create_as(rt, spec, None, NewCrypt::default(), opts).await
    }

    /// As [`Pool::create`]: a pool that has another name on disk than until its export, and with
    /// the encryption of the root file system, whose key is loaded then.
    pub async fn create_as(
        rt: Rt,
        spec: PoolSpec,
        on_disk_name: Option<String>,
        crypt: NewCrypt,
        opts: EngineOpts,
    ) -> Result<Rc<Pool>> {
        check_pool_name(&spec.name)?;
        if let Some(name) = &on_disk_name {
            check_pool_name(name)?;
        }
        crypt.check_of_root(&spec.name)?;
        spec.devices.check()?;
        let version = spec.version();
        if !version_supported(version) {
            return Err(Error::unsupported(format!("there is no pool version {version}")));
        }
        spec.devices.check_version(version)?;
        let mut wanted = spec.features.clone();
        wanted.extend(spec.devices.features());
        if let Some(id) = wanted.first().filter(|_| version < version::FEATURES) {
            let why = format!("pools of version {version} have no feature flags, and not '{id}'");
            return Err(Error::unsupported(why));
        }
        let features = enable_closure_ids(&wanted);
        if crypt.is_on() && !features.contains(&FeatureId::Encryption) {
            return Err(Error::unsupported("encryption needs the pool feature 'encryption', which is not enabled"));
        }
        for (prop, value) in &spec.fs_props {
            dsl::upgrade::check_version(prop, value, version)?;
            dsl::props::check_feature(prop, value, |id| features.contains(&id))?;
        }
        let gauge = DirtyGauge::default();
        let mut tops = Vec::new();
        let maker = LeafMaker {
            rt: rt.clone(),
            gauge: gauge.clone(),
            queue: opts.queue.clone(),
            counts: opts.alloc.counts,
            ashift: opts.auto_ashift,
        };
        for (id, group) in spec.devices.groups.iter().enumerate() {
            let top = make_top(&maker, id as u32, group, spec.ashift)?;
            top.update_config(|c| c.alloc_bias = group.bias.word().map(str::to_string));
            tops.push(top);
        }
        let aux = AuxDevices::of_new(&rt, &spec.devices, &tops);
        let guid = rt.new_guid();
        let host = rt.host_identity();
        let config = MosConfig {
            head: ConfigHead {
                version,
                name: spec.name.clone(),
                state: PoolState::Active,
                txg: TXG_INITIAL,
                pool_guid: guid,
                errata: Some(0),
                comment: spec.comment.clone(),
                compatibility: None,
                hostid: (host.hostid != 0).then_some(host.hostid),
                hostname: Some(host.hostname.clone()),
            },
            has_per_vdev_zaps: true,
            vdev_children: Some(tops.len() as u64),
            split: None,
            vdev_tree: VdevConfig::new(ConfigKind::Root, 0, guid),
            features_for_read: Vec::new(),
            unknown: Vec::new(),
        };
        let tree = VdevTree::new(guid, tops);
        clear_for_creation(&tree, &config, on_disk_name.as_deref()).await?;
        aux.write_labels(&spec.devices, version).await?;
        let layers = Layers::new(&rt, tree, TXG_INITIAL, gauge, &opts);
        layers.add_tops(None).await?;
        Pool::first_txg(layers, (config, on_disk_name), features, (spec, crypt), aux).await
    }

    async fn first_txg(
        layers: Layers,
        (mut config, on_disk_name): (MosConfig, Option<String>),
        features: Vec<FeatureId>,
        (spec, crypt): (PoolSpec, NewCrypt),
        aux: AuxDevices,
    ) -> Result<Rc<Pool>> {
        let tx = Rc::new(Tx::syncing(TXG_INITIAL));
        let (ctx, version) = (layers.ctx.clone(), spec.version());
        ctx.set_features(DmuFeatures { pool_version: version, ..DmuFeatures::default() });
        let mos = Objset::create(ctx, 0, ObjsetType::Meta, ObjsetProps::mos(), mos_hooks(&layers.core), TXG_INITIAL);
        let directory = mos.alloc_at(ObjectId(1), ObjSpec::new(ObjectType::OBJECT_DIRECTORY, 512), &tx).await?;
        zap::init(&directory, 0, &tx).await?;
        let flags = Rc::new(Features::none(&mos, version));
        flags.set_version(version, &directory, &tx).await?;
        for id in &features {
            flags.enable(*id, &directory, &tx).await?;
        }
        mos.ctx().set_features(flags.for_dmu());
        zap::add_u64(&directory, b"creation_version", version, &tx).await?;
        if version >= version::DEFLATE {
            zap::add_u64(&directory, b"deflate", 1, &tx).await?;
        } else {
            layers.tree.set_undeflated(true);
        }
        let config_object = create_packed(&mos, &tx).await?;
        zap::add_u64(&directory, b"config", config_object.0, &tx).await?;
        let sync_bplist = create_sync_bplist(&mos, &tx).await?;
        zap::add_u64(&directory, b"sync_bplist", sync_bplist.0, &tx).await?;
        create_vdev_objects(&mos, &directory, &layers.tree, &tx).await?;
        aux.create_objects(&mos, &directory, &tx).await?;
        for id in spec.devices.features() {
            flags.add(id, spec.devices.feature_count(id), &tx).await?;
        }
        config.features_for_read = flags.for_labels();
        let opening = Opening {
            config,
            config_dirty: true,
            config_object,
            on_disk_name,
            sync_bplist,
            uberblock: Uberblock::new(Txg(0), 0, 0, Blkptr::hole()),
            aux,
            logs: Logs::default(),
            notices: Vec::new(),
            multihost: false,
        };
        let mos = Mos { mos, directory, features: flags };
        let pool = Pool::assemble(layers, mos, false, opening).await?;
        let setup = pool.stack.dsl_setup();
        let dsl = DslPool::create(setup, &spec.name, spec.fs_props, crypt, spec.init, tx.clone()).await?;
        pool.stack.set_dsl(dsl);
        pool.commit.push_space(0);
        pool.note_opening("create");
        // All of this is in the open txg; the sync loop writes it as the first one.
        pool.start();
        pool.or_give_up(pool.stack.txg.wait_synced(TXG_INITIAL)).await?;
        pool.scan().resume();
        Ok(pool)
    }
}

/// Labels with txg 0 and empty uberblock rings on every device.
async fn clear_for_creation(tree: &Rc<VdevTree>, config: &MosConfig, on_disk_name: Option<&str>) -> Result<()> {
    let mut config = config.clone();
    if let Some(name) = on_disk_name {
        config.name = name.to_string();
    }
    config.txg = Txg(0);
    config.vdev_tree.children = tree.tops.borrow().iter().map(|t| t.config()).collect();
    let tops = tree.tops.borrow().clone();
    for (index, top) in tops.iter().enumerate() {
        for leaf in top.leaves() {
            let label = config.label_for(index, leaf.guid()).expect("the configuration was made from this tree");
            init_labels(&*leaf.dev, &label.to_nvlist()).await?;
        }
    }
    Ok(())
}

/// The deferred-free list is not compressed, so that its size does not depend on its content
/// (format page 03 section 1).
async fn create_sync_bplist(mos: &Objset, tx: &Tx) -> Result<ObjectId> {
    let header = ondisk::bpobj::header_size(mos.ctx().features().pool_version);
    let mut spec =
        ObjSpec::new(ObjectType::BPOBJ, ondisk::bpobj::SYNC_BPLIST_BLKSZ).bonus(ObjectType::BPOBJ_HDR, header as u16);
    spec.compress = codec::CompressAlgo::Off as u8;
    let dn = mos.alloc(spec, tx).await?;
    dn.set_bonus(&vec![0; header], tx)?;
    Ok(dn.object())
}

/// The metaslab array of every top-level vdev, and a ZAP for every vdev with the list of them
/// (format page 06 section 1).
async fn create_vdev_objects(mos: &Objset, directory: &dmu::Dnode, tree: &Rc<VdevTree>, tx: &Tx) -> Result<()> {
    let map = zap::create(mos, ObjectType::OTN_ZAP_METADATA, 0, tx).await?;
    zap::add_u64(directory, ZAP_MAP, map.object().0, tx).await?;
    let tops = tree.tops.borrow().clone();
    for top in tops {
        create_top_objects(mos, Some(&map), &top, tx).await?;
    }
    Ok(())
}
