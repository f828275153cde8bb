//! Transactions: changes that become durable together.
//!
//! A [`TxPlan`] says beforehand what a transaction may do; [`TxPlan::assign`] waits until there is room for it (the write throttle, space) and gives a [`Tx`]
//! in the open txg. Take all locks before assigning, and wait for nothing but reads and other short things while holding a `Tx`: the txg cannot sync before
//! it is dropped.
//!
//! An object named in the plan of a transaction that has not ended is not given to a transaction of a later txg: so changes of one object by
//! different txgs never interleave.

use base::{ErrorKind, Result, Txg};
use ondisk::dnode::{DNODE_BLOCK_SIZE, DNODE_SIZE};
use txg::TxgHold;

use crate::ctx::{Reservation, TxSpace};
use crate::dnode::Dnode;
use crate::objset::Objset;

/// A transaction. Dropping it ends it.
pub struct Tx {
    txg: Txg,
    objects: Vec<Dnode>,
    _reservation: Option<Reservation>,
    /// Last: what the others do on drop belongs to the txg. `None` in syncing context.
    _hold: Option<TxgHold>,
}

impl Tx {
    /// A transaction in syncing context: no hold, no reservation. Only for the MOS, and for what belongs to the sync of `txg` itself.
    pub fn syncing(txg: Txg) -> Tx {
        Tx { txg, objects: Vec::new(), _reservation: None, _hold: None }
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

/// Bytes charged for changing a ZAP: a few blocks of the largest microzap's size, or of a fat ZAP.
const ZAP_CHARGE: u64 = 3 * (128 << 10);

/// What a transaction may do, collected before it is assigned to a txg.
#[must_use = "a plan does nothing before it is assigned"]
pub struct TxPlan {
    os: Objset,
    objects: Vec<Dnode>,
    bytes: u64,
    kind: TxSpace,
}

impl TxPlan {
    /// An empty plan for `os`.
    pub fn new(os: &Objset) -> TxPlan {
        TxPlan { os: os.clone(), objects: Vec::new(), bytes: 0, kind: TxSpace::Normal }
    }
    fn object(mut self, dn: &Dnode) -> TxPlan {
        if !self.objects.iter().any(|d| std::rc::Rc::ptr_eq(&d.n, &dn.n)) {
            self.objects.push(dn.clone());
        }
        self.bytes += DNODE_SIZE as u64;
        self
    }
    /// Writing `len` bytes at `off` of an object.
    pub fn write(mut self, dn: &Dnode, off: u64, len: u64) -> TxPlan {
        let size = u64::from(dn.block_size());
        // Whole blocks: a partial write rewrites its block.
        let first = off / size;
        let last = off.saturating_add(len.max(1) - 1) / size;
        self.bytes = self.bytes.saturating_add((last - first + 1).saturating_mul(size).max(len));
        self.object(dn)
    }
    /// Writing `len` bytes to an object that the transaction makes.
    pub fn write_new(mut self, len: u64) -> TxPlan {
        self.bytes = self.bytes.saturating_add(len);
        self
    }
    /// Making `n` objects.
    pub fn create(mut self, n: u32) -> TxPlan {
        self.bytes += u64::from(n) * DNODE_BLOCK_SIZE as u64;
        self
    }
    /// Adding to, or removing from, a ZAP.
    pub fn zap(mut self, dn: &Dnode) -> TxPlan {
        self.bytes += ZAP_CHARGE;
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
        self.bytes += 128 << 10;
        self.object(dn)
    }
    /// The transaction frees more than it takes: quotas do not count.
    pub fn net_free(mut self) -> TxPlan {
        self.kind = TxSpace::NetFree;
        self
    }
    /// Administration.
    pub fn reserved(mut self) -> TxPlan {
        self.kind = TxSpace::Reserved;
        self
    }

    /// Waits for room and gives the transaction. Errors: `NoSpace`, `Quota`, or why the pool takes no transactions.
    pub async fn assign(self) -> Result<Tx> {
        let ctx = self.os.ctx().clone();
        let tun = ctx.tunables();
        let charge = self.bytes.max(tun.min_charge).saturating_mul(tun.asize_inflation);
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
            let reservation = match self.os.0.gate.as_ref().map(|g| g.reserve(charge, self.kind, txg)) {
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
