//! Transactions: changes that become durable in the same txg.
//!
//! A [`TxPlan`] declares the possible changes of a transaction; [`TxPlan::assign`] waits until
//! there is room for it (the write throttle, space) and gives a [`Tx`] in the open txg. Take all
//! locks before assigning, and wait only for reads and other short operations while holding a `Tx`:
//! the txg cannot sync before it is dropped.
//!
//! While a transaction that named an object in its plan is open, transactions of later txgs that
//! name the object wait: so changes of one object by different txgs never interleave.

use base::{ErrorKind, Result, Txg};
use ondisk::blkptr::{BLKPTR_SIZE, Blkptr};
use ondisk::dnode::{DNODE_BLOCK_SIZE, DNODE_SIZE};
use txg::TxgHold;

use crate::charge::Cost;
use crate::ctx::{Reservation, TxSpace};
use crate::dnode::Dnode;
use crate::objset::Objset;

/// A transaction. Dropping it ends it.
pub struct Tx {
    txg: Txg,
    objects: Vec<Dnode>,
    _reservation: Option<Reservation>,
    /// Last: the drops of the other fields still belong to the txg. `None` in syncing context.
    _hold: Option<TxgHold>,
}

impl Tx {
    /// A transaction in syncing context: no hold, no reservation. Only for the MOS, and for changes
    /// by the sync of `txg` itself.
    pub fn syncing(txg: Txg) -> Tx {
        Tx { txg, objects: Vec::new(), _reservation: None, _hold: None }
    }
    /// A hold of its own on its txg; none in syncing context.
    pub(crate) fn hold(&self) -> Option<TxgHold> {
        self._hold.clone()
    }
    /// Its txg.
    pub fn txg(&self) -> Txg {
        self.txg
    }
    /// Whether it runs in syncing context.
    pub fn is_syncing(&self) -> bool {
        self._hold.is_none()
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        for dn in &self.objects {
            let (txg, n) = dn.n.tx_holds.get();
            dn.n.tx_holds.set((txg, n - 1));
            if n == 1 {
                dn.n.tx_released.notify_all();
            }
        }
    }
}

/// Blocks charged for a change of a ZAP, and their size: a few blocks of the size of the largest
/// microzap, or of a fat ZAP.
const ZAP_BLOCKS: u64 = 3;
const ZAP_BLOCK: u64 = 128 << 10;
/// Most bytes of a spill block.
const SPILL_SIZE_MAX: u64 = 128 << 10;
/// The block size by which writes to a new object are charged.
const NEW_BLOCK: u64 = 128 << 10;

/// The possible changes of a transaction, collected before it is assigned to a txg.
#[must_use = "a plan does nothing before it is assigned"]
pub struct TxPlan {
    os: Objset,
    objects: Vec<Dnode>,
    /// For the throttle: bytes that become dirty.
    bytes: u64,
    /// For the gate: the worst-case space of the changes.
    cost: u64,
    kind: TxSpace,
}

