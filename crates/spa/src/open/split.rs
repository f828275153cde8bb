//! `zpool split`, the new pool: the state on leaves that left their mirrors is opened under another
//! name and guid, and written once, as an exported pool. [`crate::devices::split`] has the other
//! half, and the order.
//!
//! Until the first uberblock of the new pool is on one of the leaves they are still the old pool's:
//! labels with a guid that no uberblock confirms are passed over ([`crate::scan()`]).

use std::rc::Rc;

use base::{Error, ErrorKind, Result, ResultExt};
use ondisk::label::{ConfigHead, MosConfig, PoolState, SplitConfig};
use ondisk::uberblock::Uberblock;
use rt::Rt;
use vdev::DirtyGauge;
use vdev::labels::read_labels;

use crate::devices::split::{Begun, SplitLeaf};
use crate::open::assemble::{Assembly, check_complete, update_presence};
use crate::open::claim::{LogRule, claim_logs};
use crate::open::create::check_pool_name;
use crate::open::import::{FoundDevice, ImportOpts, PoolCandidate, opts_for};
use crate::pool::{EngineOpts, Pool};
use crate::stack::Layers;

impl Pool {
    /// Makes a pool of one leaf of each mirror, which the pool then does not have any more: the
    /// devices `named`, and of every other mirror the last. `settings` changes the new pool before
    /// it is exported; it is made whether that succeeds or not. Returns the new pool's guid and its
    /// leaves.
    ///
    /// Refused, without a change: a pool that is not of mirrors alone (logs are left out), a leaf
    /// that is not in use, misses something, or has data without another copy, and a checkpoint.
    pub async fn split(
        &self,
        new_name: &str,
        named: &[String],
        opts: EngineOpts,
        settings: impl AsyncFnOnce(&Rc<Pool>) -> Result<()>,
    ) -> Result<(base::Guid, Vec<SplitLeaf>)> {
        check_pool_name(new_name)?;
        let _admin = self.devices().begin_change().await?;
        let leaves = self.devices().choose_split(named)?;
        if leaves.is_empty() {
            return Err(Error::invalid("Source pool must be composed only of mirrors"));
        }
        let begun = self.devices().begin_split(leaves).await?;
        let new = match self.open_leaves(new_name, &begun, opts).await {
            Ok(new) => new,
            Err((e, written)) => {
                self.devices().undo_split(&begun, written).await?;
                return Err(e);
            }
        };
        let set = settings(&new).await;
        let closed = new.or_give_up(new.close(PoolState::Exported)).await;
        let guid = new.guid();
        drop(new);
        let Begun { leaves, .. } = begun;
        self.devices().finish_split(leaves.clone()).await?;
        closed.and(set)?;
        Ok((guid, leaves))
    }

    /// Opens the leaves as a pool and writes its first txg. The error says, too, whether anything
    /// may have been written.
    async fn open_leaves(
        &self,
        name: &str,
        begun: &Begun,
        opts: EngineOpts,
    ) -> std::result::Result<Rc<Pool>, (Error, bool)> {
        let rt = self.rt().clone();
        let pool = self.assemble_leaves(rt, name, begun, opts).await.map_err(|e| (e, false))?;
        let first = begun.at.next();
        pool.tree().is_split_off.set(true);
        let claims = claim_logs(&pool, first, LogRule::GiveUp).await;
        pool.tree().is_split_off.set(false);
        let mut claims = claims.map_err(|e| (e, false))?;
        // With the first txg: after a power cut behind it an import would claim the logs.
        pool.devices().queue_forget_others(begun.old_tops.clone(), claims.take_frees());
        pool.stack.core.log_internal("split", format!("from pool {}", self.name()), first);
        pool.config.mark_dirty();
        pool.start();
        let written = async {
            pool.stack.txg.wait_synced(first).await?;
            claims.finish(&pool).await
        };
        match pool.or_give_up(written).await {
            Ok(()) => Ok(pool),
            Err(e) => Err((e, true)),
        }
    }

    async fn assemble_leaves(&self, rt: Rt, name: &str, begun: &Begun, opts: EngineOpts) -> Result<Rc<Pool>> {
        let (mut devices, mut newest): (Vec<FoundDevice>, Option<Uberblock>) = (Vec::new(), None);
        for (dev, guid) in &begun.devices {
            let path = dev.info().path.clone();
            let labels = read_labels(&**dev).await?;
            let config = labels.best_config().filter(|c| c.guid == *guid && c.pool_guid == self.guid());
            let ub = labels.uberblocks.iter().map(|u| &u.ub).find(|ub| ub.txg == begun.at);
            let (Some(config), Some(ub)) = (config, ub) else {
                let why = format!("'{path}' has not the labels and the uberblock of the pool's last txg");
                return Err(Error::new(ErrorKind::Corrupt, why));
            };
            newest.get_or_insert_with(|| ub.clone());
            devices.push(FoundDevice { dev: dev.clone(), opened: path, labels, config });
        }
        let (Some(ub), Some(like)) = (newest, devices.first()) else {
            return Err(Error::invalid("no device would be in the new pool"));
        };
        let guid = rt.new_guid();
        let from = self.mos_config();
        let mut root = from.vdev_tree.clone();
        root.guid = guid;
        root.children = begun.tops.clone();
        let config = MosConfig {
            head: ConfigHead {
                name: name.to_string(),
                state: PoolState::Exported,
                txg: begun.at,
                pool_guid: guid,
                comment: None,
                compatibility: None,
                ..from.head.clone()
            },
            vdev_children: Some(begun.tops.len() as u64),
            split: Some(SplitConfig { guid_list: Vec::new(), split_guid: Some(self.guid()) }),
            vdev_tree: root,
            ..from
        };
        let candidate = PoolCandidate {
            name: name.to_string(),
            guid,
            state: PoolState::Exported,
            hostid: config.hostid,
            hostname: config.hostname.clone(),
            config: like.config.clone(),
            devices,
        };
        let (gauge, opts) = (DirtyGauge::default(), opts_for(&candidate, &opts));
        let assembly =
            Assembly { rt: &rt, devices: &candidate.devices, gauge: &gauge, opts: &opts, reflow: ub.raidz_reflow };
        let tree = assembly.tree(guid, &begun.tops)?;
        check_complete(&tree, true)?;
        let layers = Layers::new(&rt, tree, begun.at.next(), gauge, &opts);
        let pool =
            Pool::open_mos(&candidate, layers, ub, config, &ImportOpts::default()).await.at(|| name.to_string())?;
        update_presence(&pool.stack.tree);
        pool.stack.tree.set_committed(begun.at);
        Ok(pool)
    }
}
