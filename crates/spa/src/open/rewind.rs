//! Rewind: to the checkpoint, or past a damaged last state (format pages 01 section 4 and 14
//! section 4).
//!
//! Both choose another uberblock than the newest. The checkpoint's is in the MOS of the newest
//! state; it is written as the newest one before the pool is opened through it. Devices that were
//! added since are not part of that pool. Otherwise the uberblocks of the last txgs are tried from
//! the newest on: space freed in a txg is not reused for [`TXG_DEFER`] txgs, so the states of that
//! many txgs are intact unless damaged, except those from before the last progress of an expansion:
//! their sectors were moved since. With `-T` older ones are tried, too. The first txg after a
//! rewind is newer than any on the devices.

use std::rc::Rc;

use base::{Error, ObjectId, Result, ResultExt, TXG_DEFER, Txg};
use dmu::{Objset, ObjsetProps};
use ondisk::uberblock::Uberblock;
use rt::Rt;
use vdev::labels::write_uberblock;
use vdev::{DirtyGauge, VdevTree};

use crate::commit::checkpoint::stored_uberblock;
use crate::open::import::PoolCandidate;
use crate::pool::EngineOpts;
use crate::stack::{Layers, mos_hooks};

/// A rewind of `-F`, planned or done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rewind {
    /// The txg of the state to rewind to.
    pub txg: Txg,
    /// When it was written, in seconds since 1970.
    pub time: u64,
    /// Seconds of lost changes.
    pub lost_secs: u64,
}

impl Rewind {
    /// The rewind from the newest state to an older one.
    pub(crate) fn new(newest: &Uberblock, chosen: &Uberblock) -> Rewind {
        let lost_secs = newest.timestamp.saturating_sub(chosen.timestamp);
        Rewind { txg: chosen.txg, time: chosen.timestamp, lost_secs }
    }
}

/// Which states of a pool may be opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum States {
    /// The newest.
    #[default]
    Newest,
    /// `-F`: if that is damaged, one of the last few, which are whole unless damaged.
    Last,
    /// `-T`: none that is newer than this txg, however old. Space that they refer to may have been
    /// written over.
    UpTo(Txg),
}

impl States {
    /// Whether it may be another state than the newest.
    pub fn rewinds(self) -> bool {
        self != States::Newest
    }
}

/// The uberblocks to choose from, newest first.
pub(crate) fn choices(candidate: &PoolCandidate, states: States) -> Vec<Uberblock> {
    let mut all: Vec<Uberblock> =
        candidate.devices.iter().flat_map(|d| d.labels.uberblocks.iter().map(|u| u.ub.clone())).collect();
    all.sort_by_key(|ub| std::cmp::Reverse(ub.rank()));
    all.dedup_by_key(|ub| ub.txg);
    if let Some(newest) = all.first() {
        let (last, reflow) = (newest.txg, newest.raidz_reflow);
        let is_among = |txg: Txg| match states {
            States::Newest => txg == last,
            States::Last => txg.0 + TXG_DEFER >= last.0,
            States::UpTo(most) => txg <= most,
        };
        all.retain(|ub| is_among(ub.txg) && ub.raidz_reflow == reflow);
    }
    all
}

/// The first txg to write after a rewind: newer than every state on the devices.
pub(crate) fn first_open(candidate: &PoolCandidate, chosen: &Uberblock) -> Txg {
    let all = candidate.devices.iter().flat_map(|d| d.labels.uberblocks.iter().map(|u| u.ub.txg));
    all.chain([chosen.txg]).max().unwrap_or_default().next()
}

/// The uberblock of the checkpoint in the state of `newest`, with the newest txg of the pool.
pub(crate) async fn checkpoint_of(
    rt: &Rt,
    tree: &Rc<VdevTree>,
    newest: &Uberblock,
    gauge: &DirtyGauge,
    opts: &EngineOpts,
) -> Result<Uberblock> {
    let layers = Layers::new(rt, tree.clone(), newest.txg.next(), gauge.clone(), opts);
    let hooks = mos_hooks(&layers.core);
    let mos =
        Objset::open(layers.ctx.clone(), 0, newest.rootbp, ObjsetProps::mos(), hooks, false).await.at(|| "MOS")?;
    let directory = mos.hold(ObjectId(1)).await.at(|| "MOS directory")?;
    let ub = stored_uberblock(&directory).await?;
    let mut ub = ub.ok_or_else(|| Error::not_found("the pool has no checkpoint to go back to"))?;
    ub.txg = newest.txg.next();
    ub.timestamp = (rt.wall_clock().secs.max(0) as u64).max(newest.timestamp + 1);
    Ok(ub)
}

/// Makes an uberblock the newest one of a pool with these devices. Those that were added after the
/// checkpoint keep theirs, which are older.
pub(crate) async fn make_newest(tree: &VdevTree, ub: &Uberblock) -> Result<()> {
    tree.flush_all().await?;
    let tops = tree.tops.borrow().clone();
    for top in tops {
        for leaf in top.leaves() {
            write_uberblock(&leaf, top.ashift, ub).await?;
        }
    }
    tree.flush_all().await
}
