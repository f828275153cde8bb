//! Sealing a log block before its write: encryption and checksum, and on which thread.
//!
//! A block is sealed on the engine's thread and its write queued in the same turn: a hand-over
//! would delay the commits that wait for it. Where encrypting it takes long (AES-CCM) the CPU pool
//! seals it, and a task of its own queues the write after that. Nothing depends on the order in
//! which blocks are written: each is over only after those before it.

use std::rc::Rc;

use base::{Nanos, Result};
use bdev::Buf;
use ondisk::blkptr::Blkptr;
use rt::cost::{FLETCHER, ZIL_BLOCK};
use rt::{CpuClass, Place, Rt, place_of};
use vdev::{Top, WriteAs, WriteDone};
use zio::{AreaSeal, DataKey};

use crate::block;
use crate::lwb::Lwb;

/// The parameters of sealing one block.
pub(super) struct Sealing {
    bp: Blkptr,
    seal: Option<AreaSeal>,
    /// Cost of encryption and checksum.
    cost: Nanos,
}

impl Sealing {
    /// For `lwb`; `key` is that of an encrypted dataset.
    pub(super) fn of(lwb: &Lwb, key: Option<&Rc<DataKey>>) -> Sealing {
        let seal = key.map(|key| key.area_seal(lwb.bp.salt_iv()));
        let bytes = lwb.used.get() as u64;
        let cost = FLETCHER.cost(lwb.bp.psize()) + seal.as_ref().map_or(Nanos(0), |s| s.cost(bytes));
        Sealing { bp: lwb.bp, seal, cost }
    }

    /// Cost of closing the block on the engine's thread.
    pub(super) fn cost_here(&self) -> Nanos {
        match place_of(self.cost) {
            Place::Here => ZIL_BLOCK + self.cost,
            Place::Pool => ZIL_BLOCK,
        }
    }

    /// Seals `bytes`, of which the first `nused` are chain and records, with `next` as the block
    /// that follows, and writes them to `top`.
    pub(super) fn write(
        self,
        rt: &Rt,
        top: &Rc<Top>,
        how: WriteAs,
        bytes: Buf,
        next: Blkptr,
        nused: usize,
    ) -> WriteDone {
        let Sealing { bp, seal, cost } = self;
        let (at, birth) = (bp.dva(0).offset(), bp.phys_birth());
        let job = move || -> Result<Buf> {
            let mut bytes = bytes;
            block::seal(&mut bytes, &bp, &next, nused, seal.as_ref())?;
            Ok(bytes)
        };
        let put = move |top: &Top, sealed: Result<Buf>| match sealed {
            Ok(bytes) => top.write(at, bytes.freeze(), birth, how),
            Err(e) => WriteDone::ready(Err(e)),
        };
        if place_of(cost) == Place::Here {
            return put(top, job());
        }
        let (done, completer) = WriteDone::pending();
        let (top, rt2) = (top.clone(), rt.clone());
        drop(rt.spawn("zil seal", async move {
            let sealed = rt2.cpu_as(CpuClass::Urgent, cost, job).await;
            put(&top, sealed).on_done(move |result| completer.complete(result.clone()));
        }));
        done
    }
}