impl TxPlan {
    /// An empty plan for `os`.
    pub fn new(os: &Objset) -> TxPlan {
        TxPlan { os: os.clone(), objects: Vec::new(), bytes: 0, cost: 0, kind: TxSpace::Normal }
    }
    fn charge(&mut self, bytes: u64, cost: impl FnOnce(Cost<'_>) -> u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.os.0.gate.is_some() {
            self.cost = self.cost.saturating_add(cost(self.os.0.cost()));
        }
    }
    fn object(mut self, dn: &Dnode) -> TxPlan {
        if !self.objects.iter().any(|d| std::rc::Rc::ptr_eq(&d.n, &dn.n)) {
            self.objects.push(dn.clone());
            self.charge(0, |c| c.dnode_block());
        }
        self.bytes += DNODE_SIZE as u64;
        self
    }
    /// Writing `len` bytes at `off` of an object.
    pub fn write(self, dn: &Dnode, off: u64, len: u64) -> TxPlan {
        let size = u64::from(dn.block_size());
        self.write_blocks(dn, off, len, size)
    }
    /// As [`TxPlan::write`], if the transaction changes the block size to `size` first.
    pub fn write_blocks(mut self, dn: &Dnode, off: u64, len: u64, size: u64) -> TxPlan {
        // Whole blocks: a partial write rewrites its block.
        let first = off / size;
        let last = off.saturating_add(len.max(1) - 1) / size;
        let (blocks, metadata) = (last - first + 1, dn.otype().is_metadata());
        self.charge(blocks.saturating_mul(size).max(len), |c| blocks.saturating_mul(c.block(size, metadata)));
        self.object(dn)
    }
    /// Cloning `blocks` to the blocks of an object from `first` on.
    pub fn clone_blocks(mut self, dn: &Dnode, first: u64, blocks: &[Blkptr]) -> TxPlan {
        let indirect = dn.indirects_above(first, blocks.len() as u64);
        let size = 1u64 << dn.indblkshift();
        self.charge(blocks.len() as u64 * BLKPTR_SIZE as u64, |c| {
            blocks.iter().map(|bp| c.clone_of(bp)).sum::<u64>() + indirect * c.metadata(size)
        });
        self.object(dn)
    }
    /// Writing `len` bytes to an object that the transaction makes.
    pub fn write_new(mut self, len: u64) -> TxPlan {
        self.charge(len, |c| (len / NEW_BLOCK) * c.data(NEW_BLOCK) + c.data(len % NEW_BLOCK));
        self
    }
    /// Making `n` objects.
    pub fn create(mut self, n: u32) -> TxPlan {
        self.charge(u64::from(n) * DNODE_BLOCK_SIZE as u64, |c| u64::from(n) * c.dnode_block());
        self
    }
    /// Adding an entry to a ZAP, or removing one.
    pub fn zap(mut self, dn: &Dnode) -> TxPlan {
        let block = ZAP_BLOCK.max(dn.block_size().into());
        self.charge(ZAP_BLOCKS * block, |c| ZAP_BLOCKS * c.metadata(block));
        self.object(dn)
    }
    /// Freeing an object or a range of it.
    pub fn free(self, dn: &Dnode) -> TxPlan {
        self.object(dn)
    }
    /// Changing the bonus of an object.
    pub fn bonus(self, dn: &Dnode) -> TxPlan {
        self.object(dn)
    }
    /// Changing the spill block of an object.
    pub fn spill(mut self, dn: &Dnode) -> TxPlan {
        self.charge(SPILL_SIZE_MAX, |c| c.metadata(SPILL_SIZE_MAX));
        self.object(dn)
    }
    /// The transaction frees more than it takes: quotas do not count.
    pub fn net_free(self) -> TxPlan {
        self.of_kind(TxSpace::NetFree)
    }
    /// Administration.
    pub fn reserved(self) -> TxPlan {
        self.of_kind(TxSpace::Reserved)
    }
    /// The transaction replays a record of the intent log; overrides the other kinds.
    pub fn replayed(self) -> TxPlan {
        self.of_kind(TxSpace::Replayed)
    }
    fn of_kind(mut self, kind: TxSpace) -> TxPlan {
        if self.kind != TxSpace::Replayed {
            self.kind = kind;
        }
        self
    }

    /// Waits for room and gives the transaction. Errors: `NoSpace`, `Quota`, or the error of a pool
    /// that takes no transactions.
    pub async fn assign(self) -> Result<Tx> {
        let ctx = self.os.ctx().clone();
        ctx.rt().spend(rt::cost::DMU_TX).await;
        let start = ctx.rt().now();
        self.os.check_writable()?;
        loop {
            ctx.zio().tree().gate.pass().await?;
            ctx.txg().throttle_for(start, self.bytes).await?;
            let hold = ctx.txg().hold_for(self.bytes);
            let txg = hold.txg;
            if let Some(dn) = self.objects.iter().find(|d| {
                let (held, n) = d.n.tx_holds.get();
                n > 0 && held != txg
            }) {
                drop(hold);
                dn.n.tx_released.notified().await;
                continue;
            }
            let reservation = match self.os.0.gate.as_ref().map(|g| g.reserve(self.cost, self.kind, txg)) {
                None => None,
                Some(Ok(r)) => Some(r),
                Some(Err(e)) if e.kind() == ErrorKind::Restart => {
                    drop(hold);
                    ctx.txg().wait_open(txg.next()).await?;
                    continue;
                }
                Some(Err(e)) => return Err(e),
            };
            for dn in &self.objects {
                let (_, n) = dn.n.tx_holds.get();
                dn.n.tx_holds.set((txg, n + 1));
            }
            return Ok(Tx { txg, objects: self.objects, _reservation: reservation, _hold: Some(hold) });
        }
    }
}
